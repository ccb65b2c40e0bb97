"""What a commit to a bucket costs: a handful of requests whatever is written, and no old payload of 5 MiB and more."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import google_crc32c
import numpy as np
import pytest

from tests.support.corpus import array, extension, sharding
from tests.support.encoder import EMPTY
from tests.support.mounting import Mount, Mounter, flush
from tests.support.s3_log import RequestLog
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket
from tests.support.writers import tool

KIB, MIB = 2**10, 2**20
PREFIX = "a/data.zarr"
PER_SHARD = 512
INDEX = 16 * PER_SHARD + 4
"""Bytes of an index with its checksum."""

MIN_PART = 5 * MIB
MAX_REQUESTS = 6


@dataclass
class Shard:
    """The only shard of an array in a bucket behind a proxy, whose chunks are changed through a mount.

    Chunks have *nbytes* bytes; *chunks* is what it must hold.
    """

    bucket: Bucket
    proxy: S3Proxy
    mounter: Mounter
    nbytes: int
    location: str = "end"
    encoding: str = "default/"
    view: str = "v3"
    chunks: dict[int, bytes] = field(default_factory=dict)
    _mount: Mount | None = None
    _chance: Random = field(default_factory=lambda: Random(1))

    @property
    def key(self) -> str:
        return f"{PREFIX}/{self._name_of(self.encoding, 0)}"

    def chunk(self, number: int) -> Path:
        """Where a chunk is on the mount."""
        return self.path / self._name_of(self.encoding if self.view == "v3" else "v2.", number)

    @staticmethod
    def _name_of(encoding: str, number: int) -> str:
        return f"c{encoding[-1]}{number}" if encoding.startswith("default") else str(number)

    def store(self, *numbers: int) -> None:
        """Store the document, and the shard with some chunks, behind the mount."""
        codecs = sharding((self.nbytes,), extension("bytes"), index_location=self.location)
        shape = (PER_SHARD * self.nbytes,)
        names = {"name": self.encoding[:-1], "configuration": {"separator": self.encoding[-1]}}
        document = array(shape, shape, codecs, data_type="uint8", chunk_key_encoding=names)
        self.bucket.put(f"{PREFIX}/zarr.json", json.dumps(document).encode())
        self.chunks = {number: self._chance.randbytes(self.nbytes) for number in numbers}
        if numbers:
            self.bucket.put(self.key, encode(self.chunks, self.location))

    def mount(self) -> Shard:
        """Mount the source, and let the document be known."""
        self._mount = self.mounter(
            self.bucket.url(PREFIX),
            write=True,
            env=self.bucket.through(self.proxy.url).environment,
            arguments=[f"--view={self.view}"],
        )
        self.path.joinpath("zarr.json" if self.view == "v3" else ".zarray").read_bytes()
        self.log.clear()
        return self

    def unmount(self) -> None:
        assert self._mount
        self._mount.unmount()

    @property
    def path(self) -> Path:
        assert self._mount
        return self._mount.path

    @property
    def log(self) -> RequestLog:
        return self.proxy.log

    def write(self, *numbers: int) -> None:
        """Write chunks as a program does that writes whole files in place."""
        for number in numbers:
            self.chunks[number] = self._chance.randbytes(self.nbytes)
            self.path.joinpath(f"c/{number}").write_bytes(self.chunks[number])

    def remove(self, *numbers: int) -> None:
        for number in numbers:
            del self.chunks[number]
            self.path.joinpath(f"c/{number}").unlink()

    def commit(self) -> Counter[str]:
        """Bring everything into the shard, compare, and return what was asked for since the last time."""
        assert self._mount
        flush(self.path)
        asked = self.log.operations()
        self._check_parts()
        self.check()
        return asked

    def check(self) -> None:
        """Compare what is in the bucket with what must be."""
        assert decode(self.bucket.get(self.key), self.location) == self.chunks
        assert not self.bucket.uploads()

    def _check_parts(self) -> None:
        """S3 takes parts of less than 5 MiB only as the last one; the server of the tests takes all."""
        sizes = {
            int(request.query["partNumber"]): request.bytes_in or _nbytes(request.headers["x-amz-copy-source-range"])
            for request in self.log.of("UploadPart", "UploadPartCopy")
        }
        assert all(sizes[number] >= MIN_PART for number in sizes if number != max(sizes))


def _nbytes(source_range: str) -> int:
    first, last = source_range.removeprefix("bytes=").split("-")
    return int(last) + 1 - int(first)


def encode(chunks: dict[int, bytes], location: str) -> bytes:
    """Return a shard as another program would store it, with the chunks in order and nothing between them."""
    index = np.full((PER_SHARD, 2), EMPTY, "<u8")
    offset = INDEX if location == "start" else 0
    for number, data in sorted(chunks.items()):
        index[number] = offset, len(data)
        offset += len(data)
    stored = index.tobytes() + google_crc32c.value(index.tobytes()).to_bytes(4, "little")
    payload = b"".join(data for _, data in sorted(chunks.items()))
    return stored + payload if location == "start" else payload + stored


def decode(shard: bytes, location: str) -> dict[int, bytes]:
    """Return the chunks of a shard, as the specification says."""
    stored = shard[:INDEX] if location == "start" else shard[-INDEX:]
    assert google_crc32c.value(stored[:-4]) == int.from_bytes(stored[-4:], "little")
    entries = np.frombuffer(stored[:-4], "<u8").reshape(PER_SHARD, 2).tolist()
    return {
        number: shard[offset : offset + nbytes]
        for number, (offset, nbytes) in enumerate(entries)
        if (offset, nbytes) != (EMPTY, EMPTY)
    }


def write_beside(shard: Shard, number: int) -> None:
    """Write a chunk under another name, as one program or another does, and give it its own then."""
    shard.chunks[number] = data = bytes([number % 256]) * shard.nbytes
    chunk = shard.chunk(number)
    names = {
        "rclone": f"{chunk.name}.{number:08x}.partial",
        "zarr 2": f"{chunk.name}.{number:032x}.partial",
        "zarr 3": chunk.with_suffix(f".{number:032x}.partial").name,
        "rsync": f".{chunk.name}.X{number:04}z",
        "tensorstore": f"{chunk.name}.__lock",
    }
    program = list(names)[number % 5]
    temporary = chunk.with_name(names[program])
    with temporary.open("xb") as file:
        file.write(data)
        if program == "tensorstore":
            os.fsync(file.fileno())
            temporary.rename(chunk)
            return
    if program == "rsync":
        os.utime(temporary, (1e9, 1e9))
    if number % 7:
        temporary.replace(chunk)
    else:
        os.link(temporary, chunk)
        temporary.unlink()


@pytest.fixture
def shard(s3_bucket: Bucket, s3_proxy: S3Proxy, mount: Mounter) -> Shard:
    return Shard(s3_bucket, s3_proxy, mount, 64 * KIB)


@pytest.mark.parametrize(("old", "count"), [(79, 1), (80, 1), (80, PER_SHARD)])
def test_any_number_of_chunks_is_committed_with_six_requests(shard: Shard, old: int, count: int) -> None:
    shard.store(*range(old))
    shard.mount().write(*range(PER_SHARD - count, PER_SHARD))
    asked = shard.commit()
    document, index = {"ListObjectsV2": 1}, {"GetObject": 1}
    if old * shard.nbytes < MIN_PART or count == PER_SHARD:
        fetched = int(count < PER_SHARD)
        assert asked == document | {"GetObject": 1 + fetched, "PutObject": 1}
        kept = old * shard.nbytes if count < PER_SHARD else 0
        assert shard.log.bytes_in("PutObject") == kept + count * shard.nbytes + INDEX
        return
    upload = ("CreateMultipartUpload", "UploadPartCopy", "UploadPart", "CompleteMultipartUpload")
    assert asked == document | index | dict.fromkeys(upload, 1)
    assert asked.total() == MAX_REQUESTS
    assert shard.log.bytes_out("GetObject") == INDEX, "nothing old is downloaded but the index"
    assert shard.log.bytes_in("UploadPart") == count * shard.nbytes + INDEX, "nothing old is sent"


@pytest.mark.parametrize(("encoding", "view"), [("default/", "v2"), ("default.", "v3"), ("v2.", "v2")])
def test_names_beside_chunks_cost_two_requests_however_many_there_are(shard: Shard, encoding: str, view: str) -> None:
    shard.encoding, shard.view = encoding, view
    shard.store(*range(80))
    shard.mount()
    for number in range(100, 164):
        write_beside(shard, number)
    asked = shard.commit()
    assert asked.pop("ListObjectsV2") <= 3
    assert asked.total() == MAX_REQUESTS - 1


def test_a_file_of_any_other_name_beside_flat_chunks_is_stored(shard: Shard) -> None:
    """It may be a user's own, and the only copy."""
    shard.encoding = "default."
    shard.store(0)
    names = ["c.0.backup", "c.0.notes.txt", ".c.0.swp", "c.0.partial", "notes.0123456789.partial", ".notes.a1B2c3"]
    shard.bucket.put(f"{PREFIX}/c.0.00000000.partial", b"of a program that was killed")
    shard.mount()
    for name in names:
        (shard.path / name).write_bytes(name.encode())
        assert asked(shard) == [f"PUT {name}"]
        assert shard.bucket.get(f"{PREFIX}/{name}") == name.encode()
    assert {*names, "c.0.00000000.partial"} <= {*os.listdir(shard.path)}
    assert (shard.path / "c.0.00000000.partial").read_bytes() == b"of a program that was killed"
    (shard.path / "c.0.00000000.partial").unlink()
    assert asked(shard)[-1] == "DELETE c.0.00000000.partial"


