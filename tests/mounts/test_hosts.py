"""Hosts that share a file system, each with its caches, write to it at the same time."""

import errno
import gc
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from shardfs.errors import LockedError
from shardfs.stores.base import Descriptor
from shardfs.stores.local.file_lock import LOCK_SUFFIX, FileLock
from shardfs.stores.local.syscalls import SYSCALLS, WRITE, ofd_lock
from shardfs.stores.local.tree import LocalStore
from tests.support.commands import SOURCE, one_line_of, run, running_program
from tests.support.corpus import CRC32C, LITTLE, array, sharding
from tests.support.mounting import PATIENCE, Mount, Mounter, eventually, flush, refuses
from tests.support.nfs import client, pair, skip_without_hosts
from tests.support.opened import in_trio
from tests.support.prepared import Prepared
from tests.support.readers import READERS

NCHUNKS, LENGTH = 64, 100
DOCUMENT = array(
    (NCHUNKS * LENGTH,), (16 * LENGTH,), sharding((LENGTH,), index_codecs=(LITTLE, CRC32C)), data_type="uint8"
)


@dataclass(frozen=True)
class Host:
    """A machine called *name*, which sees the dataset that all share at *path*."""

    name: str
    path: Path

    def program(self, code: str, *arguments: object) -> AbstractContextManager[subprocess.Popen[bytes] | Prepared]:
        return running_program(code, self.path, *map(str, arguments), TEST_HOST=self.name)

    def writer(
        self, *numbers: int, turn: int = 1, waits: bool = False
    ) -> AbstractContextManager[subprocess.Popen[bytes] | Prepared]:
        """A process that writes chunks and prints their numbers; one that *waits* ends with its input."""
        return self.program(WRITER, turn, int(waits), *numbers)

    def mount(self, mount: Mounter) -> Mount:
        return mount(self.path, write=True, metadata_ttl=0, env={"TEST_HOST": self.name})


WRITER = """
import sys, shardfs
path, turn, waits, *numbers = sys.argv[1:]
with shardfs.open(path, write=True) as dataset:
    print("ready", flush=True)
    array = dataset[""]
    for number in numbers:
        array.write_chunk((int(number),), bytes([(10 * int(turn) + int(number)) % 256]) * 100)
        print(number, flush=True)
    if int(waits):
        sys.stdin.read()
"""


def content(number: int, turn: int = 1) -> bytes:
    return bytes([(10 * turn + number) % 256]) * LENGTH


def begun(*writers: subprocess.Popen[bytes] | Prepared) -> None:
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"


def ended(*writers: subprocess.Popen[bytes] | Prepared) -> None:
    for writer in writers:
        assert printed(writer) is not None
        assert writer.returncode == 0


def printed(writer: subprocess.Popen[bytes] | Prepared) -> bytes:
    """What a program still prints until it ends, as its input has."""
    assert writer.stdin is not None
    assert writer.stdout is not None
    writer.stdin.close()
    found = writer.stdout.read()
    writer.wait(PATIENCE)
    return found


def stored(source: Path, **expected: bytes) -> None:
    """Native readers find these chunks, by their numbers after a `_`, and zeros for all others."""
    chunks = [expected.get(f"_{number}", bytes(LENGTH)) for number in range(NCHUNKS)]
    for read in READERS.values():
        found = read(source).tobytes()
        assert [found[LENGTH * i : LENGTH * (i + 1)] for i in range(NCHUNKS)] == chunks
    assert run("verify", "--data", source).returncode == 0


def every(numbers: Iterable[int], turn: int = 1) -> dict[str, bytes]:
    return {f"_{number}": content(number, turn) for number in numbers}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """What the file server has."""
    directory = tmp_path / "shared/data"
    directory.mkdir(parents=True)
    (directory / "zarr.json").write_text(json.dumps(DOCUMENT))
    return directory


@pytest.fixture
def hosts(source: Path, tmp_path: Path) -> Iterator[list[Host]]:
    """Hosts whose locks reach each other."""
    skip_without_hosts()
    with pair(tmp_path) as places:
        yield [Host(name, place / "data") for name, place in zip(("alpha", "beta"), places, strict=True)]
        gc.collect()  # errors keep frames, and these keep files open


