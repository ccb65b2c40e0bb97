"""Reads of local files: one version or `StaleError`, what is not there told from damage, and no link followed out."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shardfs.errors import CorruptionError, NotADirectoryHereError, NotFoundError, OutsideSourceError, StaleError
from shardfs.stores.local import syscalls
from shardfs.stores.local.reader import LocalSnapshot
from shardfs.stores.local.tree import LocalStore
from tests.stores.local.splices import content_of
from tests.support.datasets import LONG_AGO, age
from tests.support.opened import in_trio

OLD = b"old content, " * 100


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("gone/f", NotFoundError),
        ("dangling", CorruptionError),
        ("pipe", CorruptionError),
        ("d/f/x", NotADirectoryHereError),
        ("d/" + "x" * 300 + "/f", NotFoundError),
        ("/".join(["x" * 200] * 30), NotFoundError),
        ("a\0b", NotFoundError),
        ("\ud800", NotFoundError),
    ],
    ids=lambda value: ascii(value)[:20],
)
@in_trio
async def test_what_is_not_there_is_told_from_what_is_damaged(
    tmp_path: Path, key: str, expected: type[Exception]
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    store = LocalStore(str(tmp_path))
    with pytest.raises(expected):
        await store.open(key)
    with pytest.raises(NotADirectoryHereError if key == "pipe" else expected):
        await store.list(key)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "f"
    path.write_bytes(OLD)
    age(tmp_path)
    return path


async def opened(path: Path) -> LocalSnapshot:
    return await LocalStore(str(path.parent)).open(path.name)


def write(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def append(path: Path, data: bytes = b"appended") -> None:
    write(path, path.stat().st_size, data)


def shorten(path: Path) -> None:
    """Make the file shorter, under its old time."""
    os.truncate(path, len(OLD) - 1)
    os.utime(path, ns=(LONG_AGO, LONG_AGO))


CHANGES: dict[str, Callable[[Path], object]] = {
    "touch": os.utime,
    "overwrite": lambda path: write(path, 3, b"x"),
    "append": append,
    "shorten": shorten,
    "empty": lambda path: os.truncate(path, 0),
    "replace": lambda path: path.write_bytes(b"new content, " * 100),
}


@pytest.mark.parametrize("name", CHANGES)
@in_trio
async def test_a_change_in_place_is_stale(path: Path, name: str) -> None:
    store = LocalStore(str(path.parent))
    snapshot = await store.open(path.name)
    os.chmod(path, 0o600)
    os.link(path, path.parent / "other")
    assert bytes(await snapshot.read(0, len(OLD))) == OLD, "another name is no change"
    CHANGES[name](path)
    for _ in range(2):
        with pytest.raises(StaleError):
            await snapshot.read(0, 5)
        assert not await snapshot.is_current()
        assert name == "append" or not await snapshot.accept_growth(100, OLD[100:200])
        again = await store.open(path.name)
        assert bytes(await again.read(0, again.size)) == content_of(path)


@in_trio
async def test_growth_that_left_the_content_is_accepted(path: Path) -> None:
    snapshot = await opened(path)
    for _ in range(2):
        append(path)
        with pytest.raises(StaleError):
            await snapshot.read(0, 5)
        assert await snapshot.accept_growth(100, OLD[100:200])
        assert bytes(await snapshot.read(0, len(OLD) + 8)) == OLD + b"appended"
    write(path, 150, b"!")
    append(path)
    assert not await snapshot.accept_growth(100, OLD[100:200])
    with pytest.raises(StaleError):
        await snapshot.read(0, 5)


@pytest.mark.parametrize(("nbytes", "moved_ns"), [(3, 0), (3, 10**9), (0, 0)], ids=["some", "some, later", "all"])
@in_trio
async def test_growth_that_is_taken_back_is_accepted_by_who_has_read_nothing_of_it(
    path: Path, nbytes: int, moved_ns: int
) -> None:
    store = LocalStore(str(path.parent))
    snapshot = await store.open(path.name)
    append(path)
    assert await snapshot.accept_growth(100, OLD[100:200])
    other = await store.open(path.name)
    os.truncate(path, len(OLD) + nbytes)
    os.utime(path, ns=(LONG_AGO, LONG_AGO + moved_ns))
    assert await snapshot.accept_growth(100, OLD[100:200])
    assert bytes(await snapshot.read(0, len(OLD))) == OLD
    append(path)
    assert await snapshot.accept_growth(100, OLD[100:200])
    with pytest.raises(StaleError):
        await other.read(0, 5)
    assert not await other.accept_growth(len(OLD), b"appended")


@in_trio
async def test_what_was_appended_in_place_of_what_was_taken_back_is_not_read_as_that(path: Path) -> None:
    store = LocalStore(str(path.parent))
    snapshot = await store.open(path.name)
    append(path)
    assert await snapshot.accept_growth(100, OLD[100:200])
    other = await store.open(path.name)
    os.truncate(path, len(OLD))  # between two looks, and then another one appends more
    with path.open("ab") as file:
        file.write(b"something else")
    assert await snapshot.accept_growth(100, OLD[100:200])
    with pytest.raises(StaleError):
        await other.read(len(OLD), 8)
    assert not await other.accept_growth(len(OLD), b"appended")
    assert bytes(await snapshot.read(0, len(OLD))) == OLD


@pytest.mark.parametrize("moved_ns", [1, 10**9])
@in_trio
async def test_a_file_of_the_same_size_is_only_accepted_if_who_appended_to_it_has_moved_its_time(
    path: Path, moved_ns: int
) -> None:
    snapshot = await opened(path)
    os.utime(path, ns=(LONG_AGO, LONG_AGO + moved_ns))
    assert await snapshot.accept_growth(100, OLD[100:200]) == (moved_ns == 1)


# Symbolic links: followed inside the source, never out of it


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
        ({"l": "a", "a/m": "b/../b"}, "l/m/f"),
        ({"l": "a/m", "a/m": "../f"}, "l"),
        ({"a/here": "."}, "a/here/here/here/b/f"),
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
        ({"l": "../source-f"}, "l"),
        ({"l": ".."}, "l/outside/f"),
        ({"a/l": "../../source/f"}, "a/l"),
        ({"a/b/l": "../../../outside"}, "a/b/l/f"),
        ({"l": "a/up", "a/up": ".."}, "l/../outside/f"),
        ({"l": "a/b/../../../outside/f"}, "l"),
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


@pytest.mark.parametrize("links", [{"l": "l"}, {"l": "a/m", "a/m": "../l"}, {"l": "gone"}, {"l": "gone/../f"}], ids=str)
@in_trio
async def test_loops_and_links_to_nothing_are_damage_and_not_absence(source: Path, links: dict[str, str]) -> None:
    for name, target in links.items():
        (source / name).symlink_to(target)
    store = LocalStore(str(source))
    for request in (store.open("l"), store.open("l/f"), store.list("l"), store.stat("l/f")):
        with pytest.raises(CorruptionError):
            await request


@in_trio
async def test_what_is_opened_while_the_store_changes_it_is_the_version_before_in_all_that_is_known_of_it(
    tmp_path: Path,
) -> None:
    path, store = tmp_path / "f", LocalStore(str(tmp_path))
    path.write_bytes(b"before")
    first = await store.open("f")
    first.version.begin_change()
    with path.open("ab") as file:
        file.write(b" and after")
    os.utime(path, ns=(10**18, 10**18))
    second = await store.open("f")
    assert (second.size, second.stat.size, second.stat.mtime_ns) == (6, 6, first.stat.mtime_ns)
    first.version.end_change((16, 10**18))
    assert not await second.is_current()
    third = await store.open("f")
    assert (third.size, third.stat.size, third.stat.mtime_ns) == (16, 16, 10**18)
    assert await third.is_current()
