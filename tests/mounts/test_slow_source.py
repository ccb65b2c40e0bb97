"""A source on a file system that keeps its callers waiting: who asks for something else does not wait."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.corpus import array, sharding
from tests.support.datasets import store
from tests.support.mounting import Mounter
from tests.support.shared_home import shared

SLOW_SECONDS = 2.5
AT_ONCE_SECONDS = 1.5
"""Far more than a read takes, also on a machine that is busy with other tests."""


def read(path: Path) -> bytes:
    return path.read_bytes()


@pytest.mark.parametrize(
    ("wait", "name", "times"), [(os.lstat, "slow-to-find", 1), (read, "slow-to-read", 120)], ids=["stat", "read"]
)
def test_what_is_slow_keeps_nobody_else_waiting(
    mount: Mounter, tmp_path: Path, wait: Callable[[Path], Any], name: str, times: int
) -> None:
    source = tmp_path / "source"
    chunks = store(source / "array", array((8, 8), (8, 8), sharding((4, 4))))
    slow = [source / f"{name}-{number}" for number in range(times)]
    for path in slow:
        path.write_bytes(b"slow")
    with shared(source, tmp_path / "shared", slow_seconds=SLOW_SECONDS) as place, ThreadPoolExecutor(times) as threads:
        mounted = mount(place)
        key, data = next(iter(chunks.items()))
        assert read(mounted.path / "array" / key) == data
        waiting = [threads.submit(wait, mounted.path / path.name) for path in slow]
        time.sleep(0.5)
        begun = time.monotonic()
        for _ in range(10):
            assert read(mounted.path / "array" / key) == data
        assert time.monotonic() - begun < AT_ONCE_SECONDS
        assert not any(each.done() for each in waiting)
        for each in waiting:
            each.result()
        mounted.unmount()