def test_temporary_files_beside_flat_chunks_are_listed_and_kept_for_the_next_mount(shard: Shard) -> None:
    shard.encoding = "default."
    shard.store(0)
    shard.mount()
    names = ["c.1.00000000.partial", ".c.1.a1B2c3", "c.1.__lock"]
    for name in names:
        (shard.path / name).write_bytes(name.encode())
    assert asked(shard) == []
    assert sorted(os.listdir(shard.path)) == sorted([*names, "c.0", "zarr.json"])
    assert shard.chunk(0).read_bytes() == shard.chunks[0]
    (shard.path / names[0]).rename(shard.path / "notes.txt")
    assert shard.bucket.get(f"{PREFIX}/notes.txt") == names[0].encode()
    shard.unmount()
    assert {key.rpartition("/")[2] for key in shard.bucket.keys(PREFIX)} == {"c.0", "notes.txt", "zarr.json"}
    shard.mount()
    assert (shard.path / names[1]).read_bytes() == names[1].encode()
    tool("rm", *(shard.path / name for name in names[1:]))
    assert sorted(os.listdir(shard.path)) == ["c.0", "notes.txt", "zarr.json"]


@pytest.mark.parametrize("location", ["end", "start"])
def test_appends_around_five_mebibytes_keep_every_byte(shard: Shard, location: str) -> None:
    shard.location = location
    shard.store(*range({"end": 76, "start": 155}[location]))  # with the index before it, 5 MiB are sent again
    shard.mount()
    for number in range(8):
        shard.write(PER_SHARD - 1 - number)
        if number % 5 == 3:
            shard.write(number % 30)
        shard.commit()
    assert shard.log.operations()["PutObject"] > 0
    assert shard.log.operations()["CompleteMultipartUpload"] > 0


