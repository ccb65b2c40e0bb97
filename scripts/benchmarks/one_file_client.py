"""The program that reads chunks of a file with h5py, by zarr-python, or by shardfs's store, a process of its own.

Standard input holds a JSON object: the `file`, with what to read it (`by`), the `rows` of chunks in order, and what to
read (`do`): their bytes as `stored`, their `elements`, or these `decoded` by shardfs, if that reads them. Standard
output gets the seconds for all but the first, and a checksum.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter
from typing import Any

import zarr
from zarr.storage import ZipStore

import shardfs


def reader(stack: ExitStack, task: dict[str, Any]) -> Callable[[int], Any]:
    """Open the file, until the end of *stack*, and return what reads one chunk."""
    if task["by"] == "h5py":
        import h5py

        array = stack.enter_context(h5py.File(task["file"]))["x"]
        nrows = array.chunks[0]
        if task["do"] == "stored":
            return lambda row: array.id.read_direct_chunk((row * nrows, 0, 0))[1]
        return lambda row: array[row * nrows : (row + 1) * nrows]
    if task["by"] == "ZipStore":
        from zarr.buffer import default_buffer_prototype
        from zarr.core.sync import sync

        store = stack.enter_context(ZipStore(task["file"]))
        if task["do"] == "stored":
            prototype = default_buffer_prototype()

            def read(row: int) -> bytes:
                found = sync(store.get(f"x/c/{row}/0/0", prototype))
                assert found is not None
                return found.to_bytes()

            return read
        return _elements(zarr.open_array(store, path="x", mode="r"))
    dataset = stack.enter_context(shardfs.open(task["file"], decode=task["do"] == "decoded"))
    if task["do"] == "stored":
        files = dataset.filesystem()
        return lambda row: files.cat_file(f"x/c/{row}/0/0")
    return _elements(zarr.open_array(dataset.store(), path="x", mode="r"))


def _elements(array: Any) -> Callable[[int], Any]:
    length = array.chunks[0]
    return lambda row: array[row * length : (row + 1) * length]


def main() -> None:
    """Read a first chunk: what is opened once does not belong to the time."""
    task = json.load(sys.stdin)
    with ExitStack() as stack:
        read = reader(stack, task)
        first, *rows = task["rows"]
        read(first)
        start = perf_counter()
        found = [read(row) for row in rows]
        seconds = perf_counter() - start
        checksum = 0
        for data in found[::16]:
            checksum = zlib.crc32(data if task["do"] == "stored" else data.tobytes(), checksum)
    json.dump({"seconds": seconds, "checksum": checksum}, sys.stdout)


if __name__ == "__main__":
    main()
