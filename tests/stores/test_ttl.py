"""For how long what was seen is believed, within a request and without one."""

from __future__ import annotations

import time

import pytest
import trio

from shardfs.errors import NotFoundError
from shardfs.stores.ttl import one_request
from tests.support.fake_s3 import FakeS3
from tests.support.s3_reading import lists, on_mock_clock, reader_of


@on_mock_clock
async def test_a_request_asks_for_a_name_once_and_the_next_one_again() -> None:
    fake = FakeS3()
    fake.store("d/k", b"k")
    store = reader_of(fake, ttl=0, clock=time.monotonic)
    for _ in range(2):
        with one_request():
            for _ in range(3):
                assert (await store.stat("d/k")).size == 1
                with pytest.raises(NotFoundError):
                    await store.stat("x")
        assert fake.take_log() == lists("d/k", "x")


def test_a_request_does_not_believe_a_listing_that_began_before_it() -> None:
    async def main() -> None:
        fake = FakeS3(latency=0.1)
        fake.store("d/k", b"k")
        store = reader_of(fake, ttl=0, clock=time.monotonic)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.list, "d")
            await trio.sleep(0.01)
            with one_request():
                await store.list("d")  # on its way already
                await store.list("d")
                await store.list("d")
        assert fake.take_log() == lists("d/", "d/")

    trio.run(main)
