"""The program that reads or changes an array with zarr-python, natively or by shardfs's store, a process of its own.

Standard input holds a JSON object: the `array`, a path or an s3:// URL, whether to open it `by_store`, its `inner`
chunk shape, the `chunks` in order, and what to do: `read` them one by one, read the `whole` array, `write` them one by
one, or `write-all` of them before the first is committed. Standard output gets the seconds for each chunk, or for all,
and a checksum of what was read. Natively a chunk is in its shard when it is written; by the store, after a flush.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import zarr

import shardfs

from .update_client import content, selection

CHECKED = 16
"""One chunk in so many goes into the checksum."""
PAYLOADS = 8
"""Different chunks that take turns."""


class Subject(NamedTuple):
    """An array, and what brings into the shards what was written to it."""

    array: Any
    commit: Any


@contextmanager
def opened(task: dict[str, Any]) -> Iterator[Subject]:
    """Open the array for the length of a block."""
    writes = task["do"].startswith("write")
    mode = "r+" if writes else "r"
    if task["by_store"]:
        with shardfs.open(task["array"], write=writes) as dataset:
            yield Subject(zarr.open_array(dataset.store(), mode=mode), dataset.flush)
        return
    yield Subject(zarr.open_array(native(task["array"]), mode=mode), lambda: None)


def native(array: str) -> Any:
    """The store that zarr-python has for a directory, or the faster of its two for S3."""
    from zarr.storage import LocalStore, ObjectStore

    if not array.startswith("s3://"):
        return LocalStore(array)
    from obstore.store import S3Store

    bucket, _, prefix = array.removeprefix("s3://").partition("/")
    store = S3Store(
        bucket,
        prefix=prefix,
        endpoint=os.environ["AWS_ENDPOINT_URL"],
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    return ObjectStore(store)


def main() -> None:
    """Read or write a first chunk: what is opened once does not belong to the time."""
    task = json.load(sys.stdin)
    inner = tuple(task["inner"])
    first, *places = [selection(tuple(chunk), inner) for chunk in task["chunks"]]
    checksum = 0
    with opened(task) as (array, commit):
        contents = [content(inner, turn) for turn in range(PAYLOADS)] if task["do"].startswith("write") else []
        if contents:
            array[first] = contents[0]
            commit()
        else:
            array[first]
        seconds, found, start = [], [], perf_counter()
        match task["do"]:
            case "whole":
                found.append(array[...])
            case "read":
                found += [array[place] for place in places]
            case "write":
                for turn, place in enumerate(places, 1):
                    start = perf_counter()
                    array[place] = contents[turn % PAYLOADS]
                    commit()
                    seconds.append(perf_counter() - start)
            case "write-all":
                for turn, place in enumerate(places, 1):
                    array[place] = contents[turn % PAYLOADS]
                commit()
        total = perf_counter() - start
        for elements in found[:: 1 if task["do"] == "whole" else CHECKED]:
            checksum = zlib.crc32(np.ascontiguousarray(elements).data.cast("B"), checksum)
    json.dump({"seconds": seconds or [total], "checksum": checksum}, sys.stdout)


if __name__ == "__main__":
    main()
