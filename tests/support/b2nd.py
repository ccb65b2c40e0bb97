"""Arrays of Blosc2, written by the library: the oracle."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

blosc2 = pytest.importorskip("blosc2")


class Geometry(NamedTuple):
    """An array, and how it is cut."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    blocks: tuple[int, ...]
    dtype: str
    cparams: dict[str, Any]

    @property
    def has_whole_blocks(self) -> bool:
        """Whether blocks divide chunks, so that they are what is shown."""
        return all(not chunk % block for chunk, block in zip(self.chunks, self.blocks, strict=True))

    @property
    def shown(self) -> tuple[int, ...]:
        """The shape of chunks that are shown."""
        return self.blocks if self.has_whole_blocks else self.chunks

    def values(self) -> np.ndarray:
        """Values that compress, with zeros among them."""
        values = np.random.default_rng(3).integers(0, 5, self.shape)
        values[: self.shape[0] // 3] = 0
        if self.dtype[1:2] == "c":
            return (values + 1j * values[::-1]).astype(self.dtype)
        return values.astype(self.dtype)


ZSTD: dict[str, Any] = {"codec": blosc2.Codec.ZSTD, "clevel": 5}
GEOMETRIES: dict[str, Geometry] = {
    "one axis": Geometry((1000,), (300,), (100,), "<f8", ZSTD),
    "one axis, partly filled": Geometry((1000,), (300,), (70,), "<i4", {"codec": blosc2.Codec.LZ4}),
    "two axes": Geometry((60, 50), (20, 20), (10, 10), ">i2", ZSTD),
    "two axes, partly filled": Geometry((61, 47), (20, 21), (7, 10), ">f4", {"codec": blosc2.Codec.ZLIB}),
    "bool": Geometry((33, 21), (16, 16), (8, 4), "|b1", {"codec": blosc2.Codec.BLOSCLZ}),
    "three axes": Geometry((21, 30, 9), (10, 16, 8), (5, 8, 8), "<u2", {"codec": blosc2.Codec.LZ4HC, "clevel": 9}),
    "three axes, partly filled": Geometry((21, 30, 9), (10, 16, 8), (4, 8, 3), "|i1", ZSTD),
    "four axes": Geometry((7, 6, 5, 9), (4, 3, 5, 4), (2, 3, 5, 2), "<c8", ZSTD),
    "four axes, partly filled": Geometry((7, 6, 5, 9), (4, 3, 5, 4), (3, 2, 5, 3), ">u8", ZSTD),
    "raw": Geometry((60, 50), (20, 20), (10, 20), "<i8", {"clevel": 0}),
    "bitshuffle": Geometry((40, 40), (20, 20), (10, 20), "<u4", {"filters": [blosc2.Filter.BITSHUFFLE]}),
    "delta": Geometry((40, 40), (20, 20), (10, 20), "<u4", {"filters": [blosc2.Filter.DELTA, blosc2.Filter.SHUFFLE]}),
    "truncated": Geometry(
        (40, 40), (20, 20), (10, 20), "<f4", {"filters": [blosc2.Filter.TRUNC_PREC], "filters_meta": [10]}
    ),
    "bytedelta": Geometry(
        (40, 40),
        (20, 20),
        (10, 20),
        "<f4",
        {"filters": [blosc2.Filter.SHUFFLE, blosc2.Filter.BYTEDELTA], "filters_meta": [0, 4]},
    ),
    "dictionary": Geometry((400, 40), (200, 40), (10, 40), "<i4", {**ZSTD, "use_dict": True}),
    "times": Geometry((50,), (20,), (10,), "<M8[s]", ZSTD),
    "larger than the array": Geometry((5, 7), (5, 7), (4, 4), "<f8", ZSTD),
    "one chunk": Geometry((5, 7), (5, 7), (5, 7), "<f8", ZSTD),
    "float16": Geometry((30, 8), (10, 8), (5, 8), "<f2", ZSTD),
}


def write_b2nd(path: Path, geometry: Geometry, values: np.ndarray | None = None, *, sparse: bool = False) -> np.ndarray:
    """Write an array as a contiguous or a sparse frame; returns what the library reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = blosc2.asarray(
        geometry.values() if values is None else values,
        urlpath=str(path),
        mode="w",
        contiguous=not sparse,
        chunks=geometry.chunks,
        blocks=geometry.blocks,
        cparams={"nthreads": 1, **geometry.cparams},
    )
    stored.schunk.vlmeta["note"] = "what users add"
    return read_b2nd(path)


def read_b2nd(path: Path) -> np.ndarray:
    """The values of an array, as the library reads them."""
    return np.asarray(blosc2.open(str(path), mode="r")[()])


def grid(shape: tuple[int, ...], chunk: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The coordinates of all chunks."""
    return itertools.product(*(range(-(-length // edge)) for length, edge in zip(shape, chunk, strict=True)))
