"""A file whose inside is a tree: what a format says of it, and what becomes of that when the file changes."""

import json
import os
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import trio
import trio.testing
import zarr

import shardfs
from shardfs.errors import (
    CorruptionError,
    IsADirectoryHereError,
    NotADirectoryHereError,
    NotFoundError,
    NotUnshardable,
    ShardfsError,
    SourceError,
    StaleError,
)
from shardfs.formats import (
    BrokenPart,
    FileSource,
    Format,
    InlinePart,
    LatePart,
    MadePart,
    RangePart,
    TreeStore,
    formats,
)
from shardfs.stores.base import Buffer, Kind, ListedName, Reader, Snapshot
from shardfs.stores.local.reader import LocalReader
from tests.support.commands import run
from tests.support.opened import in_trio
from tests.support.web_server import web_server

HEAD = 4096


class Boxed:
    """The contents of a box: a header of JSON, `key: [offset, nbytes]`, and bytes; with `~` in the key, inverted."""

    def __init__(self, snapshot: Snapshot, header: dict[str, list[int]], made: list[str]) -> None:
        self._snapshot = snapshot
        self._header = header
        self._made = made

    only_zarr = False

    async def find(self, key: str) -> InlinePart | RangePart | MadePart | BrokenPart | None:
        if key == "inline":
            return InlinePart(b"in the header")
        if key == "broken":
            return BrokenPart("nobody knows its size")
        if key not in self._header:
            return None
        offset, nbytes = self._header[key]

        async def make() -> Buffer:
            self._made.append(key)
            return bytes(255 - byte for byte in bytes(await self._snapshot.read(offset, nbytes)))

        return MadePart(nbytes, make) if "~" in key else RangePart(offset, nbytes)

    async def is_directory(self, key: str) -> bool:
        return any(name.startswith(f"{key}/") for name in self._keys())

    async def walk(self) -> AsyncIterator[str]:
        for key in self._keys():
            yield key

    async def note(self) -> str | None:
        return "nobody knows what broken is"

    async def skipped(self) -> AsyncIterator[tuple[str, str]]:
        yield "left/out", "nobody wants it"

    def _keys(self) -> list[str]:
        return ["inline", "broken", *self._header]

    async def list(self, key: str) -> Sequence[ListedName] | None:
        below = [name[len(key) :].lstrip("/") for name in self._keys() if not key or name.startswith(f"{key}/")]
        kinds = {name.partition("/")[0]: Kind.DIRECTORY if "/" in name else Kind.FILE for name in below}
        return [ListedName(*item) for item in kinds.items()] if below or not key else None


class Box(Format):
    """A format whose files are boxes."""

    name = "box"
    suffixes = (".box",)

    def __init__(self) -> None:
        self.loaded = 0
        self.made: list[str] = []

    async def load(self, snapshot: Snapshot) -> Boxed:
        self.loaded += 1
        return Boxed(snapshot, json.loads(bytes(await snapshot.read(0, HEAD))), self.made)

    def open(self, source: FileSource) -> Reader:
        return TreeStore(source.url, source.files, source.name, self.load, ttl=source.ttl)


def write_box(path: Path, files: dict[str, bytes], header: dict[str, list[int]] | None = None) -> None:
    found, at = dict(header or {}), HEAD
    for key, data in files.items():
        found[key] = [at, len(data)]
        at += len(data)
    text = json.dumps(found).encode().ljust(HEAD)
    new = path.with_name("new")
    new.write_bytes(text + b"".join(files.values()))
    new.replace(path)


def opened(path: Path, box: Box, ttl: float = 0.0) -> TreeStore:
    return TreeStore(str(path), LocalReader(str(path.parent)), path.name, box.load, ttl=ttl)


async def whole(store: Reader, key: str) -> bytes:
    snapshot = await store.open(key)
    return bytes(await snapshot.read(0, snapshot.size))


