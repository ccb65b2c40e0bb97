"""`shardfs umount` and `flush`: what is in the shards then, for how long they wait, and what they say meanwhile."""

import fcntl
import os
import pty
import shlex
import shutil
import signal
import stat
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

import shardfs
from shardfs.errors import BusyError
from shardfs.fuse import unmount as unmounting
from shardfs.fuse.mountpoint import run_fusermount
from shardfs.stores.base import Descriptor
from tests.cli.conftest import Background
from tests.support.commands import FAILED, MOUNT_POINT, UNFINISHED, WRONG_USAGE, one_line_of, run
from tests.support.corpus import GZIP, LITTLE, array, sharding
from tests.support.daemons import daemon_of, has_ended
from tests.support.datasets import files_below, store
from tests.support.locking import kept_busy
from tests.support.mounting import PATIENCE, Mounter, command, environment, eventually, mount_points
from tests.support.processes import running
from tests.support.readers import READERS, read_zarr

NEW = b"n" * 24
LOCKED = "c/0/0 is locked by another program"


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Have a process stopped."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def written(background: Background, source: Path, place: Path) -> int:
    """A mount with one chunk that is published and not committed; the process id of its daemon."""
    assert background("--write", source, place).returncode == 0
    (place / "c/0/0").write_bytes(NEW)
    return daemon_of(place)


def stored(source: Path) -> bytes | None:
    return shardfs.open(source)[""].read_chunk((0, 0))


CODECS = {
    "plain": [sharding((2, 3), LITTLE)],
    "index-at-start": [sharding((2, 3), LITTLE, index_location="start")],
    "nested": [sharding((4, 6), sharding((2, 3), LITTLE))],
    "gzip-around": [sharding((2, 3), LITTLE), GZIP],
}


def test_flush_brings_chunks_into_the_shards(mount: Mounter, tmp_path: Path) -> None:
    values = {}
    for name, codecs in CODECS.items():
        store(tmp_path / "source" / name, array((8, 12), (4, 6), *codecs), absent=[(3, 3)])
        values[name] = read_zarr(tmp_path / "source" / name)
    root = mount(tmp_path / "source", write=True).path
    for name, expected in values.items():
        for number, (i, j) in enumerate(((0, 0), (1, 1), (3, 3))):
            new = np.arange(100 * number, 100 * number + 6, dtype="<i4").reshape(2, 3)
            (root / name / f"c/{i}/{j}").write_bytes(new.tobytes())
            expected[2 * i : 2 * i + 2, 3 * j : 3 * j + 3] = new
        (root / name / "c/0/3").unlink()
        expected[0:2, 9:12] = 0
    done = run("flush", root)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for name, expected in values.items():
        assert np.array_equal(READERS["zarr"](tmp_path / "source" / name), expected)
        if name != "gzip-around":  # tensorstore knows no codec around shards
            assert np.array_equal(READERS["tensorstore"](tmp_path / "source" / name), expected)
        assert np.array_equal(read_zarr(root / name), expected)
    assert not list((tmp_path / "source/.shardfs/0/conflicts").iterdir())


def test_new_shards_have_the_mode_of_their_chunks(mount: Mounter, tmp_path: Path) -> None:
    store(tmp_path / "source", array((8, 12), (4, 6), sharding((2, 3))), absent=list(np.ndindex(4, 4)))
    root = mount(tmp_path / "source", write=True).path
    fd = os.open(root / "c/0/0", os.O_WRONLY | os.O_CREAT, 0o640)
    os.write(fd, b"1" * 24)
    os.close(fd)
    assert not (tmp_path / "source/c/0/0").exists()
    assert run("flush", root).returncode == 0
    assert stat.S_IMODE((tmp_path / "source/c/0/0").stat().st_mode) == 0o640


def test_commands_wait_for_a_stopped_daemon_until_the_timeout_and_name_it(
    source: Path, place: Path, tmp_path: Path, written: int
) -> None:
    (tmp_path / "other").mkdir()
    with stopped(written), ThreadPoolExecutor() as threads:
        time.sleep(1.1)  # what the kernel remembers of the root is old by then: it asks the daemon for that, too
        asked = threads.map(lambda name: run(name, "--timeout", "1", place), ("stats", "flush", "umount"))
        mounted = threads.submit(run, "mount", tmp_path / "other", place)
        for done in asked:
            line = one_line_of(done, UNFINISHED)
            assert "has not answered for 1 s" in line
            assert f"kill -CONT {written}" in line
        line = one_line_of(mounted.result(), MOUNT_POINT)
        assert line.startswith(f"{place} is a mount point already; ")
        assert f"kill -CONT {written}" in line
        assert str(place) in mount_points()
    line = one_line_of(run("mount", tmp_path / "other", place), MOUNT_POINT)
    assert line == f"{place} is a mount point already; unmount it with: shardfs umount {place}"
    assert (place / "c/0/0").read_bytes() == NEW
    assert (run("umount", place).returncode, stored(source)) == (0, NEW)


