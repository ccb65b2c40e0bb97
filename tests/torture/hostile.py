"""Damaged datasets of every format, by Hypothesis: what comes is an error of shardfs, in bounded memory, and soon.

`python -m tests.torture.hostile --examples 300` runs in a process of its own, as it limits its memory.
"""

import argparse
import faulthandler
import json
import logging
import math
import resource
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import numpy as np
import trio
import zarr
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from shardfs.dataset.hierarchy import open_source
from shardfs.errors import InternalError, ShardfsError
from shardfs.format.codecs import COMPRESSORS, SHUFFLES, decode, encode
from shardfs.format.document import Extension
from shardfs.format.numcodec import BYTES_FILTERS
from shardfs.stores.base import Kind
from shardfs.vfs.options import TreeOptions
from shardfs.vfs.paths import Paths, open_paths
from tests.support.corpus import GZIP, LITTLE, array, sharding
from tests.support.datasets import store
from tests.support.loop_clock import LoopClock
from tests.support.precomputed import info, scale, write_volume
from tests.support.precomputed import sharding as uint64_sharding

MEMORY_NBYTES: Final = 2 * 2**30
"""How much address space may be added to what the libraries take: 512 MiB is the largest that is decoded."""

STEP_SECONDS: Final = 1.0
"""How much processor time a step of the event loop may take at most: no file here is larger than a few KiB."""

_MAX_NAMES, _MAX_NODES = 20, 12
_MAX_STREAM_NBYTES: Final = 2**20
_VALUES: Final = (0, 1, 2, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**64 - 1)


class Edit(NamedTuple):
    """Bytes that are put at a location of a file, over as many others or between them.

    The location is a number of bytes, or a fraction of the size.
    """

    location: int | float
    data: bytes
    is_inserted: bool

    def apply(self, data: bytes) -> bytes:
        """Return the edited file."""
        at = min(self.location, len(data)) if isinstance(self.location, int) else int(self.location * len(data))
        return data[:at] + self.data + data[at + (0 if self.is_inserted else len(self.data)) :]


_NUMBERS = st.tuples(st.sampled_from(_VALUES), st.sampled_from((1, 2, 4, 8)), st.sampled_from(("little", "big"))).map(
    lambda drawn: (drawn[0] % 2 ** (8 * drawn[1])).to_bytes(drawn[1], drawn[2])  # type: ignore[arg-type]
)
_TEXTS = st.sampled_from([b"1e400", b"-1", b"null", b"{}", b"[[[[", b"\xff", b'"\\ud800"', b"9" * 30, b'"x":'])
_MODULES = st.floats(0, 1, exclude_max=True) | st.integers(0, 47)  # where headers of codecs are
_EDITS = st.lists(
    st.builds(Edit, _MODULES, _NUMBERS | _TEXTS | st.binary(min_size=1, max_size=6), st.booleans()),
    min_size=1,
    max_size=3,
)
_ENDS = st.none() | st.floats(0, 1, exclude_max=True)


def _damaged(data: bytes, edits: Sequence[Edit], end: float | None) -> bytes:
    for edit in edits:
        data = edit.apply(data)
    return data if end is None else data[: math.ceil(end * len(data))]


def _in_place(data: bytes, edits: Sequence[Edit]) -> list[Edit]:
    """Return *edits* that go over bytes which are no zeros, as most are where nothing is."""
    used = np.flatnonzero(np.frombuffer(data, np.uint8))
    found = []
    for edit in edits:
        part = edit.location / 48 if isinstance(edit.location, int) else edit.location
        found.append(Edit(int(used[int(part * len(used))]), edit.data, is_inserted=False))
    return found


def _settings(nexamples: int, number: int | None) -> settings:
    return settings(
        max_examples=nexamples,
        derandomize=number is None,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )


def write_zarr(path: Path) -> None:
    """Arrays of Zarr under codecs of all kinds, one of which is around its shards."""
    from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec
    from zarr.codecs.numcodecs import LZ4, Zlib

    codecs: Mapping[str, Any] = {
        "plain": None,
        "zstd": ZstdCodec(checksum=True),
        "gzip": GzipCodec(),
        "blosc": BloscCodec(cname="lz4", typesize=2),
        "blosc-zstd": BloscCodec(cname="zstd", shuffle="bitshuffle", typesize=2),
        "lz4": LZ4(),
        "zlib": Zlib(),
        "crc": Crc32cCodec(),
    }
    group = zarr.open_group(path, mode="w")
    for name, codec in codecs.items():
        made: Any = group.create_array(
            name, shape=(8, 12), chunks=(2, 3), shards=(4, 6), dtype="u2", compressors=codec, fill_value=0
        )
        made[...] = np.arange(96).reshape(8, 12)
    store(path / "around", array((8, 12), (4, 6), sharding((2, 3), LITTLE), GZIP))