@in_trio
async def test_a_lock_file_that_another_host_removed_locks_nothing(hosts: list[Host]) -> None:
    alpha, beta = (host.path for host in hosts)
    (alpha / "shard").write_bytes(b"old")
    async with LocalStore(str(alpha)).edit("shard"):
        directory = Descriptor(os.open(beta, os.O_RDONLY))
        waiting = Descriptor(os.open(f"shard{LOCK_SUFFIX}", WRITE, dir_fd=directory.fd))
        with pytest.raises(LockedError):
            async with LocalStore(str(beta)).edit("shard"):
                pass
    assert ofd_lock(waiting.fd)
    assert not FileLock(SYSCALLS, directory, f"shard{LOCK_SUFFIX}", waiting).is_current()
    async with LocalStore(str(beta)).edit("shard"):
        pass


def test_processes_of_two_hosts_write_into_the_same_shards_and_lose_nothing(hosts: list[Host], source: Path) -> None:
    for turn in (1, 2):
        with ExitStack() as stack:
            writers = [
                stack.enter_context(hosts[number % 2].writer(*range(number, NCHUNKS, 4), turn=turn))
                for number in range(4)
            ]
            ended(*writers)
        stored(source, **every(range(NCHUNKS), turn))
    eventually(lambda: {path.name for path in source.rglob("*") if path.is_file()} <= {"zarr.json", "lock", *"0123"})


def test_mounts_of_two_hosts_see_what_the_other_committed(hosts: list[Host], source: Path, mount: Mounter) -> None:
    mounts = [host.mount(mount) for host in hosts]
    for number in range(32):
        (mounts[number % 2].path / f"c/{number}").write_bytes(content(number))
    flush(mounts[0].path)
    stored(source, **every(range(32)))
    for mounted, number in product(mounts, range(32)):
        eventually(lambda mounted=mounted, number=number: _read(mounted.path / f"c/{number}") == content(number))
    for mounted in mounts:
        mounted.unmount()
    stored(source, **every(range(32)))


def _read(path: Path) -> bytes | None:
    with suppress(FileNotFoundError):  # the other host sees a new name after some time
        return path.read_bytes()
    return None


def test_what_a_killed_process_published_is_committed_by_another_host(hosts: list[Host], source: Path) -> None:
    alpha, beta = hosts
    with beta.writer(waits=True) as other, alpha.writer(waits=True) as proof:  # that locks of alpha reach beta
        begun(other, proof)
        with alpha.writer(*range(20), waits=True) as killed:
            assert killed.stdout is not None
            for line in killed.stdout:
                if line == b"19\n":
                    killed.kill()
                    break
        ended(other)
        stored(source, **every(range(20)))
        ended(proof)
    stored(source, **every(range(20)))


WRITES_AND_REMOVES = """
import os, sys, shardfs
dataset = shardfs.open(sys.argv[1], write=True)
print("ready", flush=True)
sys.stdin.readline()
dataset[""].write_chunk((0,), b"x" * 100)
dataset.flush()
dataset[""].write_chunk((0,), None)
os._exit(9)
"""
LOOKS = """
import sys, shardfs
with shardfs.open(sys.argv[1], write=True, metadata_ttl=0.0) as dataset:
    print("ready", flush=True)
    sys.stdin.readline()
    print(dataset[""].read_chunk((0,)), flush=True)
    sys.stdin.readline()
"""


def test_a_removal_is_made_by_a_host_that_keeps_the_name_of_the_shard_as_one_that_is_not_there(
    hosts: list[Host], source: Path
) -> None:
    def told(process: subprocess.Popen[bytes] | Prepared) -> None:
        assert process.stdin is not None
        process.stdin.write(b"go on\n")
        process.stdin.flush()

    alpha, beta = hosts
    (source / "c").mkdir()
    with (
        alpha.writer(waits=True) as proof,
        beta.program(LOOKS) as looking,
        alpha.program(WRITES_AND_REMOVES) as killed,
    ):
        begun(proof, looking, killed)
        told(looking)
        assert looking.stdout is not None
        assert looking.stdout.readline() == b"None\n"
        told(killed)
        assert killed.wait(PATIENCE) == 9
        ended(looking)
        stored(source)
        ended(proof)
    stored(source)