@in_trio
async def test_keys_are_ranges_bytes_and_what_is_made(tmp_path: Path) -> None:
    box = Box()
    write_box(tmp_path / "a.box", {"a/b/one": b"one", "a/two": b"three", "a/~": b"\x00\xff"})
    store = opened(tmp_path / "a.box", box, ttl=60)
    assert sorted(await store.check() or ()) == [("a", Kind.DIRECTORY), ("broken", Kind.FILE), ("inline", Kind.FILE)]
    assert await store.note() == "nobody knows what broken is"
    assert [each async for each in store.skipped()] == [("left/out", "nobody wants it")]
    assert [name.name for name in await store.list("a")] == ["b", "two", "~"]
    assert (await store.stat("a/b")).kind is Kind.DIRECTORY
    assert ((await store.stat("a/two")).kind, (await store.stat("a/two")).size) == (Kind.FILE, 5)
    assert await whole(store, "a/b/one") == b"one"
    assert await whole(store, "inline") == b"in the header"
    assert box.made == []
    snapshot = await store.open("a/~")
    assert snapshot.size == 2
    assert bytes(await snapshot.read(1, 1)) + bytes(await snapshot.read(0, 1)) == b"\x00\xff"
    assert bytes(await trio.to_thread.run_sync(snapshot.content(1, 1).read, 0, 1)) == b"\x00"
    assert box.made == ["a/~"], "what is made is kept"
    assert box.loaded == 1
    assert sorted([key async for key in store.walk()]) == ["a/b/one", "a/two", "a/~", "broken", "inline"]
    for error, key in (
        (NotFoundError, "a/three"),
        (IsADirectoryHereError, "a/b"),
        (IsADirectoryHereError, ""),
        (CorruptionError, "broken"),
    ):
        with pytest.raises(error):
            await store.open(key)
    with pytest.raises(NotADirectoryHereError):
        await store.list("a/two")
    with pytest.raises(NotFoundError):
        await store.list("c")


@in_trio
async def test_what_leads_out_of_the_file_or_is_too_large_is_an_error(tmp_path: Path) -> None:
    header = {
        "behind": [HEAD, 4],
        "far": [2**62, 2**62],
        "before": [-1, 3],
        "~large": [HEAD, 2**40],
        "~short": [HEAD, 2],
    }
    write_box(tmp_path / "a.box", {"one": b"one"}, header)
    store = opened(tmp_path / "a.box", Box())
    for key in ("behind", "far", "before", "~large"):
        with pytest.raises(CorruptionError):
            await store.open(key)
    assert await whole(store, "one") == b"one"


@in_trio
async def test_made_bytes_of_another_size_are_damage(tmp_path: Path) -> None:
    write_box(tmp_path / "a.box", {"one": b"one"})

    class Short(Boxed):
        async def find(self, key: str) -> InlinePart | RangePart | MadePart | BrokenPart | None:
            async def make() -> Buffer:
                return b"four"

            return MadePart(3, make)

    async def load(snapshot: Snapshot) -> Boxed:
        return Short(snapshot, {"one": [0, 3]}, [])

    store = TreeStore("a", LocalReader(str(tmp_path)), "a.box", load, ttl=0)
    snapshot = await store.open("one")
    with pytest.raises(CorruptionError, match="4 bytes"):
        await snapshot.read(0, 3)


@in_trio
async def test_no_more_is_made_at_the_same_time_than_there_is_room_for(tmp_path: Path) -> None:
    nbytes, begun, most = 10 * 2**20, 0, 0

    async def make() -> Buffer:
        nonlocal begun, most
        begun += 1
        most = max(most, begun)
        await trio.testing.wait_all_tasks_blocked()
        begun -= 1
        return bytes(nbytes)

    class Makes(Boxed):
        async def find(self, key: str) -> MadePart:
            return MadePart(nbytes, make)

    async def load(snapshot: Snapshot) -> Boxed:
        return Makes(snapshot, {}, [])

    write_box(tmp_path / "a.box", {})
    store = TreeStore("a.box", LocalReader(str(tmp_path)), "a.box", load, ttl=60)

    async def read(number: int) -> None:
        await (await store.open(f"{number}")).read(0, 1)

    async with trio.open_nursery() as nursery:
        for number in range(60):
            nursery.start_soon(read, number)
    assert most == 25