def test_where_the_index_is_at_the_start_the_first_part_alone_is_sent_again(shard: Shard) -> None:
    shard.location = "start"
    shard.store(*range(200))
    shard.mount().write(300, 301)
    asked = shard.commit()
    assert asked["UploadPartCopy"] == 1
    assert shard.log.bytes_out("GetObject") <= INDEX + MIN_PART
    assert shard.log.bytes_in("UploadPart") <= MIN_PART + INDEX + 2 * shard.nbytes


def test_chunks_are_removed_from_a_large_shard_without_moving_the_others(shard: Shard) -> None:
    shard.store(*range(200))
    shard.mount().remove(*range(0, 200, 2))
    asked = shard.commit()
    assert asked.total() <= MAX_REQUESTS
    assert shard.log.bytes_out("GetObject") == INDEX
    assert shard.log.bytes_in("UploadPart") == INDEX


# Documents and files that pass through


NAMES = {"PutObject": "PUT", "GetObject": "GET", "HeadObject": "HEAD", "DeleteObject": "DELETE"}


def asked(shard: Shard) -> list[str]:
    """What was asked for since the last time, and of which name, but for looks at the names in directories."""
    found = [
        f"{NAMES.get(request.operation, request.operation)} {request.key.removeprefix(f'{PREFIX}/')}"
        for request in shard.log
        if request.operation not in ("ListObjectsV2", "HeadBucket")
    ]
    shard.log.clear()
    return found


def replace(path: Path, data: bytes) -> None:
    temporary = path.with_name("tmp")
    temporary.write_bytes(data)
    temporary.replace(path)


def test_a_file_costs_one_request_and_with_a_temporary_name_three_more(shard: Shard) -> None:
    shard.store()
    shard.bucket.put(f"{PREFIX}/old.txt", b"old")
    path = shard.mount().path / "files"
    path.mkdir()
    asked(shard)
    (path / "new.txt").write_bytes(b"new")
    assert asked(shard) == ["PUT files/new.txt"]
    (path / "new.txt").write_bytes(b"newer")
    assert asked(shard) == ["PUT files/new.txt"]
    replace(path / "new.txt", b"newest")
    assert asked(shard) == ["PUT files/tmp", "GET files/tmp", "PUT files/new.txt", "DELETE files/tmp"]
    with (path / "new.txt").open("r+b") as file:
        file.write(b"N")
    assert asked(shard) == ["GET files/new.txt", "PUT files/new.txt"]
    (shard.path / "old.txt").write_bytes(b"new")
    assert asked(shard) == ["HEAD old.txt", "PUT old.txt"]
    assert (path / "new.txt").read_bytes() == b"Newest"
    assert asked(shard) == ["GET files/new.txt"]


def test_a_large_file_that_is_renamed_is_copied_by_s3(shard: Shard) -> None:
    shard.store()
    path = shard.mount().path / "files"
    path.mkdir()
    asked(shard)
    replace(path / "large.bin", bytes(MIN_PART))
    upload = ["CreateMultipartUpload", "UploadPartCopy", "CompleteMultipartUpload"]
    assert asked(shard) == ["PUT files/tmp", *[f"{name} files/large.bin" for name in upload], "DELETE files/tmp"]
