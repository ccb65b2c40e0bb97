"""Archives of a dataset's chunk files, for the peers that mount archives."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from .datasets import Dataset


def squashfs(dataset: Dataset) -> Path:
    """An uncompressed squashfs image; without fragments, which make squashfuse slower."""
    image = dataset.directory / "unsharded.squashfs"
    options = ["-quiet", "-no-progress", "-no-xattrs", "-no-fragments", "-noI", "-noD", "-noF", "-noX"]
    return _made(image, ["mksquashfs", str(dataset.unsharded), "{}", *options])


def tar(dataset: Dataset) -> Path:
    """An uncompressed tar archive."""
    archive = dataset.directory / "unsharded.tar"
    return _made(archive, ["tar", "--sort=name", "-C", str(dataset.unsharded), "-cf", "{}", "."])


def _made(archive: Path, command: list[str]) -> Path:
    """Run the command, unless its result is there; a run that was broken off leaves none."""
    if not archive.exists():
        unfinished = archive.with_name(f"unfinished-{archive.name}")
        unfinished.unlink(missing_ok=True)
        words = [str(unfinished) if word == "{}" else word for word in command]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        unfinished.rename(archive)
        os.sync()
    return archive