def write_precomputed(path: Path) -> None:
    """A volume of neuroglancer, of raw elements under gzip."""
    document = info(scale((16, 16, 8), (8, 8, 4), uint64_sharding(1, "identity", 1, 1, "gzip", "gzip")))
    write_volume(path, document, [np.arange(2048, dtype="u2").reshape(16, 16, 8, 1)])
    (path / "info").write_text(json.dumps(document))


def write_wkw(path: Path) -> None:
    """Arrays of webKnossos, raw and compressed."""
    from tests.support.wkw import LZ4, RAW, layer, write_properties
    from tests.support.wkw import write_wkw as write

    values = np.arange(512, dtype="u2").reshape(1, 8, 8, 8)
    write(path / "color/1", values, RAW, block=4, blocks=2)
    write(path / "color/2", values, LZ4, block=4, blocks=2)
    write_properties(path, layer("color", ([0, 0, 0], [8, 8, 8]), mags=[{"mag": 1}, {"mag": 2}]))


def write_blosc2(path: Path) -> None:
    """Sparse frames of Blosc2, in two codecs."""
    import blosc2

    path.mkdir()
    for name, codec in (("lz4", blosc2.Codec.LZ4), ("zstd", blosc2.Codec.ZSTD)):
        blosc2.asarray(
            np.arange(96, dtype="i4").reshape(8, 12), chunks=(4, 6), blocks=(2, 3), urlpath=str(path / name),
            contiguous=False, cparams={"codec": codec},
        )  # fmt: skip


def write_frame(path: Path) -> None:
    """A contiguous frame of Blosc2."""
    import blosc2

    path.mkdir()
    blosc2.asarray(
        np.arange(96, dtype="i4").reshape(8, 12), chunks=(4, 6), blocks=(2, 3), urlpath=str(path / "frame.b2nd")
    )


def write_references(path: Path) -> None:
    """References of kerchunk, with templates and a generator."""
    path.mkdir()
    (path / "data").write_bytes(bytes(range(96)))
    document = {"zarr_format": 2, "shape": [96], "chunks": [8], "dtype": "|u1", "compressor": None, "filters": None}
    refs: dict[str, Any] = {".zgroup": '{"zarr_format": 2}'}
    refs["a/.zarray"] = json.dumps(document | {"fill_value": 0, "order": "C"})
    refs |= {"a/0": ["{{u}}", 0, 8], "a/1": "base64:AAAAAAAAAAA=", "a/2": "in place"}
    dimensions = {"i": {"start": 3, "stop": 9}}
    gen = {"key": "a/{{i}}", "url": "{{u}}", "offset": "{{i}}", "length": "8", "dimensions": dimensions}
    whole = {"version": 1, "templates": {"u": "data"}, "gen": [gen], "refs": refs}
    (path / "refs.json").write_text(json.dumps(whole))


def write_records(path: Path) -> None:
    """References in Parquet."""
    import pyarrow.parquet

    (path / "refs.parq/a").mkdir(parents=True)
    (path / "refs.parq/data").write_bytes(bytes(range(96)))
    document = {"zarr_format": 2, "shape": [96], "chunks": [8], "dtype": "|u1", "compressor": None, "filters": None}
    metadata = {".zgroup": {"zarr_format": 2}, "a/.zarray": document | {"fill_value": 0, "order": "C"}}
    (path / "refs.parq/.zmetadata").write_text(json.dumps({"metadata": metadata, "record_size": 12}))
    columns = {
        "path": ["refs.parq/data"] * 11 + [None],
        "offset": [*range(12)],
        "size": [8] * 12,
        "raw": [None] * 11 + [b"12345678"],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), path / "refs.parq/a/refs.0.parq")


def write_v2(path: Path) -> None:
    """An array of Zarr v2."""
    group = zarr.open_group(path, mode="w", zarr_format=2)
    made: Any = group.create_array("a", shape=(8, 6), chunks=(4, 3), dtype="u2")
    made[...] = np.arange(48).reshape(8, 6)


