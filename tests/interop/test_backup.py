"""Backups of a dataset in which one chunk of a shard has changed: what docs/backup.md says is moved."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.commands import run
from tests.support.datasets import age, files_below
from tests.support.mounting import Mounter

NCHUNKS, PER_SHARD = 24, 8
NBYTES = 2**14


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset of three shards."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "source"
    values = np.random.default_rng(1).integers(0, 255, (NCHUNKS, NBYTES)).astype("u1")
    shape = {"chunks": (1, NBYTES), "shards": (PER_SHARD, NBYTES), "compressors": None}
    zarr.create_array(path, data=values, **shape)  # type: ignore[arg-type]
    age(path)
    return path


def change(source: Path, mount: Mounter) -> None:
    """Write one chunk through a mount."""
    mounted = mount(source, write=True)
    (mounted.path / "c/10/0").write_bytes(bytes(NBYTES))
    mounted.unmount()


def rsync(*options: str) -> Callable[[Path, Path], int]:
    """Copy with rsync; returns how many chunks it moved."""

    def copy(path: Path, copied: Path) -> int:
        words = ["rsync", "-a", "--stats", *options, f"{path}/", f"{copied}/"]
        said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        found = re.search(r"Number of regular files transferred: (\d+)", said)
        assert found is not None
        return int(found[1])

    return copy


@pytest.mark.parametrize(("copy", "moved"), [(rsync("--checksum"), 1), (rsync(), PER_SHARD)], ids=["content", "times"])
def test_rsync_moves_the_chunk_that_changed_if_it_compares_content(
    tmp_path: Path, source: Path, mount: Mounter, copy: Callable[[Path, Path], int], moved: int
) -> None:
    mounted = mount(source)
    assert copy(mounted.path, tmp_path / "copy") == NCHUNKS + 1
    mounted.unmount()
    change(source, mount)
    mounted = mount(source)
    assert copy(mounted.path, tmp_path / "copy") == moved
    assert files_below(tmp_path / "copy") == files_below(mounted.path)


@pytest.mark.parametrize(("how", "moved"), [("--checksum", 1), ("--sync", PER_SHARD)])
def test_unpack_moves_the_chunk_that_changed_if_it_compares_content(
    tmp_path: Path, source: Path, mount: Mounter, how: str, moved: int
) -> None:
    copy = tmp_path / "copy"
    assert run("unpack", "--jobs", "1", source, copy).returncode == 0
    change(source, mount)
    assert run("unpack", "--jobs", "1", how, source, copy).stdout.startswith(f"{moved} object")
    assert files_below(copy) == files_below(mount(source).path)


def restic(path: Path, repository: Path) -> int:
    """Back up with restic; returns how many bytes the repository grew by."""
    variables = os.environ | {"RESTIC_PASSWORD": "password", "HOME": str(repository.parent)}
    words = ["restic", "-r", repository, "--no-cache"]
    if not repository.exists():
        subprocess.run([*words, "init"], check=True, capture_output=True, env=variables)
    done = subprocess.run([*words, "backup", "--json", path], check=True, capture_output=True, env=variables)
    return int(json.loads(done.stdout.splitlines()[-1])["data_added"])


def borg(path: Path, repository: Path) -> int:
    """Back up with borg; returns how many bytes the repository grew by."""
    variables = os.environ | {
        "BORG_BASE_DIR": str(repository.parent / "borg"),
        "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
    }
    if not repository.exists():
        subprocess.run(["borg", "init", "-e", "none", repository], check=True, capture_output=True, env=variables)
    number = len(list((repository / "data").rglob("*")))
    words = ["borg", "create", "--json", f"{repository}::{number}", "."]
    done = subprocess.run(words, check=True, capture_output=True, env=variables, cwd=path)
    return int(json.loads(done.stdout)["archive"]["stats"]["deduplicated_size"])


@pytest.mark.parametrize("back_up", [restic, borg])
def test_programs_that_store_content_once_add_the_chunk_that_changed(
    tmp_path: Path, source: Path, mount: Mounter, back_up: Callable[[Path, Path], int]
) -> None:
    place = tmp_path / "mnt"
    place.mkdir()
    mounted = mount(source, path=place)
    assert back_up(place, tmp_path / "repository") > NCHUNKS * NBYTES
    mounted.unmount()
    change(source, mount)
    mount(source, path=place)
    assert back_up(place, tmp_path / "repository") < 3 * NBYTES, "one chunk, and what lists all files"
