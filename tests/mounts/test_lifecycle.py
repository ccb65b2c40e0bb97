"""From mount to unmount: signals, crashes, and messages about names of any bytes."""

import errno
import os
from pathlib import Path

import pytest

from tests.support.commands import run
from tests.support.corpus import array, sharding
from tests.support.datasets import store
from tests.support.hosts import kill
from tests.support.mounting import PATIENCE, Mounter, refuses

DOCUMENT = array((8, 12), (4, 6), sharding((2, 3)))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    store(tmp_path / "source", DOCUMENT)
    return tmp_path / "source"


def test_a_signal_unmounts_even_while_a_file_is_open(mount: Mounter, source: Path) -> None:
    mounted = mount(source)
    fd = os.open(mounted.path / "c/0/0", os.O_RDONLY)
    mounted.process.terminate()
    assert mounted.process.wait(PATIENCE) == 0
    assert not mounted.is_mounted
    for call in (lambda: os.read(fd, 10), lambda: os.close(fd)):
        with refuses(errno.ENOTCONN):
            call()


def test_a_killed_daemon_leaves_enotconn_and_can_be_unmounted_or_mounted_again(mount: Mounter, source: Path) -> None:
    mounted = mount(source)
    kill(mounted)
    for call in (os.listdir, os.stat):
        with refuses(errno.ENOTCONN):
            call(mounted.path)
    mounted = mount(source, path=mounted.path)
    assert (mounted.path / "c/0/0").stat().st_size == 24
    kill(mounted)
    done = run("umount", mounted.path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not mounted.is_mounted


def test_names_of_any_bytes_are_told_on_the_terminal_and_in_the_log(tmp_path: Path) -> None:
    name = os.fsdecode(b"latin-\xe9-\n\xc2\xb5")
    store(tmp_path / name / name, DOCUMENT)
    (tmp_path / name / name / "zarr.json").write_text("{")
    (tmp_path / "place").mkdir()
    # As in most locales of desktops.
    variables = {"PYTHONIOENCODING": "utf-8:strict", "XDG_STATE_HOME": str(tmp_path / "state")}
    try:
        done = run("mount", "--log-file", "log", name, "place", cwd=tmp_path, **variables)
        assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
        assert sorted(os.listdir(tmp_path / "place" / name)) == ["c", "zarr.json"]
    finally:
        ended = run("umount", "place", cwd=tmp_path, **variables)
    assert (ended.returncode, ended.stderr) == (0, "")
    logged = (tmp_path / "log").read_text(encoding="utf-8", errors="replace")
    assert "Traceback" not in logged
    assert "is shown as stored: the document is not valid JSON" in logged
