"""Sizes that would take all memory if they were believed: refused or bounded, and the daemon stays small."""

import gzip
import json
import os
import struct
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numcodecs
import pytest

from tests.support.corpus import CRC32C, GZIP, LITTLE, ZSTD, array, extension, sharding
from tests.support.datasets import store
from tests.support.encoder import EMPTY
from tests.support.mounting import Mount, Mounter

GIB = 2**30
MAX_MEMORY = 250 * 2**20
SAFE = 2**32
"""Address space of a daemon in danger: a failed test must not take the machine's memory."""


def gzip_bomb(size: int) -> bytes:
    """One member of *size* zero bytes, a multiple of 16 MiB."""
    block = zlib.compressobj(9, wbits=-15)
    zeros = block.compress(bytes(2**24)) + block.flush(zlib.Z_FULL_FLUSH)
    end = zlib.compressobj(9, wbits=-15).flush()
    header = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    return header + zeros * (size >> 24) + end + struct.pack("<II", 0, size & 0xFFFFFFFF)


def zstd_bomb(size: int) -> bytes:
    """One frame of *size* zero bytes, a multiple of 128 KiB, each in a block of 4 bytes."""
    block_size = 2**17
    block = (block_size << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    last = (block_size << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\0"
    return bytes.fromhex("28b52ffd0058") + block * (size // block_size - 1) + last


def blosc_lie(size: int) -> bytes:
    """A buffer whose header promises *size* bytes."""
    honest = bytearray(numcodecs.Blosc("zstd").encode(bytes(2**20)))
    struct.pack_into("<I", honest, 4, size)
    return bytes(honest)


BOMBS = {
    "gzip": ([GZIP], lambda: gzip_bomb(10 * GIB)),
    "gzip-below-the-limit": ([GZIP], lambda: gzip_bomb(GIB - 2**24)),
    "gzip-twice": ([GZIP, GZIP], lambda: gzip.compress(gzip_bomb(10 * GIB), mtime=0)),
    "gzip-many-members": ([GZIP], lambda: gzip.compress(bytes(2**24), mtime=0) * 640),
    "zstd": ([ZSTD], lambda: zstd_bomb(10 * GIB)),
    "zstd-gzip": ([ZSTD, GZIP], lambda: gzip.compress(zstd_bomb(100 * GIB), mtime=0)),
    "blosc": (
        [extension("blosc", cname="zstd", clevel=5, shuffle="noshuffle", blocksize=0)],
        lambda: blosc_lie(2**31 - 17),
    ),
    "crc32c-gzip": ([GZIP, CRC32C], lambda: (b := gzip_bomb(10 * GIB)) + google_crc32c.value(b).to_bytes(4, "little")),
}


@dataclass(frozen=True)
class Danger:
    """A mount with a sound array, to which each test adds a hostile one."""

    mount: Mount
    sound: dict[str, bytes]

    def add(self, name: str, document: dict[str, Any]) -> Path:
        """Store the document of a new array, and the directory that its shards lie in; returns the array's."""
        (self.mount.source / name / "c").mkdir(parents=True)
        (self.mount.source / name / "zarr.json").write_text(json.dumps(document))
        return self.mount.source / name

    def assert_alive_and_small(self) -> None:
        assert {key: (self.mount.path / "sound" / key).read_bytes() for key in self.sound} == self.sound
        assert self.mount.peak_memory() < MAX_MEMORY


@pytest.fixture(scope="module")
def danger(module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory) -> Danger:
    source = tmp_path_factory.mktemp("source")
    sound = store(source / "sound", array((8, 12), (4, 6), sharding((2, 3))))
    return Danger(module_mount(source, address_space=SAFE, expect=("unreadable shard: ", "lookup: ")), sound)


def with_checksum(data: bytes) -> bytes:
    return data + google_crc32c.value(data).to_bytes(4, "little")


@pytest.mark.parametrize("name", BOMBS)
def test_a_shard_that_decodes_to_gigabytes_is_eio(danger: Danger, name: str) -> None:
    codecs, bomb = BOMBS[name]
    store(danger.mount.source / name, array((4, 12), (4, 6), sharding((2, 3)), *codecs))
    (danger.mount.source / name / "c/0/0").write_bytes(bomb())
    shown = danger.mount.path / name
    for key in ("c/0/0", "c/1/1"):
        with pytest.raises(OSError, match="Input/output error"):
            os.stat(shown / key)
    assert (shown / "c/0/2").stat().st_size > 0
    danger.assert_alive_and_small()


def test_an_enclosed_shard_that_decodes_to_gigabytes_is_eio(danger: Danger) -> None:
    directory = danger.add("enclosed", array((4, 12), (4, 12), sharding((4, 6), sharding((2, 3)), GZIP)))
    bomb = gzip_bomb(10 * GIB)
    (directory / "c/0").mkdir()
    (directory / "c/0/0").write_bytes(bomb + with_checksum(struct.pack("<4Q", 0, len(bomb), EMPTY, EMPTY)))
    with pytest.raises(OSError, match="Input/output error"):
        os.stat(danger.mount.path / "enclosed/c/0/0")
    with pytest.raises(FileNotFoundError):
        os.stat(danger.mount.path / "enclosed/c/0/2")
    danger.assert_alive_and_small()


def test_an_index_of_a_billion_chunks_is_not_read(danger: Danger) -> None:
    directory = danger.add("billion", array((10**9,), (10**9,), sharding((1,))))
    with (directory / "c/0").open("wb") as shard:
        shard.truncate(20 * GIB)
    assert b"index" in os.getxattr(danger.mount.path / "billion", "user.shardfs.reason")
    assert os.stat(danger.mount.path / "billion/c/0").st_size == 20 * GIB
    danger.assert_alive_and_small()


def test_a_billion_chunks_in_many_absent_shards_cost_nothing(danger: Danger) -> None:
    directory = danger.add("wide", array((10**9, 3), (10**3, 3), sharding((1, 3), LITTLE)))
    (directory / "c/999999").mkdir()
    index = struct.pack("<2Q", 7, 12) + struct.pack("<2Q", EMPTY, EMPTY) * 999
    (directory / "c/999999/0").write_bytes(bytes(range(19)) + with_checksum(index))
    shown = danger.mount.path / "wide/c"
    assert (shown / "999999000/0").read_bytes() == bytes(range(7, 19))
    assert len(os.listdir(shown)) == 1000
    assert not (shown / "5/0").exists()
    danger.assert_alive_and_small()


def test_a_sparse_shard_of_twenty_gigabytes_is_read_where_it_is_asked(danger: Danger) -> None:
    directory = danger.add("sparse", array((4, 3), (4, 3), sharding((2, 3), LITTLE)))
    size = 20 * GIB
    (directory / "c/0").mkdir()
    with (directory / "c/0/0").open("wb") as shard:
        shard.seek(size - 5)
        shard.write(b"tail!" + with_checksum(struct.pack("<4Q", 0, size - 5, size - 5, 5)))
    shown = danger.mount.path / "sparse/c"
    assert os.stat(shown / "0/0").st_size == size - 5
    assert (shown / "1/0").read_bytes() == b"tail!"
    with open(shown / "0/0", "rb", buffering=0) as file:
        file.seek(size - 15)
        assert file.read(100) == bytes(10)
        assert os.pread(file.fileno(), 8 * 2**20, size // 2) == bytes(8 * 2**20)
    danger.assert_alive_and_small()


def test_a_listing_of_a_huge_damaged_shard_stays_small(danger: Danger) -> None:
    directory = danger.add("million", array((200_000,), (200_000,), sharding((1,))))
    (directory / "c/0").write_bytes(b"short")
    listed = subprocess.run(["ls", "-U", danger.mount.path / "million/c"], capture_output=True, check=True).stdout
    assert listed.count(b"\n") == 200_000
    danger.assert_alive_and_small()
