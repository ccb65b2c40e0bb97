"""Arrays as `.npy` files: a header, then all elements in C order, and from which chunks a part of them comes.

Source: NumPy Enhancement Proposal 1, with version 2.0 of the format as `numpy.lib.format` documents it.
"""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import numpy as np

from shardfs.errors import NotShownError
from shardfs.format.dtype import DataType
from shardfs.format.grid import coords_in_c_order

_MAX_NBYTES: Final = 2**63 - 1


class Box(NamedTuple):
    """A part of an array: from *start* to *stop* along each axis; its elements are contiguous in C order."""

    start: tuple[int, ...]
    stop: tuple[int, ...]


class Copy(NamedTuple):
    """Elements to copy from one chunk: an array of *shape*.

    The first element is at *source* in the chunk and goes to *target* in the reply, counted in elements.
    *target_strides* are the strides in the reply; those in the chunk follow from its shape.
    """

    shape: tuple[int, ...]
    source: int
    target: int
    target_strides: tuple[int, ...]


def npy_header(data_type: DataType, shape: tuple[int, ...]) -> bytes:
    """Return the header of a file in C order, as NumPy writes it.

    Raises `NotShownError` for a type that NumPy does not have.
    """
    if not data_type.is_native:
        raise NotShownError(f"the data type {data_type.name} has no .npy form")
    descr = np.lib.format.dtype_to_descr(data_type.dtype)
    for write in (np.lib.format.write_array_header_1_0, np.lib.format.write_array_header_2_0):
        parts: list[bytes] = []
        with suppress(ValueError):  # it is too long, or not Latin-1
            write(SimpleNamespace(write=parts.append), {"descr": descr, "fortran_order": False, "shape": shape})
            return b"".join(parts)
    raise NotShownError(f"the data type {data_type.name} does not fit into the header of an .npy file")


@dataclass(frozen=True, slots=True)
class NpyFile:
    """The .npy file of an array of *shape*, in chunks of *chunk_shape*, with elements of *item_nbytes* bytes."""

    header: bytes
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    item_nbytes: int

    @classmethod
    def of(cls, data_type: DataType, shape: tuple[int, ...], chunk_shape: tuple[int, ...]) -> "NpyFile":
        """Describe the file of an array; raises `NotShownError` if it has no .npy form."""
        file = cls(npy_header(data_type, shape), shape, chunk_shape, data_type.nbytes)
        if file.nbytes > _MAX_NBYTES:
            raise NotShownError(f"its {file.nbytes} bytes are more than a file can have")
        return file

    @property
    def nbytes(self) -> int:
        """Size of the file in bytes."""
        return len(self.header) + math.prod(self.shape) * self.item_nbytes

    @property
    def item(self) -> np.dtype[Any]:
        """A data type of the same size, for copying elements byte for byte."""
        return np.dtype(f"u{self.item_nbytes}" if self.item_nbytes in (1, 2, 4, 8) else f"V{self.item_nbytes}")

    @property
    def chunk_strides(self) -> tuple[int, ...]:
        """The strides of a chunk, in elements."""
        return _strides(self.chunk_shape)

    def boundary(self, start: int, stop: int) -> int:
        """Return a good end, at most *stop*, for a read of elements that begins at byte *start*.

        It is the end of the last whole plane, row or element, so that few copies are needed.
        """
        stop = min(stop, self.nbytes - len(self.header))
        for stride in _strides(self.shape):
            end = stop - stop % (stride * self.item_nbytes)
            if end > start:
                return end
        return stop

    def ncopies(self, first: int, last: int) -> int:
        """Return the number of copies that `plan` would return."""
        return sum(
            math.prod(
                (stop - 1) // length - start // length + 1
                for start, stop, length in zip(box.start, box.stop, self.chunk_shape, strict=True)
            )
            for box in boxes(self.shape, first, last)
        )

    def plan(self, first: int, last: int) -> dict[tuple[int, ...], list[Copy]]:
        """Return the copies from chunks that make up the elements *first* to *last* − 1 of the array, in C order.

        Chunks are named by their coordinates. Elements are counted within chunks of full shape, and within the reply.
        """
        copies: dict[tuple[int, ...], list[Copy]] = {}
        target = 0
        for box in boxes(self.shape, first, last):
            box_shape = tuple(stop - start for start, stop in zip(box.start, box.stop, strict=True))
            strides = _strides(box_shape)
            axes = [
                list(_cut(start, stop, length, chunk_stride, stride))
                for start, stop, length, chunk_stride, stride in zip(
                    box.start, box.stop, self.chunk_shape, self.chunk_strides, strides, strict=True
                )
            ]
            for cuts in product(*axes):
                coords = tuple([cut.chunk for cut in cuts])
                shape = tuple([cut.length for cut in cuts])
                source = sum([cut.source for cut in cuts])
                at = target + sum([cut.target for cut in cuts])
                copies.setdefault(coords, []).append(Copy(shape, source, at, strides))
            target += math.prod(box_shape)
        return copies


def boxes(shape: tuple[int, ...], first: int, last: int) -> Iterator[Box]:
    """Yield the fewest boxes that make up the elements *first* to *last* − 1 of an array of *shape*, in C order."""
    while first < last:
        # The first axis along which the next box has more than one element; along all later axes it has all.
        size, axis = 1, len(shape)
        while axis > 0 and first % (size * shape[axis - 1]) == 0 and first + size * shape[axis - 1] <= last:
            axis -= 1
            size *= shape[axis]
        start = coords_in_c_order(first, shape)
        stop = [i + 1 for i in start[:axis]] + list(shape[axis:])
        if axis > 0:
            count = min((last - first) // size, shape[axis - 1] - start[axis - 1])
            stop[axis - 1] = start[axis - 1] + count
            size *= count
        yield Box(start, tuple(stop))
        first += size


class _Cut(NamedTuple):
    """The part of one chunk in a range along one axis: *length* elements; *source* and *target* as in `Copy`."""

    chunk: int
    length: int
    source: int
    target: int


def _cut(start: int, stop: int, length: int, source_stride: int, target_stride: int) -> Iterator[_Cut]:
    position = start
    while position < stop:
        chunk, offset = divmod(position, length)
        count = min(length - offset, stop - position)
        yield _Cut(chunk, count, offset * source_stride, (position - start) * target_stride)
        position += count


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    return tuple(strides)
