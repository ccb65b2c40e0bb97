"""Bodies that hold old bytes beside new ones: these are fetched with few requests, of one version, before all else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from shardfs.errors import ConflictError, StoreError
from shardfs.stores.base import Kept
from shardfs.stores.s3.bodies import body_of
from shardfs.stores.s3.parts import MIB, Sent
from tests.stores.splices import content
from tests.support.fake_s3 import FakeS3

OLD = bytes(i * 7 % 251 for i in range(1000))
PIECES = (content(b"new"), Kept(5, 20), Kept(40, 10), content(b""), content(b"newer"), Kept(0, 3))
WHOLE = b"new" + OLD[5:25] + OLD[40:50] + b"newer" + OLD[:3]


@given(st.data())
def test_any_part_of_a_body_can_be_read_in_any_order(data: st.DataObject) -> None:
    async def main() -> None:
        fake = FakeS3()
        etag = fake.store("k", OLD).etag
        async with body_of(Sent(PIECES), fake.client, "k", etag, "/tmp") as body:
            assert body.nbytes == len(WHOLE)
            for _ in range(3):
                start = data.draw(st.integers(0, len(WHOLE)))
                stop = data.draw(st.integers(start, len(WHOLE)))
                assert bytes(body.read(start, stop - start)) == WHOLE[start:stop]

    trio.run(main)


def test_old_bytes_are_fetched_once_however_often_they_are_read() -> None:
    async def main() -> None:
        fake = FakeS3()
        etag = fake.store("k", OLD).etag
        async with body_of(Sent(PIECES), fake.client, "k", etag, "/tmp") as body:
            for _ in range(2):
                assert bytes(body.read(0, body.nbytes)) == WHOLE
        assert [(request.range, request.etag) for request in fake.take_log()] == [("5-49", etag), ("0-2", etag)]

    trio.run(main)


def test_another_version_is_a_conflict_before_anything_is_sent() -> None:
    async def main() -> None:
        fake = FakeS3()
        etag = fake.store("k", OLD).etag
        fake.store("k", OLD[::-1])
        with pytest.raises(ConflictError):
            async with body_of(Sent(PIECES), fake.client, "k", etag, "/tmp"):
                pass

    trio.run(main)


def test_fewer_bytes_than_were_asked_for_are_never_sent() -> None:
    async def main() -> None:
        fake = FakeS3()
        etag = fake.store("k", OLD).etag
        fake.objects["k"].data = OLD[:45]
        with pytest.raises(StoreError, match="came as 40"):
            async with body_of(Sent(PIECES), fake.client, "k", etag, "/tmp"):
                pass

    trio.run(main)


def test_many_old_bytes_are_held_in_a_file_without_a_name(tmp_path: Path) -> None:
    old = OLD * (12 * MIB // len(OLD))

    async def main() -> None:
        fake = FakeS3()
        etag = fake.store("k", old).etag
        async with body_of(Sent((Kept(0, len(old)),)), fake.client, "k", etag, str(tmp_path)) as body:
            assert bytes(body.read(len(old) - 5, 5)) == old[-5:]
            assert os.listdir(tmp_path) == []
            assert open_files_below(tmp_path) == 1

    trio.run(main)
    assert open_files_below(tmp_path) == 0


def open_files_below(directory: Path) -> int:
    links = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sum(link.startswith(f"{directory}/") for link in links)
