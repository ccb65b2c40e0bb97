"""Disks of a test's own: a file system of some kind in a file, mounted through a loop device."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def loop_disk(kind: str, directory: Path, nbytes: int = 2**30) -> Iterator[Path]:
    """A new disk below *directory*, formatted by mkfs.*kind*; skips the test where none can be made."""
    program = shutil.which(f"mkfs.{kind}", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if os.geteuid() != 0 or program is None:
        pytest.skip(f"only root can make a file system, by mkfs.{kind}")
    disk, image = directory / "disk", directory / "image"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(nbytes)
    formatted = subprocess.run([program, "-q", image], capture_output=True, check=False)
    if formatted.returncode or subprocess.run(["mount", "-o", "loop", image, disk], check=False).returncode:
        pytest.skip(f"{kind} cannot be mounted here: is there a free loop device?")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
        image.unlink()


def fill(filler: Path) -> None:
    """Take all that is left of a disk, by one new file: whole blocks, then single ones, until not even one is left."""
    fd = os.open(filler, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        for nbytes in (2**20, 4096):
            try:
                while os.write(fd, os.urandom(nbytes)):  # which no file system stores in less room
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
            os.fsync(fd)  # a disk may find out only now what room it has
    finally:
        os.close(fd)
