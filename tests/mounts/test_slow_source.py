"""A source on a file system that keeps its callers waiting: who asks for something else does not wait."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.corpus import array, sharding
from tests.support.datasets import store
from tests.support.mounting import PATIENCE, Mounter, metrics
from tests.support.nfs import client


def read(path: Path) -> bytes:
    return path.read_bytes()


@pytest.mark.parametrize(
    ("wait", "name", "kind", "times"),
    [(os.lstat, "slow-to-find", "lookup", 1), (read, "slow-to-read", "read", 120)],
    ids=["stat", "read"],
)
def test_what_is_slow_keeps_nobody_else_waiting(
    mount: Mounter, tmp_path: Path, wait: Callable[[Path], Any], name: str, kind: str, times: int
) -> None:
    source = tmp_path / "source"
    chunks = store(source / "array", array((8, 8), (8, 8), sharding((4, 4))))
    slow = [source / f"{name}-{number}" for number in range(times)]
    for path in slow:
        path.write_bytes(b"slow")
    held, release = os.pipe()
    place = tmp_path / "shared"
    with client(source, place, held=held), ThreadPoolExecutor(times + 1) as threads:
        try:
            mounted = mount(place)
            key, data = next(iter(chunks.items()))
            assert read(mounted.path / "array" / key) == data
            before, deadline = metrics(mounted.path)["requests"].get(kind, 0), time.monotonic() + PATIENCE
            waiting = [threads.submit(wait, mounted.path / path.name) for path in slow]
            while metrics(mounted.path)["requests"].get(kind, 0) < before + times:
                assert time.monotonic() < deadline
            for _ in range(10):
                assert threads.submit(read, mounted.path / "array" / key).result(PATIENCE) == data
            assert not any(each.done() for each in waiting)
        finally:
            os.close(release)
        for each in waiting:
            each.result()
        mounted.unmount()
    os.close(held)
