"""Whole shards read in order, and many readers at a time, from a mounted bucket: how few requests that takes."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.mounting import PATIENCE, Mounter
from tests.support.processes import running
from tests.support.s3_mounts import CHUNK, PREFIX, Remote, bytes_of, fill, index_nbytes
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import S3Server

KIB, MIB = 2**10, 2**20
WINDOW = 8 * MIB
SMALL = 2 * MIB + 64 * KIB


SIZES = [64 * KIB, WINDOW + 512 * KIB, 2 * WINDOW - 64 * KIB, 3 * WINDOW]


@dataclass(frozen=True)
class Shards:
    """Arrays of one shard of each size, called after that, and their chunks."""

    remote: Remote
    chunks: dict[int, dict[str, bytes]]

    def known(self, nbytes: int) -> Path:
        """Return where the array is, and let its document be known."""
        path = self.remote.mounts[0].path / str(nbytes)
        (path / "zarr.json").read_bytes()
        self.remote.taken()
        return path

    def taken(self, nbytes: int) -> tuple[int, int]:
        """How many requests for the shard there were since, and how many bytes came."""
        requests = [request for request in self.remote.taken() if request.operation == "GetObject"]
        assert {request.key for request in requests} == {f"{PREFIX}/{nbytes}/c/0"}
        return len(requests), sum(request.bytes_out for request in requests)

    def read(self, path: Path, nbytes: int) -> None:
        """Read all chunks in order."""
        for number in range(len(self.chunks[nbytes])):
            assert (path / f"c/{number}").read_bytes() == self.chunks[nbytes][f"c/{number}"]


@pytest.fixture(scope="module")
def shards(s3_server: S3Server, module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shards]:
    with S3Proxy(s3_server.endpoint_url) as proxy:
        remote = Remote(s3_server.make_bucket(), proxy, module_mount, tmp_path_factory.mktemp("shards"))
        numbers = {nbytes: 16 if nbytes < MIB else nbytes // CHUNK for nbytes in SIZES}
        chunks = {n: fill(remote, str(n), bytes_of(count, n // count)) for n, count in numbers.items()}
        remote.mount()
        yield Shards(remote, chunks)


@pytest.mark.parametrize("nbytes", SIZES)
def test_a_whole_shard_in_order_takes_two_requests_and_one_more_for_each_8_mib(shards: Shards, nbytes: int) -> None:
    path = shards.known(nbytes)
    count = len(os.listdir(path / "c"))  # as `cp -r` and `tar` do: whoever lists a directory reads it
    assert shards.remote.proxy.log.bytes_out("GetObject") == index_nbytes(count)
    shards.read(path, nbytes)
    requests, received = shards.taken(nbytes)
    assert requests <= 2 + nbytes / WINDOW
    assert received == index_nbytes(count) + nbytes


def test_small_shards_that_are_read_in_order_are_one_request_each(remote: Remote) -> None:
    chunks = fill(remote, "", bytes_of(32, nshards=4))
    root = remote.mount()
    (root / "zarr.json").read_bytes()
    remote.taken()
    for number in range(4 * 32):
        assert (root / f"c/{number}").read_bytes() == chunks[f"c/{number}"]
    index = index_nbytes(32)
    first = [f"GET c/0 -{index}", f"GET c/0 0-{CHUNK - 1}", f"GET c/0 {CHUNK}-{32 * CHUNK - 1}"]
    assert remote.asked() == [*first, *(f"GET c/{shard} 0-{SMALL - 1}" for shard in range(1, 4))]


def test_a_chunk_here_and_there_after_shards_in_order_takes_its_bytes_again(remote: Remote) -> None:
    chunks = fill(remote, "", bytes_of(32, nshards=4))
    root = remote.mount()
    for number in (0, 1):
        (root / f"c/{number}").read_bytes()
    remote.taken()
    for number in (40, 50, 80, 110):
        assert (root / f"c/{number}").read_bytes() == chunks[f"c/{number}"]
    asked = remote.asked()
    assert asked[0] == f"GET c/1 0-{SMALL - 1}"
    assert [words.split()[1] for words in asked[1:]] == ["c/2", "c/2", "c/3", "c/3"]


def test_who_reads_on_in_the_middle_of_a_small_shard_gets_no_other_one_whole(remote: Remote) -> None:
    chunks = fill(remote, "", bytes_of(32, nshards=3))
    root = remote.mount()
    (root / "zarr.json").read_bytes()
    remote.taken()
    for number in (10, 11, 40, 70):
        assert (root / f"c/{number}").read_bytes() == chunks[f"c/{number}"]
    index = index_nbytes(32)
    parts = [
        f"c/0 -{index}",
        _part(0, 10),
        _part(0, 11, 21),
        f"c/1 -{index}",
        _part(1, 8),
        f"c/2 -{index}",
        _part(2, 6),
    ]
    assert remote.asked() == [f"GET {part}" for part in parts]


def _part(shard: int, first: int, count: int = 1) -> str:
    """Some chunks of a shard, as requests say it."""
    return f"c/{shard} {first * CHUNK}-{(first + count) * CHUNK - 1}"


@pytest.mark.parametrize("distance", [2, 4])
def test_a_small_shard_whose_first_chunks_are_wanted_near_to_each_other_comes_whole(
    remote: Remote, distance: int
) -> None:
    chunks = fill(remote, "", bytes_of(32))
    root = remote.mount()
    for number in (0, distance, *range(32)):
        assert (root / f"c/{number}").read_bytes() == chunks[f"c/{number}"]
    assert len([words for words in remote.asked() if " c/0 " in words]) <= 4


def test_programs_that_read_the_same_shard_fetch_it_once(remote: Remote) -> None:
    chunks = fill(remote, "", bytes_of(64))
    root = remote.mount(arguments=["--max-connections=4"])
    (root / "zarr.json").read_bytes()
    os.listdir(root / "c")
    remote.taken()
    remote.proxy.latency = 0.02
    everyone = [list(range(64))] * 8
    assert parallel_digests(root, everyone) == digests(chunks, everyone)
    assert remote.asked() == [f"GET c/0 0-{64 * CHUNK - 1}"]


_DIGEST = """
import hashlib, sys
digest = hashlib.sha256()
for path in sys.argv[1:]:
    with open(path, "rb") as file:
        digest.update(file.read())
print(digest.hexdigest())
"""


def parallel_digests(root: Path, parts: list[list[int]]) -> list[str]:
    """Let a process each read the chunks of one of *parts*, all at the same time."""
    commands = [["python3", "-c", _DIGEST, *(str(root / f"c/{number}") for number in part)] for part in parts]
    with ExitStack() as stack:
        processes = [stack.enter_context(running(line, stdout=subprocess.PIPE, text=True)) for line in commands]
        return [process.communicate(timeout=PATIENCE)[0].strip() for process in processes]


def digests(chunks: dict[str, bytes], parts: list[list[int]]) -> list[str]:
    return [sha256(b"".join(chunks[f"c/{number}"] for number in part)).hexdigest() for part in parts]
