"""Everyday tools on a mount: what they copy, count, hash and print is what the files hold."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.corpus import GZIP, LITTLE, array, ramp, sharding
from tests.support.datasets import files_below, store
from tests.support.mounting import Mounter
from tests.support.readers import READERS, assert_same

DOCUMENT = array((50, 70), (32, 32), sharding((8, 4), LITTLE, GZIP), attributes={"title": "image"})
VALUES = ramp((50, 70), "int32")
ABSENT = {(0, 0), (6, 17), *((row, column) for row in range(4) for column in range(8, 16))}
PLAIN = {"README.txt": b"plain\n", "notes/empty": b"", "image/notes.bin": bytes(range(256)) * 1000}


class Dataset:
    """A mounted directory with an array and plain files, and every file that must be seen by its path."""

    def __init__(self, mount: Mounter, source: Path) -> None:
        chunks = store(source / "image", DOCUMENT, VALUES, ABSENT)
        for name, data in PLAIN.items():
            (source / name).parent.mkdir(exist_ok=True)
            (source / name).write_bytes(data)
        self.source = source
        self.path = mount(source).path
        self.document = (self.path / "image" / "zarr.json").read_bytes()
        self.chunks = {f"image/{key}": data for key, data in chunks.items()}
        self.files = {**self.chunks, **PLAIN, "image/zarr.json": self.document}

    def run(self, *arguments: str | Path) -> bytes:
        """Run a tool in the root of the mount; it must succeed and say nothing on stderr."""
        done = subprocess.run(arguments, cwd=self.path, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout


@pytest.fixture(scope="module")
def dataset(module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset(module_mount, tmp_path_factory.mktemp("source"))


@pytest.mark.parametrize("copy", [("cp", "-a"), ("rsync", "-a")], ids=" ".join)
def test_a_copy_out_of_the_mount_is_an_ordinary_array(dataset: Dataset, copy: tuple[str, str], tmp_path: Path) -> None:
    if not shutil.which(copy[0]):
        pytest.skip(f"{copy[0]} is not installed")
    dataset.run(*copy, f"{dataset.path}/.", tmp_path)
    assert files_below(tmp_path) == dataset.files
    expected = VALUES.copy()
    for row, column in ABSENT:
        expected[8 * row : 8 * row + 8, 4 * column : 4 * column + 4] = 0
    for read in READERS.values():
        assert_same(read(tmp_path / "image"), expected)
