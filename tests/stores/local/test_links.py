"""Symbolic links: followed inside the source, never out of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardfs.errors import CorruptionError, OutsideSourceError
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
        ({"l": "./a/./b//f"}, "l"),
        ({"a/b/l": "../../a/b/../../f"}, "a/b/l"),
        ({"l": "a/b/"}, "l/f"),
        ({"l": "a", "a/m": "b/../b"}, "l/m/f"),
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
        ({"l": "../source-f"}, "l"),
        ({"l": ".."}, "l/outside/f"),
        ({"l": ".."}, "l/source/f"),
        ({"a/l": "../../source/f"}, "a/l"),
        ({"a/b/l": "../../../outside"}, "a/b/l/f"),
        ({"l": "m", "m": "n", "n": "../outside/f"}, "l"),
        ({"l": "a/up", "a/up": ".."}, "l/../outside/f"),
        ({"l": "a/b/../../../outside/f"}, "l"),
        ({"l": "../../../../../../../../etc/passwd"}, "l"),
        ({}, "a/../../outside/f"),
    ],
    ids=lambda value: str(value)[:40],
)
@in_trio
async def test_links_out_are_refused_and_not_read(source: Path, links: dict[str, str], key: str) -> None:
    for name, target in links.items():
        (source / name).symlink_to(target.format(outside=source.parent / "outside"))
    (source.parent / "alias").symlink_to("source")
    store = LocalStore(str(source.parent / "alias"))
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
