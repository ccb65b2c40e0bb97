"""From mount to unmount: signals, crashes, a busy mount point, and the commands around them."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.corpus import array, sharding
from tests.support.datasets import store
from tests.support.mounting import PATIENCE, Mounter, command, environment, mount_points


@pytest.fixture
def source(tmp_path: Path) -> Path:
    store(tmp_path / "source", array((8, 12), (4, 6), sharding((2, 3))))
    return tmp_path / "source"


def run(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), env=environment(), cwd=cwd, capture_output=True, text=True, check=False, timeout=PATIENCE
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_unmounts_and_ends_with_0(mount: Mounter, source: Path, number: signal.Signals) -> None:
    mounted = mount(source)
    assert os.listdir(mounted.path / "c")
    mounted.process.send_signal(number)
    assert mounted.process.wait(PATIENCE) == 0
    assert not mounted.is_mounted
    assert os.listdir(mounted.path) == []


def test_a_signal_unmounts_even_while_a_file_is_open(mount: Mounter, source: Path) -> None:
    mounted = mount(source)
    fd = os.open(mounted.path / "c/0/0", os.O_RDONLY)
    mounted.process.terminate()
    assert mounted.process.wait(PATIENCE) == 0
    assert not mounted.is_mounted
    for call in (lambda: os.read(fd, 10), lambda: os.close(fd)):
        with pytest.raises(OSError, match="Transport endpoint is not connected"):
            call()


def test_fusermount_ends_the_daemon(mount: Mounter, source: Path) -> None:
    mounted = mount(source)
    mounted.unmount()
    assert mounted.process.returncode == 0
    assert os.listdir(mounted.path) == []


def test_a_killed_daemon_leaves_enotconn_and_never_an_empty_directory(mount: Mounter, source: Path) -> None:
    mounted = mount(source)
    mounted.process.kill()
    mounted.process.wait(PATIENCE)
    for call in (os.listdir, os.stat):
        with pytest.raises(OSError) as raised:
            call(mounted.path)
        assert raised.value.errno == errno.ENOTCONN
    again = mount(source, path=mounted.path)
    assert (again.path / "c/0/0").stat().st_size == 24
    again.unmount()
    assert not again.is_mounted


def test_umount_takes_away_a_dead_mount(mount: Mounter, source: Path) -> None:
    mounted = mount(source)
    mounted.process.kill()
    mounted.process.wait(PATIENCE)
    done = run("umount", mounted.path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not mounted.is_mounted


def test_a_busy_mount_is_kept_until_it_is_free(mount: Mounter, source: Path) -> None:
    mounted = mount(source)
    with open(mounted.path / "c/0/0", "rb") as file:
        done = run("umount", mounted.path)
        assert done.returncode == 4
        assert_one_line(done.stderr, "busy")
        assert mounted.is_mounted
        assert len(file.read()) == 24
        assert os.listdir(mounted.path / "c")
    assert run("umount", mounted.path).returncode == 0
    assert mounted.process.wait(PATIENCE) == 0


def test_mount_returns_when_the_mount_answers_and_umount_when_the_daemon_is_gone(source: Path, tmp_path: Path) -> None:
    place, log = tmp_path / "place with spaces, and a comma", tmp_path / "log"
    place.mkdir()
    done = run("mount", "--log-file", log, source, place)
    try:
        assert (done.returncode, done.stderr) == (0, "")
        assert_one_line(done.stdout, str(source))
        assert str(place) in done.stdout
        assert os.listdir(place) != []
        pid = int(os.getxattr(place, "user.shardfs.pid"))
        daemon = os.pidfd_open(pid)
        assert os.getsid(pid) != os.getsid(0)
    finally:
        ended = run("umount", place)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert select.select([daemon], [], [], 0)[0]  # it has ended
    os.close(daemon)
    assert str(place) not in mount_points()
    assert "ERROR" not in log.read_text()


def test_stats_counts_what_was_asked_for(mount: Mounter, source: Path) -> None:
    mounted = mount(source)
    for _ in range(3):
        assert len((mounted.path / "c/1/1").read_bytes()) == 24
    done = run("stats", "--json", mounted.path)
    assert (done.returncode, done.stderr) == (0, "")
    counts = json.loads(done.stdout)
    assert counts["bytes_read"] == 3 * 24
    assert counts["requests"]["open"] == 3
    assert counts["index_loads"] == 1
    assert counts["errors"].get("EIO", 0) == 0


NAMES = [
    "with space",
    "with,comma",
    "back\\slash",
    "new\nline",
    "=equal",
    "µ-日本",
    "-dash",
    os.fsdecode(b"latin-\xe9"),
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_source_and_mount_point_may_have_any_name(mount: Mounter, source: Path, tmp_path: Path, name: str) -> None:
    source.rename(tmp_path / name)
    (tmp_path / f"at {name}").mkdir()
    mounted = mount(tmp_path / name, path=tmp_path / f"at {name}")
    assert (mounted.path / "c/0/0").stat().st_size == 24
    assert mounted.is_mounted


def test_relative_paths_and_urls_are_taken(source: Path, tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    for name in (f"../{tmp_path.name}/source/", f"file://{source}"):
        done = run("mount", "--log-file", tmp_path / "log", name, "place", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        try:
            assert (tmp_path / "place/c/0/0").stat().st_size == 24
        finally:
            assert run("umount", "place", cwd=tmp_path).returncode == 0


def test_one_source_can_be_mounted_twice(mount: Mounter, source: Path) -> None:
    first, second = mount(source), mount(source)
    assert (first.path / "c/0/0").read_bytes() == (second.path / "c/0/0").read_bytes()
    first.unmount()
    assert (second.path / "c/0/1").stat().st_size == 24


def assert_one_line(text: str, *parts: str) -> None:
    assert text.endswith("\n")
    assert text.count("\n") == 1
    for part in parts:
        assert part in text
