"""Where the source of a mount is kept, and what is left of that when the power is cut."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FILE_SYSTEMS = {"ext4": 128, "xfs": 320, "btrfs": 128}
"""Those that a disk may have, with its size in MiB."""


class Disk:
    """A directory of this machine, where no power is cut."""

    can_be_cut = False

    def __init__(self, path: Path) -> None:
        self.path = path

    def snapshot(self) -> None:
        """Remember what is on the disk in this moment."""
        raise NotImplementedError

    def cut(self) -> None:
        """Lose everything since then; nobody may use the disk."""
        raise NotImplementedError


class LoopDisk(Disk):
    """A file system in a file, which can be copied at one moment, as if the power was cut.

    What the file system keeps in memory at this moment is lost; what it has given to the disk is there.
    """

    can_be_cut = True

    def __init__(self, path: Path, image: Path) -> None:
        super().__init__(path)
        self._image = image
        self._next = image.with_suffix(".next")

    def snapshot(self) -> None:
        _run("cp", "--reflink=always", self._image, self._next)

    def cut(self) -> None:
        _run("umount", self.path)
        self._next.rename(self._image)
        _run("mount", "-o", "loop", self._image, self.path)


@contextmanager
def disk_of(kind: str, directory: Path) -> Iterator[Disk]:
    """Make a disk with a file system of a *kind*, or a directory, for the length of a block."""
    path = directory / "disk"
    path.mkdir()
    if kind == "directory":
        yield Disk(path)
        return
    images = directory / "images"
    images.mkdir()
    with _mounted("xfs", 2048, directory / "image", images), _mounted(kind, FILE_SYSTEMS[kind], images / "image", path):
        yield LoopDisk(path, images / "image")


@contextmanager
def _mounted(kind: str, mebibytes: int, image: Path, path: Path) -> Iterator[None]:
    with image.open("wb") as file:
        file.truncate(mebibytes * 2**20)
    _run(f"mkfs.{kind}", "-q", image)
    _run("mount", "-o", "loop", image, path)
    try:
        yield
    finally:
        _run("umount", path)
        image.unlink()


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
