"""Where a log is written: never through what others may have put in its place."""

import os
from pathlib import Path

import pytest

from shardfs.service.log import open_log


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory that others may write, as /tmp, with a file beside it that they want to be written."""
    (tmp_path / "victim").write_text("as it was")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    return tmp_path / "shared"


def plant(path: Path, kind: str) -> None:
    match kind:
        case "link":
            path.symlink_to(path.parent.parent / "victim")
        case "dangling link":
            path.symlink_to(path.parent.parent / "new")
        case "hard link":
            path.hardlink_to(path.parent.parent / "victim")
        case "pipe":
            os.mkfifo(path)
        case "file of somebody else":
            path.touch()
            os.chown(path, 4242, 4242)


KINDS = ["link", "dangling link", "hard link", "pipe", "file of somebody else"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o775])
def test_what_others_planted_in_a_shared_directory_is_not_written(shared: Path, kind: str, mode: int) -> None:
    if kind == "file of somebody else" and os.geteuid():
        pytest.skip("needs root, to give a file away")
    plant(shared / "log", kind)
    shared.chmod(mode)
    with pytest.raises(OSError, match=r"Too many levels|others may write"):
        open_log(shared / "log")
    assert (shared.parent / "victim").read_text() == "as it was"
    assert not (shared.parent / "new").exists()


def test_a_file_of_ones_own_is_written_there_and_a_link_elsewhere_is_followed(shared: Path) -> None:
    for path in (shared / "log", shared.parent / "log"):
        for _ in range(2):
            file = open_log(path)
            os.write(file, b"line\n")
            os.close(file)
        assert path.read_text() == "line\n" * 2
    assert (shared / "log").stat().st_mode & 0o777 == 0o600
    (shared.parent / "link").symlink_to("log")
    os.close(open_log(shared.parent / "link"))
