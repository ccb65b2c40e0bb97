"""What a ZIP file costs: requests, bytes and memory."""

import json
import struct
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import zarr
from zarr.storage import ZipStore

import shardfs
from shardfs.formats.zip.directory import TAIL_NBYTES, DirectoryParser, find_directory
from tests.formats.zip.test_members import opened
from tests.support.corpus import LITTLE, array, sharding
from tests.support.web_server import web_server
from tests.support.zips import central, local, wide_end, write_zip

VALUES = np.random.default_rng(0).integers(0, 2**16, (64, 64, 64), dtype="u2")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_member_with_its_local_header_is_one_request(tmp_path: Path, method: int) -> None:
    with ZipStore(tmp_path / "a.zip", mode="w", compression=method) as store:
        group: Any = zarr.create_group(store)
        for name, options in {"sharded": {"shards": (64, 64, 64)}, "plain": {}, "last": {}}.items():
            made = group.create_array(
                name, shape=(64, 64, 64), chunks=(16, 32, 32), dtype="u2", compressors=None, **options
            )
            made[...] = VALUES
    with web_server(tmp_path) as web, shardfs.open(f"{web.url}/a.zip") as dataset:
        assert [asked for *_, asked in web.asked()] == [f"bytes=-{TAIL_NBYTES}"]
        assert dataset.filesystem().cat("plain/c/1/0/0") == VALUES[16:32, :32, :32].tobytes()
        *documents, chunk = (nbytes_of(asked) for *_, asked in web.asked())
        assert len(documents) == 2, "of the group and the array"
        assert max(documents) < 2000
        assert 32_768 < chunk < 34_000
        assert dataset.filesystem().cat("plain/c/1/0/0") == VALUES[16:32, :32, :32].tobytes()
        assert web.asked() == [], "it is kept"
        assert dataset["sharded"].read_chunk((2, 1, 1)) == VALUES[32:48, 32:, 32:].tobytes()
        asked = [nbytes_of(asked) for *_, asked in web.asked()]
        if method == zipfile.ZIP_STORED:
            document, header, index, chunk = asked
            assert document < 2000
            assert header < 100
            assert index == 16 * 16 + 4
            assert chunk == 32_768
        assert dataset["sharded"].read_chunk((0, 0, 0)) == VALUES[:16, :32, :32].tobytes()
        assert len(web.asked()) == (method == zipfile.ZIP_STORED)


def nbytes_of(asked: str) -> int:
    start, stop = asked.removeprefix("bytes=").split("-")
    return int(stop) - int(start) + 1


@contextmanager
def counted_reads() -> Iterator[list[int]]:
    """How many bytes this process reads, from files and whatever else, during a block."""
    counts: list[int] = []
    before = _rchar()
    yield counts
    counts.append(_rchar() - before)


def _rchar() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def write_large(path: Path, nbytes: int) -> None:
    """A ZIP file with a shard of *nbytes* bytes, of which little is stored on the disk."""
    document = array((4,), (4,), sharding((2,), LITTLE), data_type="uint8")
    document["codecs"][0]["configuration"]["index_codecs"] = [LITTLE]
    text = json.dumps(document).encode()
    write_zip(path, {"zarr.json": text})
    with path.open("r+b") as file:
        (member,) = zipfile.ZipFile(path).infolist()
        start = file.seek(len(local(b"zarr.json", 0, 0, 0)) + len(text))
        wide = struct.pack("<2H2Q", 1, 16, nbytes, nbytes)
        file.write(local(b"c/0", 2**32 - 1, 2**32 - 1, 0, extra=wide))
        begin = file.tell()
        file.seek(begin + nbytes - 32 - 2)
        file.write(b"ab" + struct.pack("<4Q", nbytes - 34, 2, 2**64 - 1, 2**64 - 1))
        offset = file.tell()
        table = central(b"zarr.json", 0, len(text), len(text), member.CRC)
        table += central(b"c/0", start, 2**32 - 1, 2**32 - 1, 0, extra=wide)
        file.write(table + wide_end(2, len(table), offset, offset + len(table)))


def test_the_first_chunk_of_a_huge_file_takes_its_tables_and_no_more(tmp_path: Path) -> None:
    counts = {}
    for nbytes in (2**10, 100 * 2**30, 2**10, 100 * 2**30):  # at first, modules are imported
        write_large(tmp_path / "a.zip", nbytes)
        assert (tmp_path / "a.zip").stat().st_size > nbytes
        with counted_reads() as counted, shardfs.open(tmp_path / "a.zip") as dataset:
            assert dataset[""].read_chunk((0,)) == b"ab"
            assert dataset[""].read_chunk((1,)) is None
        (counts[nbytes],) = counted
    assert counts[100 * 2**30] < counts[2**10] + TAIL_NBYTES + 2**14


def test_many_members_take_little_memory(tmp_path: Path) -> None:
    count = 100_000
    names = [f"image/0/c/{i // 10_000}/{i // 100 % 100}/{i % 100}".encode() for i in range(count)]
    head = b"".join(local(name, 1, 1, 0) + b"x" for name in names)
    offsets, at = [], 0
    for name in names:
        offsets.append(at)
        at += 30 + len(name) + 1
    table = b"".join(central(name, offset, 1, 1, 0) for name, offset in zip(names, offsets, strict=True))
    (tmp_path / "a.zip").write_bytes(head + table + wide_end(count, len(table), at, at + len(table)))
    store = opened(tmp_path / "a.zip")

    async def look() -> tuple[int, int]:
        await store.list("")
        found = tracemalloc.get_traced_memory()
        assert len(await store.list("image/0/c/7/3")) == 100
        assert (await store.stat("image/0/c/9/99/99")).size == 1
        return found

    del head, table, names, offsets
    tracemalloc.start()
    try:
        kept, most = trio.run(look)
    finally:
        tracemalloc.stop()
    assert kept < 90 * count
    assert most < 500 * count


def test_the_tables_are_small_and_end_where_the_file_says(tmp_path: Path) -> None:
    write_zip(tmp_path / "a.zip", {f"a/{number}": b"" for number in range(1000)})
    data = (tmp_path / "a.zip").read_bytes()
    archive = find_directory(data, len(data))
    parser = DirectoryParser(archive)
    parser.feed(data[archive.start : archive.start + archive.nbytes])
    assert parser.finish().nbytes < 60 * 1000
