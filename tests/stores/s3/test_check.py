"""Whether a source can be read is said before anything is begun with it, and soon."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from shardfs.errors import NotFoundError, SourceError
from shardfs.stores.s3.requests import Counts, ListPage, Location
from shardfs.stores.s3.store import S3Store


class Client:
    """Answers every listing with *page*, or never."""

    endpoint_url = "https://s3.example.org"

    def __init__(self, page: ListPage | None) -> None:
        self.page = page

    async def list_page(self, prefix: str, **_: Any) -> ListPage:
        if self.page is None:
            await trio.sleep_forever()
        assert self.page is not None
        return self.page

    async def get(self, key: str, *_: Any) -> None:
        raise NotFoundError(key)


def check(url: str, page: ListPage | None) -> float:
    """Look at the source; returns how long that took."""
    reader = S3Store(Client(page), Location.parse(url), Counts())  # type: ignore[arg-type]

    async def timed() -> float:
        began = trio.current_time()
        try:
            await reader.check()
        finally:
            assert trio.current_time() - began <= 15
        return trio.current_time() - began

    return trio.run(timed, clock=MockClock(autojump_threshold=0))


def test_a_server_that_says_nothing_is_given_up() -> None:
    with pytest.raises(SourceError, match=r"https://s3\.example\.org does not answer within 15 seconds"):
        check("s3://bucket/data", None)


def test_a_key_below_which_nothing_is_stored_is_no_source_but_an_empty_bucket_is() -> None:
    nothing = ListPage([], [], None)
    assert check("s3://bucket", nothing) == 0
    with pytest.raises(SourceError, match=r"nothing is stored at s3://bucket/data; .* mount a prefix above it"):
        check("s3://bucket/data", nothing)
    assert check("s3://bucket/data", ListPage([], ["data/c/"], None)) == 0
