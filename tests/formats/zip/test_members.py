"""What a ZIP file says of its members: what is shown, what is refused, and what is no ZIP file at all."""

import os
import shutil
import struct
import subprocess
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from shardfs.errors import (
    CorruptionError,
    IsADirectoryHereError,
    MetadataError,
    NotFoundError,
    ShardfsError,
    SourceError,
    StaleError,
)
from shardfs.formats import TreeStore, VirtualStore
from shardfs.formats.zip.directory import TAIL_NBYTES, DirectoryParser, find_directory
from shardfs.formats.zip.members import load
from shardfs.stores.base import Buffer, Kind
from shardfs.stores.local.reader import LocalReader
from tests.support.opened import in_trio
from tests.support.zips import central, end, local, wide_end, write_zip

FILES = {"zarr.json": b"{}", "a/c/0/0": b"chunk" * 100, "a/c/0/1": b"", "a/zarr.json": b'{"of": "a"}', "ä/ж": b"text"}


def opened(path: Path) -> VirtualStore:
    async def read(snapshot: Any) -> Any:
        return await load(str(path), snapshot)

    return TreeStore(str(path), LocalReader(str(path.parent)), path.name, read, ttl=0, tail_nbytes=TAIL_NBYTES)


async def whole(store: VirtualStore, key: str) -> bytes:
    snapshot = await store.open(key)
    return bytes(await snapshot.read(0, snapshot.size))


async def all_of(path: Path) -> dict[str, bytes | str]:
    """What each file of *path* has in it, or why it cannot be read; listings and sizes are compared with it."""
    store = opened(path)
    found: dict[str, bytes | str] = {}
    async for key in store.walk():
        stat = await store.stat(key)
        assert stat.kind is Kind.FILE
        try:
            found[key] = await whole(store, key)
            assert stat.size == len(found[key])
        except CorruptionError as error:
            found[key] = str(error)
    pending, listed = [""], set[str]()
    while pending:
        directory = pending.pop()
        names = await store.list(directory)
        assert len({entry.name for entry in names}) == len(names)
        for entry in names:
            key = f"{directory}/{entry.name}".lstrip("/")
            assert (await store.stat(key)).kind is entry.kind
            if entry.kind is Kind.DIRECTORY:
                pending.append(key)
            else:
                listed.add(key)
    assert listed == found.keys()
    return found


def read(path: Path) -> dict[str, bytes | str]:
    return trio.run(all_of, path)


def test_members_are_files_in_directories(tmp_path: Path) -> None:
    for number, (method, options) in enumerate(
        [
            (zipfile.ZIP_STORED, {}),
            (zipfile.ZIP_DEFLATED, {"comment": b"a comment"}),
            (zipfile.ZIP_STORED, {"comment": b"PK\x05\x06" + bytes(2**16 - 5)}),
            (zipfile.ZIP_DEFLATED, {"prefix": b"#!/bin/sh\nexit\n" * 10_000}),
        ]
    ):
        path = tmp_path / f"{number}.zip"
        write_zip(path, FILES, method, **options)
        assert read(path) == FILES
    write_zip(tmp_path / "empty.zip", {})
    assert read(tmp_path / "empty.zip") == {}


@in_trio
async def test_directories_may_be_members_and_need_not_be(tmp_path: Path) -> None:
    write_zip(tmp_path / "a.zip", {"a/": b"", "a/b/c": b"1", "a-": b"2", "a0": b"3", "empty/": b""})
    store = opened(tmp_path / "a.zip")
    assert {tuple(entry) for entry in await store.list("")} == {
        ("a", Kind.DIRECTORY), ("a-", Kind.FILE), ("a0", Kind.FILE), ("empty", Kind.DIRECTORY),
    }  # fmt: skip
    assert await store.list("empty") == []
    assert (await store.stat("a/b")).kind is Kind.DIRECTORY
    for key in ("b", "a/", "a\0b", "\ud800", "\udcff", "a/b/c/d"):
        with pytest.raises(NotFoundError):
            await store.stat(key)
    with pytest.raises(IsADirectoryHereError):
        await store.open("a/b")


