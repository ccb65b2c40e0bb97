"""The fixture for mounts against itself: it hides no error, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.corpus import array, sharding
from tests.support.datasets import store
from tests.support.mounting import PATIENCE, mount_points, mounter

FRESH = {"PYTHONHASHSEED": "1"}
"""What a process that is forked could not obey."""


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    store(tmp_path / "source", array((4, 6), (4, 6), sharding((2, 3))))
    (tmp_path / "source/c/0/0").write_bytes(b"")
    return tmp_path / "source"


def touch(path: Path) -> None:
    with pytest.raises(OSError, match="Input/output error"):
        os.stat(path / "c/0/0")


def test_an_error_in_the_log_that_was_not_expected_fails_the_test(damaged: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="unreadable shard"), mounter(tmp_path) as mount:
        touch(mount(damaged).path)


def test_an_error_that_was_expected_does_not(damaged: Path, tmp_path: Path) -> None:
    with mounter(tmp_path) as mount:
        mounted = mount(damaged)
        mounted.expect("unreadable shard: c/0/0: a shard of 0 bytes", "lookup: ")
        touch(mounted.path)
    assert mounted.process.returncode == 0


def test_a_busy_mount_fails_the_test_and_is_taken_away_all_the_same(damaged: Path, tmp_path: Path) -> None:
    mounted, opened = [], []

    def leave_open() -> None:
        with mounter(tmp_path) as mount:
            mounted.append(mount(damaged))
            opened.append(os.open(mounted[0].path, os.O_RDONLY))

    with pytest.raises(AssertionError, match="did not end"):
        leave_open()
    os.close(opened[0])
    assert str(mounted[0].path) not in mount_points()
    assert mounted[0].process.wait(PATIENCE) is not None


def test_a_mount_that_never_gets_ready_fails_with_its_log(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match=r"did not get ready:\n.*nowhere does not exist"),
        mounter(tmp_path) as mount,
    ):
        mount(tmp_path / "nowhere")


def test_a_daemon_that_dies_fails_the_test(tmp_path: Path) -> None:
    def abort() -> None:
        with mounter(tmp_path) as mount:
            mounted = mount(tmp_path / "source")
            mounted.process.send_signal(signal.SIGABRT)
            mounted.process.wait(PATIENCE)

    (tmp_path / "source").mkdir()
    with pytest.raises(AssertionError, match="ended with -6"):
        abort()


def test_a_mount_has_the_environment_and_the_state_directory_that_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with mounter(tmp_path) as mount:
        ordinary = mount(str(tmp_path / "source"), env=FRESH)
        other = mount(
            tmp_path / "source",
            env=FRESH | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"},
            state=tmp_path / "other-host",
            arguments=("--metadata-ttl=7",),
        )
        environments = [
            Path(f"/proc/{mounted.process.pid}/environ").read_bytes().split(b"\0") for mounted in (ordinary, other)
        ]
        assert f"XDG_STATE_HOME={tmp_path}/state".encode() in environments[0]
        assert f"XDG_STATE_HOME={tmp_path}/other-host".encode() in environments[1]
        assert b"AWS_ENDPOINT_URL=http://127.0.0.1:1" in environments[1]
        assert b"--metadata-ttl=7" in Path(f"/proc/{other.process.pid}/cmdline").read_bytes().split(b"\0")
