"""One of several programs that write inner chunks into the same shards at the same time, a process of its own.

Standard input holds a JSON object in a line: `how` to write (`store`, `files`, `tensorstore` or `zarr-python`), the
`array`, a path, its `inner` chunk shape, and the `blocks` of the array to write in order, each a list of pairs.
Standard output gets a line when the array is open. After one more line of input they are written, and a last line of
output says that they are in their shards; only `files` on a mount are not before somebody flushes that.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from .update_client import content

PAYLOADS = 8
"""Different chunks that take turns."""

Block = tuple[slice, ...]


def values(block: Block, inner: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """What is written to a block, of which each inner chunk has one of the payloads."""
    *counts, _ = [(part.stop - part.start) // length for part, length in zip(block, inner, strict=True)]
    row = [
        _payload(inner, begin // inner[-1] % PAYLOADS) for begin in range(block[-1].start, block[-1].stop, inner[-1])
    ]
    return np.tile(np.concatenate(row, axis=-1), (*counts, 1))


_payload = cache(content)


@contextmanager
def writing(
    how: str, array: str, inner: tuple[int, ...]
) -> Iterator[tuple[Callable[[Block], None], Callable[[], None]]]:
    """Open the array; yields what writes a block, and what brings everything into shards."""
    if how == "store":
        import zarr

        import shardfs

        with shardfs.open(array, write=True) as dataset:
            target = zarr.open_array(dataset.store(), mode="r+")
            yield lambda block: target.__setitem__(block, values(block, inner)), dataset.flush
    elif how == "files":

        def write_file(block: Block) -> None:
            name = "/".join(str(part.start // length) for part, length in zip(block, inner, strict=True))
            Path(array, "c", name).write_bytes(values(block, inner).tobytes())

        yield write_file, lambda: None
    elif how == "tensorstore":
        import tensorstore

        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{array}/"}}
        opened = tensorstore.open(spec, read=True, write=True).result()
        yield lambda block: opened[block].write(values(block, inner)).result(), lambda: None
    else:
        import zarr

        native = zarr.open_array(array, mode="r+")
        yield lambda block: native.__setitem__(block, values(block, inner)), lambda: None


def main() -> None:
    """Open, say so, wait, write, and say so."""
    task = json.loads(sys.stdin.readline())
    blocks = [tuple(slice(*pair) for pair in block) for block in task["blocks"]]
    with writing(task["how"], task["array"], tuple(task["inner"])) as (write, commit):
        print("open", flush=True)
        sys.stdin.readline()
        for block in blocks:
            write(block)
        commit()
        print("done", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main()
