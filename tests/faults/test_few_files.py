"""Processes that may open few files: the error says so, and nothing is taken for damage."""

import errno
import os
import resource
from contextlib import ExitStack
from pathlib import Path

from shardfs.stores.objects.disk_cache import DiskCache
from shardfs.stores.objects.requests import Counts
from tests.support.commands import run
from tests.support.corpus import array, sharding
from tests.support.datasets import store
from tests.support.mounting import refuses


def test_a_mount_that_may_open_no_more_files_says_so(tmp_path: Path) -> None:
    source, place = tmp_path / "source", tmp_path / "place"
    store(source / "image", array((8, 12), (4, 6), sharding((2, 3))))
    for number in range(100):
        (source / f"{number}.txt").write_bytes(b"plain")
    place.mkdir()
    few = ("sh", "-c", 'ulimit -n 64; exec "$@"', "sh")
    assert run("mount", source, place, prefix=few).returncode == 0
    try:
        with ExitStack() as opened, refuses(errno.EMFILE):
            for number in range(100):
                opened.enter_context(open(place / f"{number}.txt", "rb"))
        assert (place / "99.txt").read_bytes() == b"plain"
    finally:
        assert run("umount", place).returncode == 0


def test_a_cache_whose_files_cannot_be_opened_for_lack_of_descriptors_keeps_them(tmp_path: Path) -> None:
    counts = Counts()
    cache = DiskCache(str(tmp_path), 2**20, counts)
    cache.add("key", '"etag"', 0, b"bytes")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        assert cache.find("key", '"etag"', 0, 5) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert cache.find("key", '"etag"', 0, 5) == b"bytes"
    assert counts.cache_damaged == 0