@in_trio
async def test_where_a_part_is_may_be_asked_when_it_is_opened(tmp_path: Path) -> None:
    write_box(tmp_path / "a.box", {"one": b"one"})
    asked = []

    class Late(Boxed):
        async def find(self, key: str) -> LatePart:
            async def locate() -> RangePart:
                asked.append(key)
                return RangePart(HEAD if key == "one" else 2**40, 3)

            return LatePart(3, locate)

    async def load(snapshot: Snapshot) -> Boxed:
        return Late(snapshot, {"one": [0, 3]}, [])

    store = TreeStore("a", LocalReader(str(tmp_path)), "a.box", load, ttl=0)
    assert (await store.stat("one")).size == 3
    assert (await store.fresh("one")).size == 3
    assert asked == []
    assert await whole(store, "one") == b"one"
    assert asked == ["one"]
    assert await store.origin("one") == ("file://a", HEAD, 3)
    with pytest.raises(CorruptionError, match="is said to end at"):
        await store.open("far")


class Direct(Boxed):
    """Knows all ranges at once, and whatever else it is told to know."""

    def find_known(
        self, key: str, array: str, coords: tuple[int, ...], read: Callable[[int, int], Buffer | None]
    ) -> RangePart | None:
        if key == "fails":
            raise RuntimeError("a mistake")
        if key == "damaged":
            raise CorruptionError("a chunk")
        return RangePart(*self._header[key]) if key in self._header else None


@in_trio
async def test_what_contents_know_at_once_is_read_in_any_thread(tmp_path: Path) -> None:
    header = {"behind": [HEAD, 4], "far": [2**62, 2**62], "before": [-1, 3]}
    write_box(tmp_path / "a.box", {"one": b"one"}, header)

    async def load(snapshot: Snapshot) -> Boxed:
        return Direct(snapshot, json.loads(bytes(await snapshot.read(0, HEAD))), [])

    def known(key: str) -> bytes | None:
        found = store.find_known(key, "", (0,), waits=True)
        data = None if found is None else found.read(0, None, waits=True)
        return None if data is None else bytes(data)

    store = TreeStore(str(tmp_path / "a.box"), LocalReader(str(tmp_path)), "a.box", load, ttl=60)
    assert known("one") is None, "nothing was read yet"
    await store.check()
    assert known("one") == b"one"
    assert await trio.to_thread.run_sync(known, "one") == b"one"
    for key in ("behind", "far", "before", "other", "damaged"):
        assert known(key) is None, key
    write_box(tmp_path / "a.box", {"two": b"two", "one": b"new"})
    assert known("one") is None, "it is another file now"
    await store.open("one")
    assert known("one") == b"new"


@in_trio
async def test_a_mistake_of_another_package_is_left_to_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_box(tmp_path / "a.box", {"fails": b"one"})

    async def load(snapshot: Snapshot) -> Boxed:
        return Direct(snapshot, json.loads(bytes(await snapshot.read(0, HEAD))), [])

    store = TreeStore(str(tmp_path / "a.box"), LocalReader(str(tmp_path)), "a.box", load, ttl=60)
    await store.check()
    assert store.find_known("fails", "", (0,), waits=True) is None
    monkeypatch.setattr(load, "__module__", "shardfs.formats.box")
    with pytest.raises(RuntimeError, match="a mistake"):
        store.find_known("fails", "", (0,), waits=True)


@in_trio
async def test_the_checksum_of_a_part_is_compared_where_all_of_it_is_read(tmp_path: Path) -> None:
    large = b"large" * 100_000
    write_box(tmp_path / "a.box", {"good": b"good", "large": large, "bad": b"bad"})

    class Checked(Boxed):
        async def find(self, key: str) -> RangePart:
            return RangePart(*self._header[key], zlib.crc32({"good": b"good", "large": large}.get(key, b"")))

    async def load(snapshot: Snapshot) -> Boxed:
        header = json.loads(bytes(await snapshot.read(0, HEAD)))
        return Checked(snapshot, header | {"cut": [HEAD + 4, len(large) - 1]}, [])

    store = TreeStore("a", LocalReader(str(tmp_path)), "a.box", load, ttl=0)
    for key in ("good", "large", "good"):
        assert await whole(store, key) == {"good": b"good", "large": large}[key]
    for key in ("bad", "cut"):
        with pytest.raises(CorruptionError, match=f"{key} cannot be read: its checksum"):
            await whole(store, key)
    for key in ("large", "cut"):
        snapshot = await store.open(key)
        unit = (0, snapshot.size)
        for _ in range(2):
            await snapshot.read(0, 200_000, unit)
            await snapshot.read(200_000, 100_000, unit)
        if key == "large":
            assert await snapshot.read(300_000, 200_000, unit) == large[300_000:]
        else:
            with pytest.raises(CorruptionError, match="its checksum"):
                await snapshot.read(300_000, 199_999, unit)
        assert await snapshot.read(300_001, 199_998, unit) == large[300_001:-1], "this is not read in order"
        assert await snapshot.read(0, 5, (0, 5)) == b"large"


