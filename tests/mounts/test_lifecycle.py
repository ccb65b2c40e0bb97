"""From mount to unmount: signals, crashes, a busy mount point, and the commands around them."""

import errno
import os
from pathlib import Path

import pytest

from tests.support.commands import run
from tests.support.corpus import array, sharding
from tests.support.datasets import store
from tests.support.mounting import PATIENCE, Mounter, refuses


@pytest.fixture
def source(tmp_path: Path) -> Path:
    store(tmp_path / "source", array((8, 12), (4, 6), sharding((2, 3))))
    return tmp_path / "source"


def test_a_signal_unmounts_even_while_a_file_is_open(mount: Mounter, source: Path) -> None:
    mounted = mount(source)
    fd = os.open(mounted.path / "c/0/0", os.O_RDONLY)
    mounted.process.terminate()
    assert mounted.process.wait(PATIENCE) == 0
    assert not mounted.is_mounted
    for call in (lambda: os.read(fd, 10), lambda: os.close(fd)):
        with pytest.raises(OSError, match="Transport endpoint is not connected"):
            call()


def test_a_killed_daemon_leaves_enotconn_and_never_an_empty_directory(mount: Mounter, source: Path) -> None:
    mounted = mount(source)
    mounted.process.kill()
    mounted.process.wait(PATIENCE)
    for call in (os.listdir, os.stat):
        with refuses(errno.ENOTCONN):
            call(mounted.path)
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
