"""The reader of one array in several ways, a process of its own.

Standard input holds a JSON object: `what` is read at `path`, and, for single chunks, the `inner` chunk shape, the
`chunks` in order, and the number of `threads`. Standard output gets the seconds and a checksum.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from numcodecs import Zstd

Task = dict[str, Any]
CHECKED = 16
"""One chunk in so many goes into the checksum, outside of the time."""


def chunk_files(task: Task) -> tuple[float, int]:
    """Read chunk files whole, as they are."""
    paths = [_path(task, chunk) for chunk in task["chunks"]]
    return _timed(task, _read_file, paths)


def decoded_alone(task: Task) -> tuple[float, int]:
    """Decode, with numcodecs alone, the chunk files of an unsharded array that are in memory already."""
    encoded = [_read_file(_path(task, chunk)) for chunk in task["chunks"]]
    return _timed(task, Zstd().decode, encoded)


def chunks_of_zarr(task: Task) -> tuple[float, int]:
    """Read chunks with zarr-python."""
    array = zarr.open_array(task["path"], mode="r")
    inner = task["inner"]
    selections = [
        tuple(slice(c * n, (c + 1) * n) for c, n in zip(chunk, inner, strict=True)) for chunk in task["chunks"]
    ]
    array[selections[0]]
    return _timed(task, lambda selection: np.ascontiguousarray(array[selection]), selections)


def whole_of_zarr(task: Task) -> tuple[float, int]:
    """Read a whole array with zarr-python."""
    array = zarr.open_array(task["path"], mode="r")
    start = perf_counter()
    values = np.asarray(array[...])
    return perf_counter() - start, _checksum(values)


def whole_npy(task: Task) -> tuple[float, int]:
    """Read a whole .npy file into memory."""
    start = perf_counter()
    values: npt.NDArray[Any] = np.load(task["path"])
    return perf_counter() - start, _checksum(values)


def _path(task: Task, chunk: list[int]) -> str:
    return os.path.join(task["path"], *map(str, chunk))


def _read_file(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        wanted = os.fstat(descriptor).st_size
        parts = []
        while wanted:
            parts.append(os.read(descriptor, wanted))
            wanted -= len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        os.close(descriptor)


def _timed(task: Task, read: Callable[[Any], Any], items: list[Any]) -> tuple[float, int]:
    """The seconds to read all items, and a checksum of some."""
    with ThreadPoolExecutor(task["threads"]) as pool:
        start = perf_counter()
        found = list(pool.map(read, items) if task["threads"] > 1 else map(read, items))
        seconds = perf_counter() - start
    return seconds, zlib.crc32(b"".join(bytes(each) for each in found[::CHECKED]))


def _checksum(values: npt.NDArray[Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(values).data)


WAYS: dict[str, Callable[[Task], tuple[float, int]]] = {
    way.__name__: way for way in (chunk_files, decoded_alone, chunks_of_zarr, whole_of_zarr, whole_npy)
}


def main() -> None:
    """Read in the way that is asked for."""
    task = json.load(sys.stdin)
    seconds, checksum = WAYS[task["what"]](task)
    json.dump({"seconds": seconds, "checksum": checksum}, sys.stdout)


if __name__ == "__main__":
    main()
