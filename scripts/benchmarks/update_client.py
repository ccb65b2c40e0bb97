"""The program that changes single inner chunks, a process of its own.

Standard input holds a JSON object: `how` to change them, the `array`, the `inner` chunk shape, the `chunks` in order,
and the `root` of the mount to flush after each, or null. Standard output gets the seconds for each chunk: until it is
visible, and until it is in its shard.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

Coordinates = tuple[int, ...]
Change = Callable[[Coordinates, npt.NDArray[np.uint16]], None]


def content(shape: Coordinates, turn: int) -> npt.NDArray[np.uint16]:
    """What the chunk that comes as number `turn` is to hold."""
    return np.random.default_rng(turn).integers(0, 2**16, shape, np.uint16)


def selection(chunk: Coordinates, inner: Coordinates) -> tuple[slice, ...]:
    """The elements of one inner chunk."""
    return tuple(slice(i * n, (i + 1) * n) for i, n in zip(chunk, inner, strict=True))


def by_rename(array: str, inner: Coordinates) -> Change:
    """Write a temporary file beside the chunk, and give it the chunk's name, as a Zarr library does."""

    def change(chunk: Coordinates, elements: npt.NDArray[np.uint16]) -> None:
        path = "/".join((array, "c", *map(str, chunk)))
        descriptor = os.open(f"{path}.partial", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        view = elements.data.cast("B")
        written = 0
        while written < len(view):
            written += os.write(descriptor, view[written:])
        os.close(descriptor)
        os.rename(f"{path}.partial", path)

    return change


def by_zarr_python(array: str, inner: Coordinates) -> Change:
    """Assign to the elements of the chunk."""
    import zarr

    opened: Any = zarr.open_array(array, mode="r+")

    def change(chunk: Coordinates, elements: npt.NDArray[np.uint16]) -> None:
        opened[selection(chunk, inner)] = elements

    return change


def by_tensorstore(array: str, inner: Coordinates) -> Change:
    """Write the elements of the chunk, and wait until they are durable."""
    import tensorstore

    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": array}}
    opened = tensorstore.open(spec, open=True).result()

    def change(chunk: Coordinates, elements: npt.NDArray[np.uint16]) -> None:
        opened[selection(chunk, inner)].write(elements).result()

    return change


WAYS: dict[str, Callable[[str, Coordinates], Change]] = {
    "rename": by_rename,
    "zarr-python": by_zarr_python,
    "tensorstore": by_tensorstore,
}


def main() -> None:
    """Change one chunk first: what is opened once does not belong to the time."""
    task = json.load(sys.stdin)
    inner = tuple(task["inner"])
    change = WAYS[task["how"]](task["array"], inner)
    seconds = []
    for turn, chunk in enumerate(task["chunks"]):
        elements = content(inner, turn)
        start = perf_counter()
        change(tuple(chunk), elements)
        visible = perf_counter() - start
        if task["root"] is not None:
            os.setxattr(task["root"], "user.shardfs.flush", b"")
        if turn:
            seconds.append((visible, perf_counter() - start))
    json.dump(seconds, sys.stdout)


if __name__ == "__main__":
    main()
