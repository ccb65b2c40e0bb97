"""Which chunks a dataset has, and where: as libhdf5 says, and corrected where that is known to be wrong."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import h5py
import numpy as np

from .channel import PipedFile
from .elements import ERRORS, AbsentName

Places = Any
"""Places in a grid: an array of uint64, a row for each."""


def chunk_shape_of(dataset: Any) -> tuple[int, ...]:  # noqa: ANN401 - a DatasetID
    """Return the shape of the chunks of a dataset; raises `AbsentName` if it has none."""
    properties = dataset.get_create_plist()
    if properties.get_layout() != h5py.h5d.CHUNKED:
        raise AbsentName("it has no chunks")
    chunk_shape: tuple[int, ...] = properties.get_chunk()
    return chunk_shape


def chunks_of(dataset: Any, file: PipedFile, grid: Sequence[int], most: int) -> Iterator[bytes]:  # noqa: ANN401
    """Yield the chunks of a dataset within *grid*: four uint64 for each, the position, the offset, the size, the mask.

    The position is that in the grid, in C order. Raises `AbsentName` if there are more than *most*.
    """
    ndim, count = len(dataset.shape), 0
    rows: list[tuple[int, ...]] = []
    parts: list[Any] = []

    def add(chunk: Any) -> bool | None:  # noqa: ANN401 - a StoreInfo
        nonlocal count
        count += 1
        rows.append((*chunk.chunk_offset, chunk.byte_offset, chunk.size, chunk.filter_mask))
        if len(rows) >= 2**14:
            parts.append(np.array(rows, np.uint64))
            rows.clear()
        return True if count > most else None

    dataset.chunk_iter(add)
    if count > most:
        raise AbsentName(f"it has more than {most:,} chunks, which shardfs does not keep in memory")
    parts.append(np.array(rows, np.uint64).reshape(-1, ndim + 3))
    chunk_shape = np.array(chunk_shape_of(dataset), np.uint64)
    lengths = np.array(grid, np.uint64)
    strides = np.array(_strides(grid), np.uint64)
    locate = _locator(dataset, file, [(part[:, :ndim] // chunk_shape, part[:, ndim:]) for part in parts])
    for part in parts:
        places = locate(part[:, :ndim] // chunk_shape)
        packed = np.empty((len(part), 4), "<u8")
        packed[:, 0] = (places * strides).sum(axis=1, dtype=np.uint64)
        packed[:, 1:] = part[:, ndim:]
        yield packed[(places < lengths).all(axis=1)].tobytes()


def _strides(grid: Sequence[int]) -> list[int]:
    strides = [1]
    for length in reversed(grid[1:]):
        strides.append(strides[-1] * length)
    return strides[::-1]


def _locator(dataset: Any, file: PipedFile, parts: Sequence[tuple[Places, Any]]) -> Callable[[Places], Places]:  # noqa: ANN401
    """Return what makes places in the grid of those that libhdf5 says.

    Where one axis is unlimited, and is not the first, libhdf5 may have put chunks in an *extensible array*, and then it
    lists them as if that axis were the last but for those behind it (2.0 does). To find a chunk is right: so one of
    them is looked up, of which only one of both can be true.
    """
    maximum = dataset.get_space().get_simple_extent_dims(True)
    unlimited = [axis for axis, length in enumerate(maximum) if length == h5py.h5s.UNLIMITED]
    if len(unlimited) != 1 or unlimited == [0]:
        return _as_said
    chunk_shape = chunk_shape_of(dataset)
    counts = [-(-length // chunk) for length, chunk in zip(maximum, chunk_shape, strict=True)]

    def as_meant(places: Places) -> Places:
        number = np.zeros(len(places), np.uint64)
        for axis in range(unlimited[0], len(counts)):
            number = number * np.uint64(1 if axis == unlimited[0] else counts[axis]) + places[:, axis]
        meant = np.empty_like(places)
        for axis in reversed(range(len(counts))):
            if axis != unlimited[0]:
                meant[:, axis] = number % np.uint64(counts[axis])
                number = number // np.uint64(counts[axis])
        meant[:, unlimited[0]] = number
        return meant

    for places, entries in parts:
        meant = as_meant(places)
        differs = np.flatnonzero((meant != places).any(axis=1))
        if len(differs):
            row = differs[0]
            offset, nbytes, _ = entries[row].tolist()
            for found, locate in ((places, _as_said), (meant, as_meant)):
                if _is_at(dataset, file, chunk_shape, found[row].tolist(), offset, nbytes):
                    return locate
            raise OSError("its index lists other chunks than it finds")
    return _as_said


def _as_said(places: Places) -> Places:
    return places


def _is_at(
    dataset: Any,  # noqa: ANN401
    file: PipedFile,
    chunk_shape: Sequence[int],
    place: Sequence[int],
    offset: int,
    nbytes: int,
) -> bool:
    """Whether libhdf5 finds the chunk of a place at *offset*; its bytes are not read."""
    start = tuple(at * length for at, length in zip(place, chunk_shape, strict=True))
    if any(at >= length for at, length in zip(start, dataset.shape, strict=True)):
        return False
    with file.without(offset, nbytes) as wanted:
        try:
            dataset.read_direct_chunk(start)
        except ERRORS:
            return False
    return bool(wanted)
