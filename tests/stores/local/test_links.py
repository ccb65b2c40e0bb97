"""Symbolic links: followed inside the source, never out of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardfs.errors import CorruptionError, NotFoundError, OutsideSourceError
from shardfs.stores.local import syscalls
from shardfs.stores.local.tree import LocalStore
from tests.support.opened import in_trio

INSIDE, OUTSIDE = b"inside", b"secret"


@pytest.fixture(params=[True, False], ids=["openat2", "walk"])
def source(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source with a file and a directory, beside a file and a directory that are none of its business."""
    if not request.param:
        monkeypatch.setattr(syscalls, "_has_openat2", lambda: False)
    source = tmp_path / "source"
    (source / "a" / "b").mkdir(parents=True)
    (source / "a" / "b" / "f").write_bytes(INSIDE)
    (source / "f").write_bytes(INSIDE)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_bytes(OUTSIDE)
    (tmp_path / "source-f").write_bytes(OUTSIDE)
    return source


async def read(source: Path, key: str) -> bytes:
    snapshot = await LocalStore(str(source)).open(key)
    return bytes(await snapshot.read(0, snapshot.size))


@pytest.mark.parametrize(
    ("links", "key"),
    [
        ({"l": "f"}, "l"),
        ({"l": "./a/./b//f"}, "l"),
        ({"a/l": "../f"}, "a/l"),
        ({"a/b/l": "../../f"}, "a/b/l"),
        ({"a/b/l": "../../a/b/../../f"}, "a/b/l"),
        ({"l": "a/b"}, "l/f"),
        ({"l": "a/b/"}, "l/f"),
        ({"l": "a", "a/m": "b/../b"}, "l/m/f"),
        ({"l": "m", "m": "n", "n": "f"}, "l"),
        ({"l": "a/m", "a/m": "../f"}, "l"),
        ({"a/here": "."}, "a/here/here/here/b/f"),
        ({"a/up": ".."}, "a/up/a/up/f"),
        ({f"l{i}": f"l{i + 1}" for i in range(30)} | {"l30": "f"}, "l0"),
    ],
    ids=lambda value: str(value)[:40],
)
@in_trio
async def test_links_inside_are_followed(source: Path, links: dict[str, str], key: str) -> None:
    for name, target in links.items():
        (source / name).symlink_to(target)
    assert await read(source, key) == INSIDE


@pytest.mark.parametrize(
    ("links", "key"),
    [
        ({"l": "{outside}/f"}, "l"),
        ({"l": "/"}, "l/etc/passwd"),
        ({"l": "../outside/f"}, "l"),
        ({"l": "../source-f"}, "l"),
        ({"l": ".."}, "l/outside/f"),
        ({"a/l": "../../outside/f"}, "a/l"),
        ({"a/l": "../../source/f"}, "a/l"),
        ({"a/b/l": "../../../outside"}, "a/b/l/f"),
        ({"l": "m", "m": "n", "n": "../outside/f"}, "l"),
        ({"l": "a/up", "a/up": ".."}, "l/../outside/f"),
        ({"l": "a", "a/m": "../../outside"}, "l/m/f"),
        ({"l": "a/b/../../../outside/f"}, "l"),
        ({"l": "{outside}"}, "l/f"),
        ({"l": "../../../../../../../../etc/passwd"}, "l"),
        ({}, "../outside/f"),
        ({}, "a/../../outside/f"),
    ],
    ids=lambda value: str(value)[:40],
)
@in_trio
async def test_links_out_are_refused_and_not_read(source: Path, links: dict[str, str], key: str) -> None:
    for name, target in links.items():
        (source / name).symlink_to(target.format(outside=source.parent / "outside"))
    store = LocalStore(str(source))
    for request in (store.open, store.list):
        with pytest.raises(OutsideSourceError):
            await request(key)
    with pytest.raises(OutsideSourceError):
        await store.stat(key + "/x")
    with pytest.raises(OutsideSourceError):
        await store.stat_in(key, ["f"])


@pytest.mark.parametrize(
    "links", [{"l": "l"}, {"l": "m", "m": "l"}, {"l": "./l/f"}, {"l": "a/m", "a/m": "../l"}], ids=str
)
@in_trio
async def test_loops_end(source: Path, links: dict[str, str]) -> None:
    for name, target in links.items():
        (source / name).symlink_to(target)
    store = LocalStore(str(source))
    for request in (store.open, store.list):
        with pytest.raises(CorruptionError):
            await request("l")
    with pytest.raises(CorruptionError):
        await store.stat("l/f")


@in_trio
async def test_a_link_to_nothing_is_damage_and_not_absence(source: Path) -> None:
    (source / "l").symlink_to("gone")
    (source / "m").symlink_to("gone/../f")
    for key in ("l", "l/f", "m"):
        with pytest.raises(CorruptionError):
            await read(source, key)


@in_trio
async def test_a_source_that_is_moved_stays_open(source: Path) -> None:
    store = LocalStore(str(source))
    os.rename(source, source.parent / "moved")
    os.symlink("outside", source)
    assert (await store.open("f")).size == len(INSIDE)
    assert {entry.name for entry in await store.list("")} == {"a", "f"}


@in_trio
async def test_the_real_root_is_no_way_around(source: Path) -> None:
    """`..` of the source itself, by whatever name the source was opened."""
    (source.parent / "alias").symlink_to("source")
    store = LocalStore(str(source.parent / "alias"))
    (source / "up").symlink_to("..")
    with pytest.raises(OutsideSourceError):
        await store.open("up/source/f")
    with pytest.raises(OutsideSourceError):
        await store.list("up")
    assert os.readlink(source / "up") == ".."


@in_trio
async def test_a_path_may_be_longer_than_one_call_takes(source: Path) -> None:
    names = ["n" * 250] * 20
    directory = os.open(source, os.O_RDONLY)
    for name in names:
        os.mkdir(name, dir_fd=directory)
        inner = os.open(name, os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = inner
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=directory))
    os.close(directory)
    store = LocalStore(str(source))
    assert (await store.open("/".join([*names, "f"]))).size == 0
    with pytest.raises(NotFoundError):
        await store.open("/".join([*names, "g"]))
