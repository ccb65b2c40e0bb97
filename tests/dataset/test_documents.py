"""Documents that cannot be read or shown unsharded, and those that change while they are read."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from tests.support.corpus import BASE
from tests.support.documents import later, write
from tests.support.gated import GatedStore
from tests.support.opened import in_trio, open_source


@in_trio
async def test_a_reason_is_logged_once(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    source = open_source(root)
    write(root / "a", b"{")
    for _ in range(5):
        await later(source)
        os.utime(root / "a")
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith("a is shown as stored: ")
    write(root / "a", BASE)
    assert (await later(source)).array is not None
    write(root / "a", b"[]")
    await later(source)
    assert len(caplog.records) == 2


@in_trio
async def test_a_document_that_is_rewritten_while_it_is_read_is_read_again(root: Path) -> None:
    writes = 2

    async def rewrite(key: str, offset: int, nbytes: int) -> None:
        nonlocal writes
        if key == "a/zarr.json" and writes:
            writes -= 1
            os.utime(root / "a" / "zarr.json", ns=(writes, writes))

    node = await open_source(root, store=GatedStore(root, rewrite)).hierarchy.node("a")
    assert node.array is not None
