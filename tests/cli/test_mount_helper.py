"""mount(8), fstab and umount(8): the real ones, in a mount namespace where shardfs is installed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardfs.cli.mount_helper import mount_main
from tests.cli.test_umount import NEW, stored
from tests.support.locking import kept_busy
from tests.support.mounting import PATIENCE, Mounter, environment, eventually, mounts_of
from tests.support.processes import tied
from tests.support.s3_server import Bucket

CHUNK = "c/0/0"
SET_UP = """
umount --internal-only --lazy --all --types fuse,fuse.shardfs  # or the daemons of others would not end before this
mount --bind "$1" /usr/sbin && mkdir -p /run/mount && mount -t tmpfs none /run/mount && exec sleep infinity
"""


class Host:
    """A machine with mounts of its own, where shardfs is installed; it has a dataset, and a file like fstab."""

    def __init__(self, directory: Path, source: Path | str) -> None:
        self.source, self.place, self.fstab = source, directory / "a place", directory / "fstab"
        self.env = {"PYTHONPATH": environment()["PYTHONPATH"], "XDG_STATE_HOME": str(directory / "state")}
        self.place.mkdir()
        (directory / "sbin").mkdir()
        line = ["unshare", "--mount", "--propagation", "private", "sh", "-c", SET_UP, "sh", directory / "sbin"]
        self._holder = subprocess.Popen(tied(*line))
        self._proc = Path(f"/proc/{self._holder.pid}")
        eventually(lambda: self._holder.poll() is not None or (self._proc / "comm").read_text() == "sleep\n")
        if self._holder.poll() is not None:
            pytest.skip("no mount namespace can be made here")
        self.run(Path(sys.executable).with_name("shardfs"), "install-helper")

    @property
    def seen(self) -> Path:
        """The mount point as it is seen from here."""
        return Path(f"{self._proc}/root{self.place}")

    def sources(self) -> dict[str, str]:
        """What shardfs has mounted there, by mount point."""
        return mounts_of(self._holder.pid)

    def start(self, *words: str | Path) -> subprocess.Popen[str]:
        line = ["nsenter", f"--mount={self._proc}/ns/mnt", "--", *words]
        return subprocess.Popen(line, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, *words: str | Path) -> str:
        """Run a command there, which succeeds; return what it said."""
        process = self.start(*words)
        said, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, (words, said)
        return said

    def mount(self, words: str, *options: str | Path, kind: str = "shardfs") -> str:
        """Run `mount` with a line of fstab that has these words."""
        names = [str(name).replace(" ", "\\040") for name in (self.source, self.place)]
        self.fstab.write_text(f"{' '.join(names)} {kind} {words} 0 0\n")
        return self.run("mount", "-T", self.fstab, *(options or ["-a"]))

    def end(self) -> None:
        """End all that runs there."""
        ours = os.readlink(self._proc / "ns/mnt")
        assert ours != os.readlink("/proc/self/ns/mnt")
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.readlink(process / "ns/mnt") == ours:
                    os.kill(int(process.name), signal.SIGKILL)
        self._holder.wait(PATIENCE)


@pytest.fixture
def host(source: Path, tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path, source.rename(tmp_path / "a source, é"))
    yield made
    made.end()


def test_a_line_of_fstab_is_mounted_once_and_umount_waits_for_commits(host: Host, s3_bucket: Bucket) -> None:
    s3_bucket.upload(Path(host.source), "path/data, é.zarr")
    host.source = s3_bucket.url("path/data, é.zarr")
    host.env |= s3_bucket.environment
    words = "defaults,_netdev,nofail,noatime,x-systemd.automount,write,metadata_ttl=5"
    assert host.mount(words, kind="fuse.shardfs") == ""
    assert host.sources() == {str(host.place): host.source}
    assert "already mounted" in host.mount(words, "-a", "-v", kind="fuse.shardfs")
    (host.seen / CHUNK).write_bytes(NEW)
    assert (host.run("umount", host.place), host.sources()) == ("", {})
    assert host.mount(words, host.place, kind="fuse.shardfs") == ""
    assert (host.seen / CHUNK).read_bytes() == NEW
    host.run("umount", host.place)


def test_umount_waits_for_the_commit_unless_it_is_lazy(host: Host) -> None:
    host.mount("rw")
    with pytest.raises(OSError, match="Read-only"):  # unless the word is write
        (host.seen / CHUNK).write_bytes(NEW)
    host.run("umount", host.place)
    for options, waits in ([], True), (["-l"], False):
        host.mount("write")
        (host.seen / CHUNK).write_bytes(NEW)
        with kept_busy(Path(host.source, CHUNK)):
            process = host.start("umount", *options, host.place)
            eventually(lambda: not host.sources())
            if waits:
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(1)
            else:
                assert process.wait(PATIENCE) == 0
        assert process.communicate(timeout=PATIENCE)[0] == ""
        if waits:
            assert stored(Path(host.source)) == NEW


NONSENSE = {
    "write,nonsense": "-o nonsense: there is no such option",
    "write=yes": "-o write=yes: ",
    "cache": "-o cache: ",
    "umask=8": "'8' is not a umask",
    "view=v4": "'v4' is not one of",
    "write,shards=8,8": "a value with commas is quoted",
    "remount": "-o remount: a mount cannot be changed; unmount it, and mount it again",
}


def test_unknown_words_are_refused(source: Path, place: Path) -> None:
    for words, said in NONSENSE.items():
        done = CliRunner().invoke(mount_main, [str(source), str(place), "-o", words])
        assert (done.exit_code, said in done.stderr) == (2, True), words
    done = CliRunner().invoke(mount_main, [str(source), str(place), "-o", "ro,write"])
    assert (done.exit_code, "-o ro contradicts --write" in done.stderr) == (32, True)
    assert not os.path.ismount(place)


def test_uid_gid_and_umask_change_what_is_shown(mount: Mounter, source: Path) -> None:
    (source / "program").write_text("#!/bin/sh")
    (source / "program").chmod(0o700)
    source.chmod(0o700)
    shown = mount(source, arguments=["--uid=1234", "--gid=4321", "--umask=027"], write=True)
    for name, mode in {"": 0o750, "c": 0o750, CHUNK: 0o640, "zarr.json": 0o640, "program": 0o750}.items():
        status = (shown.path / name).stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (1234, 4321, mode), name
    (shown.path / "new").write_text("new")
    assert (source / "new").stat().st_uid == os.getuid()
    assert (source / "program").stat().st_mode & 0o7777 == 0o700