def test_a_table_at_the_end_comes_with_the_request_that_opens_the_file(tmp_path: Path) -> None:
    write_box(tmp_path / "a.box", {"one": b"one" * 10_000})

    async def load(snapshot: Snapshot) -> Boxed:
        assert bytes(await snapshot.read(snapshot.size - 3, 3)) == b"one"
        return Boxed(snapshot, {}, [])

    class Tail(Box):
        def open(self, source: FileSource) -> Reader:
            return TreeStore(source.url, source.files, source.name, load, ttl=source.ttl, tail_nbytes=100)

    with web_server(tmp_path) as web, pytest.MonkeyPatch.context() as patch:
        others, format_ = formats(), Tail()
        patch.setattr("shardfs.dataset.source.formats", lambda: (*others, format_))
        with shardfs.open(f"{web.url}/a.box") as dataset:
            assert dataset.store() is not None
        assert [asked for _, path, asked in web.asked() if path == "/a.box"] == ["bytes=-100"]


@in_trio
async def test_a_file_that_is_replaced_is_loaded_again_and_what_is_open_stays(tmp_path: Path) -> None:
    box, path = Box(), tmp_path / "a.box"
    write_box(path, {"a/one": b"one", "~": b"\x00"})
    store = opened(path, box)
    before, made = await store.open("a/one"), await store.open("~")
    status = await store.stat("a/one")
    assert await before.is_current()
    write_box(path, {"two": b"two", "a/one": b"other", "~": b"\x01\x02"})
    assert not await before.is_current()
    assert not await made.is_current()
    assert await whole(store, "a/one") == b"other"
    assert await whole(store, "~") == b"\xfe\xfd"
    assert (await store.stat("a/one")).version != status.version
    assert "two" in {entry.name for entry in await store.list("")}
    assert bytes(await before.read(0, 3)) == b"one"
    assert bytes(await made.read(0, 1)) == b"\xff"
    assert box.loaded == 2


class SlowLooks:
    """Lets the next look whether a file is still the same take until `go` is set, and answer what was true before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
        self.go, self.begun = trio.Event(), trio.Event()
        original = kind.is_current

        async def is_current(snapshot: Snapshot) -> bool:
            answer = await original(snapshot)
            if not self.begun.is_set():
                self.begun.set()
                await self.go.wait()
            return bool(answer)

        monkeypatch.setattr(kind, "is_current", is_current)


@pytest.mark.parametrize("is_forgotten", [False, True])
@in_trio
async def test_a_look_that_began_before_a_change_does_not_answer_for_one_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_forgotten: bool
) -> None:
    path = tmp_path / "a.box"
    write_box(path, {"one": b"one"})
    store = opened(path, Box(), ttl=60 if is_forgotten else 0)
    await store.check()
    slow = SlowLooks(monkeypatch, type(await LocalReader(str(tmp_path)).open("a.box")))
    found: list[bytes] = []

    async def read() -> None:
        found.append(await whole(store, "one"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await slow.begun.wait()
        write_box(path, {"one": b"another"})
        if is_forgotten:
            store.forget("one")
        else:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
        slow.go.set()
    if is_forgotten:
        assert (await store.stat("one")).size == 7
    else:
        assert found == [b"one", b"another"]


@in_trio
async def test_all_of_one_request_is_asked_of_one_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is a file before, and a directory after, never is nothing."""
    path = tmp_path / "a.box"
    write_box(path, {"a": b"one"})
    store = opened(path, Box())
    is_directory = Boxed.is_directory

    async def changed_meanwhile(contents: Boxed, key: str) -> bool:
        found = await is_directory(contents, key)
        if "a/b" not in contents._header:
            write_box(path, {"a/b": b"one"})
        return found

    monkeypatch.setattr(Boxed, "is_directory", changed_meanwhile)
    for look in (store.stat, store.open):
        write_box(path, {"a": b"one"})
        found = await look("a")
        assert (found.stat if look == store.open else found).kind is Kind.FILE  # type: ignore[union-attr]


