"""The program that reads or changes inner chunks of a sharded array in S3 with a library, a process of its own.

Standard input holds a JSON object: the `library`, whether to `write`, the `endpoint`, the `bucket` and the `prefix` of
the array, the `inner` chunk shape, and the `chunks` in order. Standard output gets the seconds for each chunk, and a
checksum of those that were read. Opening the array does not belong to the time.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from .update_client import content, selection

CACHE_BYTES = 100_000_000
"""What tensorstore may keep: enough for the indexes of shards, which it reads again for each chunk otherwise."""


def by_zarr_python(task: dict[str, Any]) -> Any:
    """Open with the store that zarr-python has for obstore, the faster of its two."""
    import zarr
    from obstore.store import S3Store
    from zarr.storage import ObjectStore

    store = S3Store(
        task["bucket"],
        prefix=task["prefix"],
        endpoint=task["endpoint"],
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    return zarr.open_array(ObjectStore(store), mode="r+" if task["write"] else "r")


def by_tensorstore(task: dict[str, Any]) -> Any:
    """Open with a cache that believes what it read once."""
    import tensorstore

    kvstore = {"driver": "s3", "bucket": task["bucket"], "path": task["prefix"] + "/", "endpoint": task["endpoint"]}
    spec = {
        "driver": "zarr3",
        "kvstore": kvstore | {"aws_region": "us-east-1"},
        "context": {"cache_pool": {"total_bytes_limit": CACHE_BYTES}},
        "recheck_cached_data": "open",
    }
    return tensorstore.open(spec, open=True).result()


LIBRARIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "zarr-python": by_zarr_python,
    "tensorstore": by_tensorstore,
}


def read(array: Any, where: tuple[slice, ...]) -> npt.NDArray[Any]:
    """The elements of one chunk."""
    found = array[where]
    return np.asarray(found.read().result() if hasattr(found, "read") else found)


def write(array: Any, where: tuple[slice, ...], elements: npt.NDArray[Any]) -> None:
    """Store them, and wait until they are."""
    if hasattr(array, "kvstore"):
        array[where].write(elements).result()
    else:
        array[where] = elements


def main() -> None:
    """Open the array, and read or change the chunks one by one."""
    task = json.load(sys.stdin)
    array = LIBRARIES[task["library"]](task)
    seconds, checksum = [], 0
    for turn, chunk in enumerate(task["chunks"]):
        where = selection(tuple(chunk), tuple(task["inner"]))
        if task["write"]:
            elements = content(tuple(task["inner"]), turn)
            start = perf_counter()
            write(array, where, elements)
        else:
            start = perf_counter()
            elements = read(array, where)
        seconds.append(perf_counter() - start)
        checksum = zlib.crc32(elements.tobytes(), checksum)
    json.dump({"seconds": seconds, "checksum": checksum}, sys.stdout)


if __name__ == "__main__":
    main()