def test_umount_gives_up_without_progress_and_the_daemon_goes_on(source: Path, place: Path, written: int) -> None:
    daemon = os.pidfd_open(written)
    with kept_busy(source / "c/0/0"):
        done = run("umount", "--timeout", "2", place)
        assert (done.returncode, done.stdout) == (UNFINISHED, "")
        said = done.stderr.splitlines()[-1]
        assert f"{place} is unmounted, but its daemon, process {written}," in said
        assert "1 chunk is pending" in said
        assert "it goes on" in said
        assert not has_ended(daemon)
    assert has_ended(daemon, PATIENCE)
    os.close(daemon)
    assert stored(source) == NEW


def test_umount_reports_what_a_killed_daemon_left(source: Path, place: Path, written: int) -> None:
    with kept_busy(source / "c/0/0"):
        line = command("umount", "--timeout", "2", place)
        with running(line, env=environment(), stderr=subprocess.PIPE, text=True) as process:
            eventually(lambda: str(place) not in mount_points())
            os.kill(written, signal.SIGKILL)
            said = process.communicate(timeout=PATIENCE)[1].splitlines()[-1]
    assert process.returncode == FAILED
    assert "is unmounted, but not everything is stored (1 chunk is pending" in said
    assert stored(source) != NEW
    assert run("recover", "--apply", source).returncode == 0
    assert stored(source) == NEW


def test_umount_says_if_it_cannot_see_the_daemon(source: Path, place: Path, written: int) -> None:
    """As in another container."""
    prefix = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces can be made here")
    daemon = os.pidfd_open(written)
    line = one_line_of(run("umount", place, prefix=prefix), UNFINISHED)
    assert f"{place} is unmounted, but its daemon cannot be seen from here" in line
    subprocess.run(["fusermount3", "-u", place], check=True)  # the namespace had a copy of the mount
    assert has_ended(daemon, PATIENCE)
    os.close(daemon)
    assert stored(source) == NEW


def test_umount_removes_all_stacked_mounts(
    background: Background, source: Path, place: Path, tmp_path: Path, written: int
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "place 2").mkdir()
    assert background("--write", tmp_path / "other", tmp_path / "place 2").returncode == 0
    daemons = [os.pidfd_open(pid) for pid in (written, daemon_of(tmp_path / "place 2"))]
    # Two mounts that begin at the same moment come to lie like this.
    moved = subprocess.run(["mount", "--move", tmp_path / "place 2", place], capture_output=True, check=False)
    if moved.returncode:
        pytest.skip("mounts cannot be moved here")
    assert files_below(place) == {}
    done = run("umount", place)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(map(has_ended, daemons))
    for daemon in daemons:
        os.close(daemon)
    assert stored(source) == NEW
    assert os.listdir(place) == []


def test_a_busy_mount_stays_and_the_message_says_what_to_do(source: Path, place: Path, written: int) -> None:
    with open(place / "c/0/0", "rb"):
        line = one_line_of(run("umount", place), MOUNT_POINT)
        assert "it stays mounted" in line
        assert f"fuser -vm {place}" in line
        assert (place / "c/0/0").read_bytes() == NEW
    assert (run("umount", place).returncode, stored(source)) == (0, NEW)


