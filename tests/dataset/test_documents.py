"""Documents that cannot be read or shown unsharded, and those that change while they are read."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest
import trio

from shardfs.format.metadata import ArrayMetadata
from tests.support.corpus import BASE, BROKEN
from tests.support.documents import later, write
from tests.support.gated import GatedStore
from tests.support.opened import in_trio, open_source


@pytest.mark.parametrize("broken", BROKEN[::6], ids=lambda broken: broken.name)
@in_trio
async def test_what_cannot_be_shown_unsharded_has_a_reason(root: Path, broken: Any) -> None:
    write(root / "a", broken.document)
    source = open_source(root)
    node = await source.hierarchy.node("a")
    assert node.array is None
    assert node.reason or (isinstance(node.metadata, ArrayMetadata) and not node.metadata.is_sharded)
    assert node.document == (root / "a" / "zarr.json").read_bytes()
    assert (await source.hierarchy.node("")).reason is None


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


@pytest.mark.parametrize("kind", ["directory", "pipe", "link out", "loop", "not UTF-8", "empty", "too deep"])
@in_trio
async def test_documents_that_cannot_be_read_are_a_reason(root: Path, kind: str) -> None:
    path = root / "a" / "zarr.json"
    os.unlink(path)
    match kind:
        case "directory":
            os.mkdir(path)
        case "pipe":
            os.mkfifo(path)
        case "link out":
            os.symlink("/etc/hostname", path)
        case "loop":
            os.symlink("zarr.json", path)
        case "not UTF-8":
            path.write_bytes(b"\xff")
        case "empty":
            path.write_bytes(b"")
        case "too deep":
            path.write_bytes(b"[" * 10**6)
    with trio.fail_after(5):
        node = await open_source(root).hierarchy.node("a")
    assert node.array is None
    assert node.reason


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
