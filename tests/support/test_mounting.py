"""The fixture for mounts against itself: it hides no error, and leaves nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.corpus import array, sharding
from tests.support.datasets import store
from tests.support.mounting import PATIENCE, mount_points, mounter


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