def test_a_mount_that_a_program_has_for_a_moment_is_unmounted(
    background: Background, source: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one has that looks at all mounts."""
    assert background(source, place).returncode == 0
    held, tries = [Descriptor(os.open(place, os.O_RDONLY))], list[str]()

    def run_and_let_go(*arguments: str) -> None:
        tries.append(arguments[0])
        try:
            run_fusermount(*arguments)
        except BusyError:
            held.clear()
            raise

    monkeypatch.setattr(unmounting, "run_fusermount", run_and_let_go)
    unmounting.unmount(str(place))
    assert not os.path.ismount(place)
    assert tries == ["-u", "-u"]


def test_with_force_a_busy_mount_ends_and_what_was_published_is_in_the_shards(
    source: Path, place: Path, written: int
) -> None:
    reader, writer = os.open(place / "c/0/0", os.O_RDONLY), os.open(place / "c/0/1", os.O_WRONLY)
    os.write(writer, b"x" * 24)  # and it is not closed
    done = run("umount", "--force", place)
    assert (done.returncode, stored(source)) == (0, NEW), str(done)
    assert os.listdir(place) == []
    for file in (reader, writer):
        with pytest.raises(OSError, match="not connected"):
            os.fstat(file)
        with suppress(OSError):
            os.close(file)


@pytest.mark.parametrize("first", ["signal", "fusermount"])
def test_a_second_signal_does_not_interrupt_the_last_commit(
    source: Path, place: Path, written: int, background: Background, first: str
) -> None:
    daemon = os.pidfd_open(written)
    (log,) = background.logs.glob("*.log")
    with kept_busy(source / "c/0/0"):
        if first == "signal":
            os.kill(written, signal.SIGTERM)
            eventually(lambda: "unmounting on SIGTERM" in log.read_text())
        else:
            subprocess.run(["fusermount3", "-u", place], check=True)

        def changes_nothing(name: str) -> bool:
            os.kill(written, signal.Signals[name])  # again, as it may not know yet that it is unmounted
            return f"{name} changes nothing, SIGKILL ends it now, and leaves that in the journal" in log.read_text()

        eventually(lambda: changes_nothing("SIGTERM"))
        eventually(lambda: changes_nothing("SIGINT"))
        assert not has_ended(daemon)
    assert has_ended(daemon, PATIENCE)
    os.close(daemon)
    assert str(place) not in mount_points()
    assert stored(source) == NEW
    assert not (source / ".shardfs").exists()


@pytest.mark.parametrize("name", ["flush", "umount"])
def test_progress_on_a_terminal_is_one_line_that_disappears(source: Path, place: Path, written: int, name: str) -> None:
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 300, 0, 0))
    ends = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    with ExitStack() as locking:
        locking.enter_context(kept_busy(source / "c/0/0"))
        with running(command(name, place), env=environment(), **ends) as process:
            os.close(terminal)
            shown = b""
            while LOCKED.encode() not in shown:
                shown += os.read(master, 65536)
            locking.close()
            with suppress(OSError):  # nobody has the other end any more
                while data := os.read(master, 65536):
                    shown += data
            os.close(master)
            assert process.wait(PATIENCE) == 0
    assert b"\r\x1b[K1 chunk is pending (24 B, since " in shown
    assert shown.endswith(b"\r\x1b[K")
    assert b"\n" not in shown


HASTY = """
import runpy
from shardfs.cli import output
from shardfs.fuse import metrics
assert output._LINE_SECONDS == metrics._LINE_SECONDS == 10
output._LINE_SECONDS = metrics._LINE_SECONDS = 1
runpy.run_module("shardfs", run_name="__main__", alter_sys=True)
"""


def hasty(*arguments: str | Path) -> AbstractContextManager[subprocess.Popen[str]]:
    """Run shardfs for the length of a block, with a second in place of ten."""
    line = [sys.executable, "-P", "-c", HASTY, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return running(line, end=signal.SIGTERM, env=environment(), text=True, **pipes)


def test_without_a_terminal_progress_is_a_line_every_ten_seconds(source: Path, place: Path) -> None:
    with hasty("mount", "--foreground", "--write", source, place) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline()
        with ExitStack() as locking:
            locking.enter_context(kept_busy(source / "c/0/0"))
            (place / "c/0/0").write_bytes(NEW)
            began = time.monotonic()
            with hasty("umount", place) as umount:
                assert umount.stderr is not None
                said = (line for line in umount.stderr if LOCKED in line)  # it may not have come to that at first
                assert next(said)
                assert next(said)
                assert time.monotonic() - began >= 1
                locking.close()
                umount.communicate(timeout=PATIENCE)
                assert umount.returncode == 0
        log = daemon.communicate(timeout=PATIENCE)[1]
    lines = [line for line in log.splitlines() if line.endswith(LOCKED) and "pending" in line]
    assert 1 <= len(lines) <= 2 + (time.monotonic() - began)
    assert f"{source}: 1 chunk is pending (24 B, since " in lines[0]


@pytest.mark.mount
def test_all_mounts_end_with_one_command_and_what_fails_stops_no_other(source: Path, tmp_path: Path) -> None:
    """In a mount namespace of its own, without the mounts of other tests."""
    if os.geteuid():
        pytest.skip("only root has a mount namespace without users of its own")
    second, places = shutil.copytree(source, tmp_path / "second"), [tmp_path / name for name in ("one", "two", "three")]
    for place in places:
        place.mkdir()
    program = " ".join(map(shlex.quote, command()))
    script = f"""
    set -e
    grep -F ' fuse.shardfs ' /proc/mounts | cut -d' ' -f2 | while read -r other; do umount -l "$other"; done
    {program} mount -q {source} {places[0]}
    {program} mount -q --write {second} {places[1]}
    {program} mount -q {source} {places[2]}
    printf '%s' {NEW.decode()} > {places[1]}/c/0/0
    cd {places[2]}
    status=0; {program} umount --all || status=$?
    cd /
    grep -F ' fuse.shardfs ' /proc/mounts | cut -d' ' -f2
    {program} umount --all
    ! grep -F ' fuse.shardfs ' /proc/mounts
    exit $status
    """
    done = subprocess.run(
        ["unshare", "--mount", "--propagation=private", "bash", "-c", script],
        env=environment() | {"XDG_STATE_HOME": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stdout) == (MOUNT_POINT, f"{places[2]}\n"), str(done)
    assert done.stderr.startswith(f"shardfs: {places[2]} "), done.stderr
    assert stored(second) == NEW


def test_all_contradicts_a_mount_point() -> None:
    for arguments in (["--all", "/mnt/x"], []):
        assert "MOUNTPOINT, or --all" in one_line_of(run("umount", *arguments), WRONG_USAGE)
