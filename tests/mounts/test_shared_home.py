"""State directories and sources on a file system that several hosts share, without locks that all of them see."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import shardfs
from tests.support.commands import FAILED, SOURCE, one_line_of, run
from tests.support.daemons import end_mounts_below, kill_daemon
from tests.support.datasets import store
from tests.support.hosts import DOCUMENT, NEW, OTHER, PREFIX
from tests.support.nfs import pair, skip_without_hosts
from tests.support.s3_server import Bucket


@dataclass(frozen=True)
class Host:
    """A machine called *name*, which sees what all share at *home*."""

    name: str
    home: Path
    directory: Path
    variables: dict[str, Any]

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return run(*arguments, TEST_HOST=self.name, XDG_STATE_HOME=str(self.home / "state"), **self.variables)

    def mount(self, source: str | Path, number: int = 0) -> Path:
        """Mount in the background, to write; returns where."""
        place = self.directory / f"{self.name}-{number}"
        place.mkdir(exist_ok=True)
        done = self.run("mount", "--write", "--log-file", self.log, source, place)
        assert done.returncode == 0, str(done)
        return place

    @property
    def log(self) -> Path:
        return self.directory / f"{self.name}.log"


@pytest.fixture
def shares(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """One directory as two hosts see it."""
    skip_without_hosts()
    with pair(tmp_path, locks="local") as places:
        yield places
        end_mounts_below(tmp_path)


@pytest.fixture
def hosts(shares: tuple[Path, Path], s3_bucket: Bucket, tmp_path: Path) -> tuple[Host, Host]:
    """Two hosts that share a home, and reach a bucket with an array."""
    store(tmp_path / "source", DOCUMENT)
    s3_bucket.upload(tmp_path / "source", PREFIX)
    alpha, beta = (
        Host(name, home, tmp_path, s3_bucket.environment) for name, home in zip(("alpha", "beta"), shares, strict=True)
    )
    return alpha, beta


def stored(bucket: Bucket) -> list[bytes | None]:
    opened = shardfs.open(bucket.url(PREFIX), store_options=shardfs.StoreOptions(endpoint_url=bucket.endpoint_url))
    return [opened[""].read_chunk((0, j)) for j in range(2)]


def test_files_of_a_running_mount_of_another_host_are_left_alone(hosts: tuple[Host, Host], s3_bucket: Bucket) -> None:
    alpha, beta = hosts
    url = s3_bucket.url(PREFIX)
    first = alpha.mount(url)
    (first / "c/0/0").write_bytes(NEW)
    second = beta.mount(url)
    assert "has chunks that may not be committed yet, of process" in beta.log.read_text()
    assert stored(s3_bucket)[0] != NEW
    (second / "c/0/1").write_bytes(OTHER)
    assert beta.run("umount", second).returncode == 0
    assert stored(s3_bucket)[0] != NEW
    (first / "c/0/0").write_bytes(NEW[::-1] + b"again")
    done = alpha.run("umount", first)
    assert (done.returncode, done.stderr) == (0, "")
    assert stored(s3_bucket) == [NEW[::-1] + b"again", OTHER]
    for host in hosts:
        done = host.run("recover")
        assert (done.stdout, done.stderr) == ("nothing to recover\n", "")


def test_a_journal_of_another_host_is_replayed_when_asked_for(hosts: tuple[Host, Host], s3_bucket: Bucket) -> None:
    alpha, beta = hosts
    url = s3_bucket.url(PREFIX)
    first = alpha.mount(url)
    (first / "c/0/0").write_bytes(NEW)
    kill_daemon(first)
    assert beta.run("umount", beta.mount(url)).returncode == 0
    assert beta.run("recover", "--apply", url).returncode == FAILED
    assert stored(s3_bucket)[0] != NEW
    listed = beta.run("recover")
    assert listed.returncode == FAILED
    (line,) = listed.stdout.splitlines()
    assert "chunks that may not be committed yet; of process" in line
    assert "on alpha" in line
    way_out = line.partition("remove ")[2]
    lock, _, command = way_out.partition(" and run this command again here: ")
    assert f"remove {lock} and run this command again here\n" in beta.run("recover", url).stdout
    os.unlink(lock)
    assert beta.run(*shlex.split(command)[1:]).returncode == 0
    assert stored(s3_bucket)[0] == NEW
    assert beta.run("recover").stdout == "nothing to recover\n"


def test_where_nothing_can_be_locked_a_bucket_is_not_written(s3_bucket: Bucket, tmp_path: Path) -> None:
    store(tmp_path / "source", DOCUMENT)
    s3_bucket.upload(tmp_path / "source", PREFIX)
    (tmp_path / "place").mkdir()
    without = {"TEST_WITHOUT_LOCKS": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    done = run("mount", "--write", s3_bucket.url(PREFIX), tmp_path / "place", **s3_bucket.environment, **without)
    assert "for a bucket, set XDG_STATE_HOME to a directory on one" in one_line_of(done, SOURCE)


def test_a_source_that_hosts_share_is_written_by_one_of_them_at_a_time(
    shares: tuple[Path, Path], tmp_path: Path
) -> None:
    store(tmp_path / "shared/data", DOCUMENT)
    alpha, beta = (Host(name, tmp_path / name, tmp_path, {}) for name in ("alpha", "beta"))
    for is_running in (True, False):
        first = alpha.mount(shares[0] / "data")
        (first / "c/0/0").write_bytes(NEW)
        if not is_running:
            kill_daemon(first)
        (tmp_path / "place").mkdir(exist_ok=True)
        line = one_line_of(beta.run("mount", "--write", shares[1] / "data", tmp_path / "place"), SOURCE)
        assert re.search(r"on alpha \(user \w+\), which has it mounted at .*; unmount it there first", line)
        lock = shares[1] / "data/.shardfs/0/lock"
        assert f"remove {lock}" in line
        assert "on alpha" in one_line_of(beta.run("mount", "--write", shares[1], tmp_path / "place"), SOURCE)
        if is_running:
            assert alpha.run("umount", first).returncode == 0
    os.unlink(lock)
    assert beta.run("umount", beta.mount(shares[1] / "data")).returncode == 0
    assert shardfs.open(tmp_path / "shared/data")[""].read_chunk((0, 0)) == NEW


def test_a_source_on_a_file_system_without_locks_is_not_written(tmp_path: Path) -> None:
    store(tmp_path / "data", DOCUMENT)
    (tmp_path / "place").mkdir()
    done = run("mount", "--write", tmp_path / "data", tmp_path / "place", TEST_WITHOUT_LOCKS=str(tmp_path))
    assert "shardfs can only write to a file system with locks" in one_line_of(done, SOURCE)
    assert run("recover", tmp_path / "data", TEST_WITHOUT_LOCKS=str(tmp_path)).stdout == "nothing to recover\n"