def test_what_a_host_synced_before_it_went_is_committed_by_another(
    source: Path, tmp_path: Path, mount: Mounter
) -> None:
    skip_without_hosts()
    shared, others = tmp_path / "shared", [Host(name, tmp_path / name / "data") for name in ("beta", "gamma")]
    with ExitStack() as stack:
        for host in others:
            stack.enter_context(client(shared, tmp_path / host.name))
        first, second = (stack.enter_context(host.writer(waits=True)) for host in others)
        begun(first, second)
        with client(shared, tmp_path / "alpha") as alpha:
            mounted = Host("alpha", tmp_path / "alpha/data").mount(mount)
            for number in range(20):
                (mounted.path / f"c/{number}").write_bytes(content(number))
            fd = os.open(mounted.path / "c/19", os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
            alpha.kill()
            mounted.process.kill()
            mounted.process.wait(PATIENCE)
            mounted.expect("")
        ended(first)
        stored(source, **every(range(20)))
        ended(second)


def test_the_second_of_two_edits_of_a_document_by_two_hosts_is_stale(
    hosts: list[Host], source: Path, mount: Mounter
) -> None:
    first, second = (host.mount(mount) for host in hosts)
    documents = [json.loads((mounted.path / "zarr.json").read_text()) for mounted in (first, second)]
    (first.path / "zarr.json").write_text(json.dumps(documents[0] | {"attributes": {"by": "first"}}))
    with refuses(errno.ESTALE):
        (second.path / "zarr.json").write_text(json.dumps(documents[1] | {"attributes": {"by": "second"}}))
    assert json.loads((source / "zarr.json").read_text())["attributes"] == {"by": "first"}


def test_hosts_whose_locks_do_not_reach_write_one_at_a_time(source: Path, tmp_path: Path) -> None:
    skip_without_hosts()
    with pair(tmp_path, locks="local") as places:
        alpha, beta = (Host(name, place / "data") for name, place in zip(("alpha", "beta"), places, strict=True))
        with alpha.writer(0, 1, waits=True) as first, alpha.writer(2, waits=True) as second:
            begun(first, second)
            (tmp_path / "place").mkdir()
            done = run("mount", "--write", beta.path, tmp_path / "place", TEST_HOST="beta")
            assert re.search(r"already being written by process \d+ on alpha", one_line_of(done, SOURCE))
            ended(first, second)
        with beta.writer(3) as third:
            ended(third)
    stored(source, **every(range(4)))


def test_two_bindfs_lose_nothing_though_their_locks_end_early(source: Path, tmp_path: Path) -> None:
    """It locks as one process, and such a lock ends when that closes the file, whoever had it open."""
    skip_without_hosts()
    if shutil.which("bindfs") is None:
        pytest.skip("no bindfs here")
    places = [tmp_path / name for name in ("alpha", "beta")]
    timeouts = ",".join(f"{name}_timeout=0" for name in ("attr", "entry", "negative"))  # it renews nothing at open
    written: list[int] = []
    try:
        for place in places:
            place.mkdir()
            options = ("--multithreaded", "--enable-lock-forwarding", "-o", timeouts)
            subprocess.run(["bindfs", *options, tmp_path / "shared", place], check=True)
        with ExitStack() as stack:
            writers = [
                stack.enter_context(Host(place.name, place / "data").writer(*range(number, NCHUNKS, 2)))
                for number, place in enumerate(places)
            ]
            for writer in writers:
                lines = printed(writer)
                written += map(int, lines.split()[1:])
                assert writer.returncode == 0 or not lines  # it was refused
    finally:
        for place in places:
            subprocess.run(["fusermount3", "-u", "-z", place], check=False)
    stored(source, **every(written))