class _Pipe:
    """Where nothing can be sought, so that sizes follow the bytes of a member."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_sizes_may_follow_a_member(tmp_path: Path, method: int) -> None:
    pipe: Any = _Pipe(tmp_path / "a.zip")
    with zipfile.ZipFile(pipe, "w", method) as archive:
        for name, data in FILES.items():
            archive.writestr(name, data)
        with archive.open("wide", "w", force_zip64=True) as file:
            file.write(b"wide")
    pipe.close()
    assert b"PK\x07\x08" in (tmp_path / "a.zip").read_bytes()
    assert read(tmp_path / "a.zip") == FILES | {"wide": b"wide"}


def test_of_several_members_of_one_name_the_last_one_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("zarr.json", "old")
        for text in ("newer", "newest"):
            with pytest.warns(UserWarning, match="Duplicate"):
                archive.writestr("zarr.json", text)
    with caplog.at_level("INFO", logger="shardfs"):
        assert read(tmp_path / "a.zip") == {"zarr.json": b"newest"}
    assert {record.levelname for record in caplog.records} == {"INFO"}, "ZipStore writes such files"
    assert "2 members a later one" in caplog.text


def test_more_members_than_16_bits_count(tmp_path: Path) -> None:
    files = {f"a/c/{number}": b"%d" % number for number in range(2**16 + 3)}
    write_zip(tmp_path / "a.zip", files)
    assert read_some(tmp_path / "a.zip", ["a/c/0", "a/c/65538", "a/c/40000"]) == {
        "a/c/0": b"0", "a/c/65538": b"65538", "a/c/40000": b"40000",
    }  # fmt: skip
    data = (tmp_path / "a.zip").read_bytes()
    at = data.index(b"PK\x06\x06")
    nbytes, offset = struct.unpack_from("<2Q", data, at + 40)
    (tmp_path / "old.zip").write_bytes(data[:at] + end(3, nbytes, offset))  # as programs without ZIP64 count
    assert read_some(tmp_path / "old.zip", ["a/c/65538"]) == {"a/c/65538": b"65538"}


def read_some(path: Path, keys: list[str]) -> Mapping[str, bytes]:
    async def look() -> Mapping[str, bytes]:
        store = opened(path)
        return {key: await whole(store, key) for key in keys}

    return trio.run(look)


def made(*members: tuple[bytes, bytes, dict[str, Any]], behind: bytes = b"") -> bytes:
    """A ZIP file of names, data and whatever else the headers say; with `at`, where another local header is."""
    data, table = b"", b""
    for name, content, options in members:
        options = dict(options)
        at = options.pop("at", len(data))
        sizes = options.pop("sizes", (len(content), len(content), zlib.crc32(content)))
        header = options.pop("local", None)
        begun = {key: value for key, value in options.items() if key in ("method", "flags", "extra")}
        data += local(name, *sizes, **begun) if header is None else header
        data += content
        table += central(name, at, *sizes, **options)
    return data + table + end(len(members), len(table), len(data)) + behind


GOOD: tuple[bytes, bytes, dict[str, Any]] = (b"good", b"bytes", {})
CRC32 = zlib.crc32(b"12345")
DEFLATED = zlib.compress(bytes(99), wbits=-15)
REFUSED = {
    "encrypted": ((b"x", b"12345", {"flags": 1}), "encrypted"),
    "strongly encrypted": ((b"x", b"12345", {"flags": 65}), "encrypted"),
    "bzip2": ((b"x", b"12345", {"method": 12}), "bzip2"),
    "Zstandard": ((b"x", b"12345", {"method": 93}), "Zstandard"),
    "unknown": ((b"x", b"12345", {"method": 4711}), "number 4711"),
    "a symbolic link": ((b"x", b"/etc/passwd", {"external": 0o120777 << 16}), "symbolic link"),
    "two sizes": ((b"x", b"12345", {"sizes": (5, 6, 0)}), "two sizes differ"),
    "a bomb": ((b"x", b"12345", {"method": 8, "sizes": (5, 10**9, 0)}), "expand"),
    "empty blocks": ((b"x", b"\0\0\0\xff\xff" * 500_000, {"method": 8, "sizes": (2_500_000, 5, 0)}), "expand"),
    "far away": ((b"x", b"12345", {"at": 2**31}), "outside"),
    "too long": ((b"x", b"12345", {"sizes": (2**31, 2**31, 0)}), "outside"),
    "no ZIP64": ((b"x", b"12345", {"sizes": (2**32 - 1, 5, 0)}), "ZIP64"),
    "a wrong ZIP64": ((b"x", b"1", {"sizes": (2**32 - 1, 5, 0), "extra": b"\1\0\x08\0\1\2"}), "ZIP64"),
    "farther than 64 bits": (
        (b"x", b"1", {"at": 2**32 - 1, "extra": struct.pack("<2HQ", 1, 8, 2**64 - 1)}), "outside",
    ),
    "longer than 64 bits": (
        (b"x", b"1", {"sizes": (2**32 - 1, 2**32 - 1, 0), "extra": struct.pack("<2H2Q", 1, 16, *[2**64 - 20] * 2)}),
        "outside",
    ),
    "another name": ((b"x", b"12345", {"local": local(b"y", 5, 5, CRC32)}), "another name"),
    "a longer name": ((b"x", b"12345", {"local": local(b"xy", 5, 5, CRC32)}), "not where"),
    "no local header": ((b"x", b"12345", {"local": bytes(31)}), "not where"),
    "another size": ((b"x", b"12345", {"local": local(b"x", 4, 4, CRC32)}), "contradicts"),
    "another checksum": ((b"x", b"12345", {"local": local(b"x", 5, 5, 1)}), "contradicts"),
    "another method": ((b"x", b"12345", {"local": local(b"x", 5, 5, CRC32, method=8)}), "contradicts"),
    "secretly encrypted": ((b"x", b"12345", {"local": local(b"x", 5, 5, CRC32, flags=1)}), "contradicts"),
    "more fields than there is": (
        (b"x", b"12345", {"local": local(b"x", 5, 5, CRC32, extra=bytes(9))[:-9]}), "another member",
    ),
    "damaged": ((b"x", b"12345", {"sizes": (5, 5, 1)}), "checksum"),
    "nothing deflated": ((b"x", b"12345", {"method": 8, "sizes": (5, 50, 1)}), "inflate"),
    "too short": ((b"x", b"\x03\x00", {"method": 8, "sizes": (2, 5, 0)}), "inflate"),
    "too much": ((b"x", DEFLATED, {"method": 8, "sizes": (len(DEFLATED), 98, 0)}), "inflate"),
    "damaged and deflated": ((b"x", DEFLATED, {"method": 8, "sizes": (len(DEFLATED), 99, 0)}), "checksum"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_member_that_cannot_be_read_is_listed_and_named_and_harms_no_other(tmp_path: Path, name: str) -> None:
    member, reason = REFUSED[name]
    (tmp_path / "a.zip").write_bytes(made(GOOD, member, (b"other", b"1", {})))
    found = read(tmp_path / "a.zip")
    assert (found["good"], found["other"]) == (b"bytes", b"1")
    assert isinstance(found["x"], str)
    assert any(word in found["x"] for word in reason.split("|")), found["x"]


def test_members_that_overlap_are_all_refused(tmp_path: Path) -> None:
    """As of a bomb whose members share one kernel."""
    kernel = b"kernel" * 20
    within = local(b"b", len(kernel), len(kernel), zlib.crc32(kernel)) + kernel
    (tmp_path / "a.zip").write_bytes(
        made(GOOD, (b"a", within, {}), (b"b", kernel, {"at": 30 + 4 + 5 + 31, "local": b""}))
    )
    found = read(tmp_path / "a.zip")
    assert found["good"] == b"bytes"
    assert "another member" in str(found["a"])
    assert "another member" in str(found["b"])
    twice = (b"good", b"", {"at": 0, "sizes": (5, 5, zlib.crc32(b"bytes")), "local": b""})
    (tmp_path / "b.zip").write_bytes(made(GOOD, twice))
    assert "another member" in str(read(tmp_path / "b.zip")["good"])


HIDDEN = [
    b"../up", b"/root", b"a//b", b"a/../b", b"./a", b"a/./b", b"..", b".", b"", b"/", b"a//", b"C:\\x", b"a\\b",
    b"a\0b", b"x" * 256, b"/".join([b"deep"] * 300),
]  # fmt: skip


def test_names_that_lead_out_are_hidden_and_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = [*HIDDEN, b"bad\xff"]
    members = [(name, b"12345", {"flags": 1 << 11}) for name in names]
    (tmp_path / "a.zip").write_bytes(made(GOOD, *members, (b"...", b"1", {}), (b"a/..b", b"2", {})))
    assert read(tmp_path / "a.zip") == {"good": b"bytes", "...": b"1", "a/..b": b"2"}
    assert f"{len(HIDDEN) - 1} members whose names are no paths" in caplog.text
    assert "names are too long: deep/deep" in caplog.text
    assert "names are no text: bad\\xff" in caplog.text


def test_a_file_that_is_a_directory_too_is_a_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_zip(tmp_path / "a.zip", {"a": b"file", "a/b": b"1", "a-b": b"2"})
    assert read(tmp_path / "a.zip") == {"a/b": b"1", "a-b": b"2"}
    assert "1 member whose names are those of directories: a" in caplog.text


@pytest.mark.skipif(shutil.which("zip") is None, reason="there is no zip")
def test_names_are_those_of_the_files_that_zip_was_given(tmp_path: Path) -> None:
    names = ["Größe/x", "日本", "e\u0301", "plain"]
    for name in names:
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    subprocess.run(
        ["zip", "-q", "-r", "-D", "../a.zip", "."],
        cwd=tmp_path / "data",
        check=True,
        env=os.environ | {"LC_ALL": "C.UTF-8"},
    )
    assert read(tmp_path / "a.zip") == {name: name.encode() for name in names}


def test_names_are_in_unicode_or_of_the_first_PC(tmp_path: Path) -> None:  # noqa: N802
    unicode = b"\1" + struct.pack("<L", zlib.crc32(b"\x84")) + "ж".encode()
    members = [(b"\x84/x", b"1", {}), (b"\x84", b"2", {"extra": struct.pack("<2H", 0x7075, len(unicode)) + unicode})]
    wrong = b"\1" + struct.pack("<L", 17) + b"no"
    members += [(b"\x81", b"3", {"extra": struct.pack("<2H", 0x7075, len(wrong)) + wrong})]
    members += [("è".encode(), b"5", {"made_by": 3 << 8}), ("ê".encode(), b"6", {"made_by": 0})]
    (tmp_path / "a.zip").write_bytes(made(*members, ("é".encode(), b"4", {"flags": 1 << 11})))
    expected = {"ä/x": b"1", "ж": b"2", "ü": b"3", "é": b"4", "è": b"5", "ê".encode().decode("cp437"): b"6"}
    assert read(tmp_path / "a.zip") == expected


NONE = made(GOOD)
TABLE = central(b"good", 0, 5, 5, zlib.crc32(b"bytes"))
HEAD = local(b"good", 5, 5, zlib.crc32(b"bytes")) + b"bytes"
NO_ARCHIVE = {
    "nothing": (b"", "no ZIP file"),
    "text": (b"text" * 40_000, "no ZIP file"),
    "its end is cut off": (NONE[:-1], "end is missing"),
    "something follows": (NONE + b"\n", "end is missing"),
    "several files": (HEAD + TABLE + end(1, len(TABLE), len(HEAD), disk=1), "split"),
    "a member in another file": (
        HEAD + central(b"good", 0, 5, 5, 0, disk=1) + end(1, len(TABLE), len(HEAD)), "split",
    ),
    "its beginning is cut off": (NONE[10:], "is said to have"),
    "a table larger than the file": (HEAD + TABLE + end(1, 2**31, 0), "is said to have"),
    "too many headers": (HEAD + TABLE + end(50_000, len(TABLE), len(HEAD)), "50,000 headers"),
    "too few headers": (HEAD + TABLE + end(0, len(TABLE), len(HEAD)), "has 1 headers"),
    "half a header": (HEAD + TABLE[:-1] + end(1, len(TABLE) - 1, len(HEAD)), "within a header"),
    "no header": (HEAD + bytes(50) + end(1, 50, len(HEAD)), "other bytes"),
    "a wide table larger than the file": (HEAD + wide_end(1, 2**63, 0, len(HEAD)), "is said to have"),
    "a wide count": (HEAD + TABLE + wide_end(2**40, len(TABLE), len(HEAD), 0), "headers"),
    "no wide end": (HEAD + TABLE + wide_end(1, len(TABLE), len(HEAD), 0)[8:], "ZIP64 end"),
    "two ends": (
        HEAD + TABLE + wide_end(1, len(TABLE), len(HEAD), 0)[:-22] + end(2, len(TABLE), len(HEAD)),
        "where its ZIP64 end",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_ARCHIVE)
def test_what_is_no_zip_file_or_not_whole_is_an_error_with_its_reason(tmp_path: Path, name: str) -> None:
    data, reason = NO_ARCHIVE[name]
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises((CorruptionError, MetadataError), match=reason):
        trio.run(opened(tmp_path / "a.zip").list, "")
    with pytest.raises(SourceError, match=reason):
        trio.run(opened(tmp_path / "a.zip").check)


def test_a_table_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with path.open("wb") as file:  # sparse
        file.truncate(2**30)
        file.seek(0, 2)
        file.write(end(1, 2**30, 0))
    with pytest.raises(MetadataError, match=r"1\.0 GiB, more than 512 MiB"):
        trio.run(opened(path).list, "")


def test_what_is_deflated_and_too_large_to_be_made_is_refused(tmp_path: Path) -> None:
    nbytes = 2**30 + 1
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("b", b"1")
    packed = bytes(2**21)  # never inflated
    (tmp_path / "a.zip").write_bytes(made(GOOD, (b"x", packed, {"method": 8, "sizes": (len(packed), nbytes, 0)})))
    assert "1,073,741,825 bytes, more than" in str(read(tmp_path / "a.zip")["x"])


@in_trio
async def test_a_file_that_changes_is_read_anew_and_never_mixed(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    write_zip(path, {"a": b"old", "b": b"b"})
    store = opened(path)
    before = await store.open("a")
    write_zip(tmp_path / "new", {"c": b"c", "a": b"new and longer"})
    (tmp_path / "new").replace(path)
    assert not await before.is_current()
    assert bytes(await before.read(0, 3)) == b"old"
    assert await whole(store, "a") == b"new and longer"
    with pytest.raises(NotFoundError):
        await store.open("b")
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        write_zip(path, {"a": b"1" * 5000}, method)
        before = await store.open("a")
        write_zip(path, {"b": b"2" * 6000}, method)  # in place
        with pytest.raises(StaleError):
            await before.read(0, before.size)


@settings(deadline=None)
@given(st.data())
def test_whatever_is_damaged_is_an_error_of_shardfs_or_the_very_bytes(data: st.DataObject) -> None:
    method = data.draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
    with TemporaryDirectory() as directory:
        path = Path(directory, "a.zip")
        write_zip(path, FILES | {"wide": b"w" * 99}, method)
        whole_file = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(whole_file) - 1))
            value = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
            whole_file[at : at + data.draw(st.integers(0, 8))] = bytes([value]) * data.draw(st.integers(0, 8))
            if not whole_file:
                break
        path.write_bytes(whole_file[: data.draw(st.none() | st.integers(0, len(whole_file)))])
        try:
            found = read(path)
        except ShardfsError:
            return
        for key, content in found.items():
            with suppress(zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, KeyError):
                assert content in (zipfile.ZipFile(path).read(key), str(content))


def test_the_table_may_come_in_pieces_of_any_size(tmp_path: Path) -> None:
    write_zip(tmp_path / "a.zip", FILES)
    data: Buffer = (tmp_path / "a.zip").read_bytes()
    archive = find_directory(bytes(data), len(data))
    table = memoryview(data)[archive.start : archive.start + archive.nbytes]
    for nbytes in (1, 7, 46, 61, 1000):
        parser = DirectoryParser(archive)
        for at in range(0, len(table), nbytes):
            parser.feed(table[at : at + nbytes])
        assert sorted(parser.finish().files()) == sorted(FILES)


@pytest.mark.parametrize(
    ("name", "only_zarr"), [("a/info", False), ("b.zarr/header.wkw", False), ("a/my_info", True), ("info/x", True)]
)
@in_trio
async def test_other_formats_are_looked_for_if_a_member_has_the_name_of_a_document(
    tmp_path: Path, name: str, only_zarr: bool
) -> None:
    write_zip(tmp_path / "a.zip", FILES | {name: b"x"})
    store = opened(tmp_path / "a.zip")
    await store.check()
    assert store.only_zarr == only_zarr