def write_zip(path: Path) -> None:
    """A ZIP file with an array of Zarr, with members of both kinds."""
    import zipfile

    path.mkdir()
    document = array((8, 12), (4, 6), sharding((2, 3)))
    store(path / "loose", document)
    with zipfile.ZipFile(path / "data.zip", "w") as archive:
        for number, file in enumerate(sorted(file for file in (path / "loose").rglob("*") if file.is_file())):
            name = file.relative_to(path / "loose").as_posix()
            archive.write(file, name, zipfile.ZIP_DEFLATED if number % 2 else zipfile.ZIP_STORED)
    shutil.rmtree(path / "loose")


def write_hdf5(path: Path, libver: str = "earliest") -> None:
    """An HDF5 file with groups, links, attributes, and arrays of several layouts and types, as *libver* has them."""
    import h5py

    path.mkdir()
    with h5py.File(path / "data.h5", "w", libver=libver) as file:
        file.attrs["title"] = "a test"
        packed = {"chunks": (4, 3), "compression": "gzip", "shuffle": True, "fletcher32": True}
        file.create_dataset("g/packed", data=np.arange(60.0).reshape(10, 6), **packed)
        file.create_dataset("g/rows", data=np.arange(40).reshape(10, 4), chunks=(2, 4), maxshape=(None, 4))
        file.create_dataset("g/lzf", data=np.arange(60).reshape(10, 6), chunks=(4, 6), compression="lzf")
        file["text"] = np.array(["a", "bcd"], h5py.string_dtype())
        file["y"] = np.arange(10)
        file["y"].make_scale("y")
        file["g/rows"].dims[0].attach_scale(file["y"])
        file["g/rows"].attrs["units"] = ["a", "text"]
        file["compound"] = np.zeros(3, [("a", "i4"), ("b", ">f8")])
        file["soft"] = h5py.SoftLink("/g/packed")
        file["alias"] = file["g"]


class Format(NamedTuple):
    """What is written, and which part of it is the source.

    Of a format that *knows_its_size*, nothing is read of a file with another one: it is damaged in place.
    """

    write: Callable[[Path], None]
    source: str = ""
    knows_its_size: bool = False


FORMATS: Final[Mapping[str, Format]] = {
    "zarr": Format(write_zarr),
    "zarr v2": Format(write_v2),
    "precomputed": Format(write_precomputed),
    "wkw": Format(write_wkw),
    "blosc2": Format(write_blosc2),
    "frame of blosc2": Format(write_frame, "frame.b2nd"),
    "references": Format(write_references, "refs.json"),
    "records": Format(write_records, "refs.parq"),
    "zip": Format(write_zip, "data.zip"),
    "hdf5": Format(write_hdf5, "data.h5", knows_its_size=True),
    "hdf5 of today": Format(partial(write_hdf5, libver="latest"), "data.h5", knows_its_size=True),
}


def streams() -> Mapping[str, tuple[Extension, bytes]]:
    """Return values that each codec has encoded: two blocks that compress well, and some bytes that do not."""
    values = np.arange(2**15, dtype="u4").tobytes() + np.random.default_rng(1).bytes(5000)
    codecs = {
        f"blosc {cname} {shuffle} {blocksize}": Extension(
            "blosc", {"cname": cname, "clevel": 5, "shuffle": shuffle, "typesize": 4, "blocksize": blocksize}
        )
        for cname in COMPRESSORS
        if cname != "snappy"
        for shuffle in SHUFFLES
        for blocksize in (0, 2**14)
    }
    codecs |= {name: Extension(name, {}) for name in ("gzip", "zstd", "crc32c")}
    codecs |= {name: Extension(f"numcodecs.{name}", {}) for name in BYTES_FILTERS if name not in codecs}
    codecs["shuffle"] = Extension("numcodecs.shuffle", {"elementsize": 4})
    return {name: (codec, encode([codec], values)) for name, codec in codecs.items() if name != "blosc"}


def kind_of(error: ShardfsError) -> str:
    """Return the type of an error, and that of the exception of a library that it stands for; raises a mistake."""
    if isinstance(error, InternalError):
        raise error
    cause: BaseException | None = error
    while isinstance(cause, ShardfsError):
        cause = cause.__context__
    return type(error).__name__ + (f" for {type(cause).__name__}" if cause is not None else "")


def run_streams(nexamples: int, number: int | None) -> Counter[str]:
    """Decode so many damaged streams of codecs; return how often each error came. Raises what shardfs should not."""
    errors: Counter[str] = Counter()
    encoded = streams()

    @_settings(nexamples, number)
    @given(st.sampled_from(sorted(encoded)), _EDITS, _ENDS)
    def damage(name: str, edits: list[Edit], end: float | None) -> None:
        codec, data = encoded[name]
        try:
            decoded = decode([codec], _damaged(data, edits, end), _MAX_STREAM_NBYTES)
        except ShardfsError as error:
            errors[kind_of(error)] += 1
        else:
            assert len(decoded) <= _MAX_STREAM_NBYTES

    (damage if number is None else seed(number)(damage))()
    return errors


