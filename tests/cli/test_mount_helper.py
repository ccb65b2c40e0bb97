"""mount(8), fstab and umount(8): the real ones, in a mount namespace where shardfs is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import shardfs
from shardfs.cli.mount_helper import mount_main
from tests.cli.test_umount import NEW, kept_busy
from tests.support.commands import WRONG_USAGE
from tests.support.mounting import PATIENCE, Mounter, environment
from tests.support.namespaces import Machine, machine
from tests.support.s3_server import Bucket

SCRIPTS = Path(sys.executable).parent
CHUNK = "c/0/0"
INSTALL = (SCRIPTS / "shardfs", "install-helper")
NOT_UNDERSTOOD, MOUNT_FAILED = 2, 32


@dataclass(frozen=True)
class Host:
    """A machine with shardfs, a dataset at *source*, and a file like /etc/fstab; *env* is what programs get."""

    machine: Machine
    source: str
    place: Path
    fstab: Path
    env: Mapping[str, str]

    def describe(self, words: str, kind: str = "shardfs") -> None:
        """Write the line of fstab."""
        names = [str(name).replace(" ", "\\040") for name in (self.source, self.place)]
        self.fstab.write_text(f"{' '.join(names)} {kind} {words} 0 0\n")

    def mount(self, *options: str | Path, status: int = 0) -> str:
        """Run `mount` with our fstab, and return what it said."""
        done = self.machine.run("mount", "-T", self.fstab, *options, status=status, env=self.env)
        return done.stdout + done.stderr

    @property
    def seen(self) -> Path:
        return self.machine.see(self.place)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine on which the helpers are installed."""
    with machine(tmp_path_factory.mktemp("machine")) as made:
        made.run(*INSTALL)
        yield made


@pytest.fixture
def host(installed: Machine, source: Path, tmp_path: Path) -> Iterator[Host]:
    source = source.rename(tmp_path / "a source, é")
    (tmp_path / "a place").mkdir()
    env = {"PYTHONPATH": environment()["PYTHONPATH"], "XDG_STATE_HOME": str(tmp_path / "state")}
    yield Host(installed, str(source), tmp_path / "a place", tmp_path / "fstab", env)
    installed.run("sh", "-c", 'umount "$1" 2>/dev/null; true', "sh", tmp_path / "a place")


def test_a_line_of_fstab_is_mounted_once_and_umount_returns_when_all_is_committed(
    host: Host, s3_bucket: Bucket
) -> None:
    s3_bucket.upload(Path(host.source), "path/data, é.zarr")
    host = replace(host, source=s3_bucket.url("path/data, é.zarr"), env={**host.env, **s3_bucket.environment})
    host.describe("defaults,_netdev,nofail,noatime,x-systemd.automount,write,metadata_ttl=5", "fuse.shardfs")
    assert host.mount("-a") == ""
    assert host.machine.sources() == {str(host.place): host.source}
    assert "already mounted" in host.mount("-a", "-v")
    (host.seen / CHUNK).write_bytes(NEW)
    done = host.machine.run("umount", host.place, env=host.env)
    assert (done.stdout, done.stderr, host.machine.sources()) == ("", "", {})
    assert host.mount(host.place) == ""
    assert (host.seen / CHUNK).read_bytes() == NEW
    host.machine.run("umount", host.place, env=host.env)


def test_umount_waits_for_the_commit_unless_it_is_lazy(host: Host) -> None:
    host.describe("rw")
    host.mount("-a")
    with pytest.raises(OSError, match="Read-only"):  # unless the word is write
        (host.seen / CHUNK).write_bytes(NEW)
    host.machine.run("umount", host.place)
    host.describe("write")
    for options, waits in ([], True), (["-l"], False):
        host.mount("-a")
        (host.seen / CHUNK).write_bytes(NEW)
        with kept_busy(Path(host.source, CHUNK)):
            process = host.machine.start("umount", *options, host.place, env=host.env)
            deadline = time.monotonic() + PATIENCE
            while host.machine.sources():
                assert time.monotonic() < deadline
            if waits:
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(1)
            else:
                assert process.wait(PATIENCE) == 0
        assert process.communicate(timeout=PATIENCE) == ("", "")
        if waits:
            assert shardfs.open(host.source)[""].read_chunk((0, 0)) == NEW


NONSENSE = {
    "write,nonsense": "-o nonsense: there is no such option",
    "ro,write": "-o ro contradicts --write",
    "write=yes": "-o write=yes: ",
    "cache": "-o cache: ",
    "foreground": "-o foreground: ",
    "umask=8": "'8' is not a umask",
    "view=v4": "'v4' is not one of",
    "write,shards=8,8": "a value with commas is quoted",
    "remount": "-o remount: a mount cannot be changed; unmount it, and mount it again",
    "decode,view=npy": "leave out --decode",
    "cache=/tmp": "--cache is for s3:// sources",
}
FOR_MOUNT = ("ro,write", "decode,view=npy", "cache=/tmp")
"""What is understood, and refused by what mounts."""


def test_a_word_that_is_not_understood_is_told(source: Path, place: Path) -> None:
    for words, said in NONSENSE.items():
        done = CliRunner().invoke(mount_main, [str(source), str(place), "-o", words])
        assert (done.exit_code, said in done.stderr) == (MOUNT_FAILED if words in FOR_MOUNT else NOT_UNDERSTOOD, True)
        if words == "view=v4":
            assert "Try 'shardfs mount --help'" in done.stderr
    assert CliRunner().invoke(mount_main, [str(source), str(place), "-x"]).exit_code == WRONG_USAGE
    done = CliRunner().invoke(mount_main, [str(source), str(place), "-f", "-o", "rw,nonsense"])
    assert (done.exit_code, "nonsense" in done.stderr) == (NOT_UNDERSTOOD, True)
    assert CliRunner().invoke(mount_main, [str(source), str(place), "-sfnv", "-o", "rw"]).output == ""
    assert not os.path.ismount(place)


def test_owner_and_mode_may_be_shown_as_told(mount: Mounter, source: Path) -> None:
    (source / "program").write_text("#!/bin/sh")
    (source / "program").chmod(0o700)
    source.chmod(0o700)
    shown = mount(source, arguments=["--uid=1234", "--gid=4321", "--umask=027"], write=True)
    for name, mode in {"": 0o750, "c": 0o750, CHUNK: 0o640, "zarr.json": 0o640, "program": 0o750}.items():
        status = (shown.path / name).stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (1234, 4321, mode), name
    (shown.path / "new").write_text("new")
    assert (source / "new").stat().st_uid == os.getuid()
    shown.unmount()
    as_stored = mount(source)
    assert (as_stored.path / "program").stat().st_mode & 0o7777 == 0o700
