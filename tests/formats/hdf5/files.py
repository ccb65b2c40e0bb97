"""Random files of HDF5, and what h5py says of them."""

from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np

NUMBERS = ("i1", "u1", "<i2", ">i2", "<u4", ">u4", "<i8", ">i8", "<u8", "<f2", ">f2", "<f4", ">f4", "<f8", ">f8")
SHOWN_AS_STORED = frozenset(np.dtype(name).str for name in (*NUMBERS, "?", "<c8", "<c16", "S1", "S5"))
PACKED = np.dtype([("a", "<i4"), ("b", "<f8"), ("name", "S3")])
PADDED = np.dtype({"names": ["a", "b"], "formats": ["<i2", "<f8"], "offsets": [0, 8], "itemsize": 24})
MIXED = np.dtype([("a", ">i4"), ("b", "<f4")])
NESTED = np.dtype([("p", [("x", "<f4"), ("y", "<f4")]), ("n", "u1")])
ENUM = h5py.enum_dtype({"RED": 0, "GREEN": 1, "BLUE": 42}, basetype="<i2")
TYPES: tuple[Any, ...] = (
    *NUMBERS,
    "?",
    "<c8",
    ">c8",
    "<c16",
    "S1",
    "S5",
    "V7",
    PACKED,
    PADDED,
    MIXED,
    NESTED,
    ENUM,
    ("<i4", (2,)),
    (">f4", (2, 3)),
    h5py.string_dtype(),
    h5py.string_dtype("ascii"),
    h5py.string_dtype(length=6),
    h5py.opaque_dtype("<M8[ns]"),
)
WORDS = ["", "a", "bcd", "Grüße", "日本", "x" * 40]


def is_text(dtype: np.dtype[Any]) -> bool:
    """Whether elements are text of any length."""
    return h5py.check_string_dtype(dtype) is not None and dtype.kind == "O"


def elements(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """Return random elements; not every byte pattern, as text and booleans have invalid ones."""
    if dtype.subdtype is not None:
        base, inner = dtype.subdtype
        return elements(rng, base, (*shape, *inner))
    if dtype.names is not None:
        array = np.zeros(shape, dtype)
        for name in dtype.names:
            array[name] = elements(rng, dtype[name], shape)
        return array
    if is_text(dtype):
        words = [word for word in WORDS if word.isascii() or h5py.check_string_dtype(dtype).encoding == "utf-8"]
        return rng.choice(np.array(words, object), shape)
    count = int(np.prod(shape, dtype=np.int64))
    match dtype.kind:
        case "b":
            return rng.integers(0, 2, shape).astype(dtype)
        case "S":
            return rng.choice(np.array([word.encode()[: dtype.itemsize] for word in WORDS], dtype), shape)
        case "f" | "c":
            return (rng.integers(-50, 50, shape) / 4).astype(dtype)
        case "M":
            return rng.integers(0, 2**60, shape).astype(dtype)
        case "V":
            return rng.integers(0, 256, (count, dtype.itemsize), np.uint8).view(dtype).reshape(shape)
        case _ if h5py.check_enum_dtype(dtype):
            return rng.choice(np.array([0, 1, 42], dtype), shape)
        case _:
            return rng.integers(0, 100, shape).astype(dtype)


def filters(rng: np.random.Generator, dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return arguments of `create_dataset`."""
    chosen: dict[str, Any] = {"shuffle": bool(rng.integers(2)), "fletcher32": bool(rng.integers(2))}
    # By h5py alone, without plugins, elements are read that are not shown as they are stored.
    match rng.integers(7 if dtype.str in SHOWN_AS_STORED else 2):
        case 0:
            chosen |= {"compression": "gzip", "compression_opts": int(rng.integers(10))}
        case 1:
            chosen |= {"compression": "lzf"}
        case 2:
            chosen |= dict(hdf5plugin.Zstd(clevel=3))
        case 3:
            cname = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")[rng.integers(5)]
            chosen |= dict(hdf5plugin.Blosc(cname=cname, clevel=int(rng.integers(1, 9)), shuffle=int(rng.integers(3))))
        case 4:
            chosen |= dict(hdf5plugin.BZip2(blocksize=5))
    return chosen


def add_dataset(rng: np.random.Generator, group: h5py.Group, name: str) -> h5py.Dataset:
    """Add a random dataset, of which some chunks may be missing."""
    dtype = np.dtype(TYPES[rng.integers(len(TYPES))])
    ndim = int(rng.integers(5))
    shape = tuple(int(length) for length in rng.integers(0, 9, ndim))
    values = elements(rng, dtype, shape)
    arguments: dict[str, Any] = {}
    if rng.integers(3) == 0 and dtype.names is None and dtype.subdtype is None and dtype.kind not in "MVO":
        fill = elements(rng, dtype, ())
        arguments["fillvalue"] = dtype.type(fill)
    if ndim and all(shape) and rng.integers(3):
        maxshape = tuple(None if rng.integers(2) else 20 for _ in shape)
        arguments |= {"chunks": tuple(int(n) for n in rng.integers(1, 7, ndim)), "maxshape": maxshape}
        if rng.integers(3):
            arguments |= filters(rng, dtype)
    kind = rng.integers(5)
    if not arguments and ndim and kind == 0:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_layout(h5py.h5d.COMPACT)
        made = h5py.h5d.create(
            group.id, name.encode(), h5py.h5t.py_create(dtype, logical=True), h5py.h5s.create_simple(shape), properties
        )
        dataset = h5py.Dataset(made)
    else:
        try:
            dataset = group.create_dataset(name, shape, dtype, **arguments)
        except ValueError:  # not all filters are for all types
            arguments = {key: value for key, value in arguments.items() if key in ("chunks", "maxshape")}
            dataset = group.create_dataset(name, shape, dtype, **arguments)
    if kind == 1 and ndim and all(shape):  # a part, so that chunks are missing
        part = tuple(slice(0, int(rng.integers(1, length + 1))) for length in shape)
        dataset[part] = values[part]
    elif kind != 2:
        dataset[()] = values
    if "maxshape" in arguments and rng.integers(2):
        dataset.resize(tuple(int(n) for n in rng.integers(0, 12, ndim)))
    return dataset


def write_random(path: Path, seed: int, ndatasets: int = 12) -> None:
    """Write a file with datasets in nested groups; the same one for the same *seed*."""
    rng = np.random.default_rng(seed)
    options: dict[str, Any] = {"userblock_size": 512} if seed % 5 == 0 else {}
    options |= {"libver": "latest"} if seed % 2 else {}
    with h5py.File(path, "w", **options) as file:
        groups = [file, file.create_group("group"), file.create_group("group/Gruppe ü"), file.create_group("empty")]
        for number in range(ndatasets):
            add_dataset(rng, groups[rng.integers(3)], f"data {number}")


def values_of(dataset: h5py.Dataset) -> Any:
    """Return what h5py reads, text as strings."""
    if is_text(dataset.dtype):
        return np.asarray(dataset.asstr()[()], object)
    return dataset[()]