async def look(source: str, *, decode: bool, errors: Counter[str]) -> None:
    """List and read some of a source, as a mount does, and count the errors; raises what is none of shardfs."""
    try:
        async with open_source(source) as opened, open_paths(opened, TreeOptions(decode=decode)) as paths:
            pending = [""]
            for _ in range(_MAX_NODES):
                if pending:
                    pending += await look_into(paths, pending.pop(0), errors)
    except ShardfsError as error:
        errors[kind_of(error)] += 1


async def look_into(paths: Paths, directory: str, errors: Counter[str]) -> list[str]:
    """Read some files of a directory; return the directories in it."""
    below: list[str] = []
    try:
        async with paths.listing(directory) as batches:
            nnames = 0
            async for batch in batches:
                for listed in batch[: _MAX_NAMES - nnames]:
                    nnames += 1
                    path = f"{directory}/{listed.name}".lstrip("/")
                    if listed.kind is Kind.DIRECTORY:
                        below.append(path)
                        continue
                    try:
                        await paths.read(path, 0, 2**20)
                    except ShardfsError as error:
                        errors[kind_of(error)] += 1
                if nnames >= _MAX_NAMES:
                    break
    except ShardfsError as error:
        errors[kind_of(error)] += 1
    return below


def run(nexamples: int, number: int | None, formats: Mapping[str, Format]) -> Counter[str]:
    """Try so many damaged datasets; return how often each error came. Raises what shardfs should not.

    They are the same each time, or others for each *number*.
    """
    errors: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="hostile-") as directory:
        whole = Path(directory, "whole")
        whole.mkdir()
        files: list[tuple[str, str]] = []
        for name, kind in formats.items():
            kind.write(whole / name)
            sound: Counter[str] = Counter()
            trio.run(partial(look, str(whole / name / kind.source), decode=True, errors=sound))
            assert not sound, f"{name}, undamaged: {sound}"
            stored = [file for file in (whole / name).rglob("*") if file.is_file()]
            files += [(name, str(file.relative_to(whole / name))) for file in stored]
        files.sort()

        @_settings(nexamples, number)
        @given(st.sampled_from(files), _EDITS, _ENDS, st.booleans())
        def damage(file: tuple[str, str], edits: list[Edit], end: float | None, decode: bool) -> None:
            name, key = file
            if formats[name].knows_its_size:
                edits, end = _in_place((whole / name / key).read_bytes(), edits), None
            copy = Path(directory, "copy")
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(whole / name, copy)
            (copy / key).write_bytes(_damaged((copy / key).read_bytes(), edits, end))
            clock = LoopClock()
            looking = partial(look, str(copy / formats[name].source), decode=decode, errors=errors)
            with patch("shardfs.formats.hdf5.process.MAX_SECONDS", 2):
                trio.run(looking, instruments=[clock])
            assert clock.longest < STEP_SECONDS, f"a step of the event loop took {clock.longest:.1f} s"

        (damage if number is None else seed(number)(damage))()
    return errors


def limit_memory() -> None:
    """Limit the memory of this process to what it has now and `MEMORY_NBYTES`."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY_NBYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main(arguments: Sequence[str] | None = None) -> int:
    faulthandler.enable()
    parser = argparse.ArgumentParser("hostile", description=__doc__)
    parser.add_argument("--examples", type=int, default=300, help="how many damaged datasets  [default: %(default)s]")
    parser.add_argument(
        "--streams", type=int, default=0, help="how many damaged streams of codecs, before that  [default: %(default)s]"
    )
    parser.add_argument("--seed", type=int, help="try others than always")
    parser.add_argument("--only", action="append", choices=[*FORMATS], help="of this format, or of several")
    options = parser.parse_args(arguments)
    logging.disable()
    formats = {name: kind for name, kind in FORMATS.items() if options.only is None or name in options.only}
    limit_memory()
    if options.streams:
        errors = run_streams(options.streams, options.seed)
        print(f"hostile: {options.streams} streams, {sum(errors.values())} errors:", dict(sorted(errors.items())))
    errors = run(options.examples, options.seed, formats)
    print(f"hostile: {options.examples} datasets, {sum(errors.values())} errors:", dict(sorted(errors.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