@in_trio
async def test_a_file_that_is_changed_in_place_is_stale(tmp_path: Path) -> None:
    box, path = Box(), tmp_path / "a.box"
    write_box(path, {"one": b"one", "~": b"\x00"})
    store = opened(path, box)
    before, made = await store.open("one"), await store.open("~")
    with path.open("r+b") as file:
        file.seek(HEAD)
        file.write(b"two!")
    os.utime(path, ns=(1, 1))
    for snapshot in (before, made):
        with pytest.raises(StaleError):
            await snapshot.read(0, 1)
    assert await whole(store, "one") == b"two"


@in_trio
async def test_a_file_that_is_removed_is_an_error_and_not_a_tree_without_keys(tmp_path: Path) -> None:
    path = tmp_path / "a.box"
    write_box(path, {"one": b"one"})
    store = opened(path, Box())
    await store.check()
    path.unlink()
    for ask in (store.stat, store.open, store.fresh):
        with pytest.raises(ShardfsError) as raised:
            await ask("one")
        assert not isinstance(raised.value, NotFoundError)
    with pytest.raises(SourceError):
        await opened(path, Box()).check()


ARRAY = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4, 4],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 4]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0,
    "codecs": [{"name": "bytes"}],
    "attributes": {},
}


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Box:
    """The format, in the table of this process."""
    box, others = Box(), formats()
    for module in ("shardfs.formats", "shardfs.dataset.source", "shardfs.dataset.foreign"):
        monkeypatch.setattr(f"{module}.formats", lambda: (*others, box))
    return box


def write_zarr(path: Path) -> np.ndarray:
    """A group with an array in a box."""
    values = np.arange(16, dtype=np.uint8).reshape(4, 4)
    group = {"zarr_format": 3, "node_type": "group", "attributes": {"of": "a box"}}
    files = {"zarr.json": json.dumps(group).encode(), "g/image/zarr.json": json.dumps(ARRAY).encode()}
    files |= {"g/zarr.json": json.dumps(group).encode()}
    files |= {f"g/image/c/{row}/0": values[2 * row : 2 * row + 2].tobytes() for row in range(2)}
    write_box(path, files)
    return values


def test_an_array_without_inner_chunks_is_named_with_the_way_to_its_chunks(registered: Box, tmp_path: Path) -> None:
    write_box(tmp_path / "a.box", {"zarr.json": json.dumps(ARRAY).encode(), "c/0/0": b"8 bytes."})
    with (
        shardfs.open(tmp_path / "a.box") as dataset,
        pytest.raises(NotUnshardable, match=r"a\.box has no inner chunks: .*`filesystem` read its chunks"),
    ):
        dataset[""].read_chunk((0, 0))


def test_references_lead_into_the_file(registered: Box, tmp_path: Path) -> None:
    values = write_zarr(tmp_path / "a.box")
    references = shardfs.refs(tmp_path / "a.box")
    url, offset, nbytes = references["refs"]["g/image/c/1/0"]
    assert url == f"file://{tmp_path}/a.box"
    assert (tmp_path / "a.box").read_bytes()[offset : offset + nbytes] == values[2:].tobytes()
    theirs = fsspec.filesystem("reference", fo=references)
    assert theirs.cat("g/image/c/0/0") == values[:2].tobytes()


def test_zarr_in_a_file_is_a_source(registered: Box, tmp_path: Path) -> None:
    values = write_zarr(tmp_path / "a.box")
    with web_server(tmp_path) as web:
        for source in (tmp_path / "a.box", f"{web.url}/a.box"):
            with shardfs.open(source) as dataset:
                found = zarr.open_group(dataset.store(), mode="r")
                assert found.attrs["of"] == "a box"
                assert np.array_equal(found["g/image"][()], values)
    assert run("info", tmp_path / "a.box").returncode != 0, "another process has no such format"
