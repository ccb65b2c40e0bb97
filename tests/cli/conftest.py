"""Mounts made by `shardfs mount` in the background, none of which outlives its test."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.commands import run
from tests.support.corpus import array, sharding
from tests.support.daemons import end_mounts_below
from tests.support.datasets import store
from tests.support.mounting import skip_without_fuse


@dataclass(frozen=True)
class Background:
    """Mounts in the background, with the logs in a state directory below *directory*."""

    directory: Path

    @property
    def logs(self) -> Path:
        return self.directory / "state/shardfs"

    def __call__(
        self, *arguments: str | Path, cwd: Path | None = None, is_fresh: bool = False, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run `shardfs mount`, whatever comes of it; with *is_fresh* neither it nor the daemon is forked."""
        state = {"XDG_STATE_HOME": str(self.directory / "state")}
        return run("mount", *arguments, cwd=cwd, prefix=("env",) if is_fresh else (), **state | variables)


@pytest.fixture
def background(tmp_path: Path) -> Iterator[Background]:
    skip_without_fuse()
    yield Background(tmp_path)
    end_mounts_below(tmp_path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A sharded array of 16 inner chunks, 24 bytes each."""
    store(tmp_path / "source", array((8, 12), (4, 6), sharding((2, 3))))
    return tmp_path / "source"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty directory to mount on."""
    skip_without_fuse()
    (tmp_path / "place").mkdir()
    return tmp_path / "place"
