"""Reads are exact: any offset and size, mapped, large, and from many processes at once."""

import errno
import mmap
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.corpus import CRC32C, GZIP, LITTLE, array, extension, sharding
from tests.support.datasets import store
from tests.support.mounting import Mounter, refuses

MIB = 2**20
UINT8 = extension("bytes")
LENGTHS = {"medium": 300_007, "small": 1001, "large": 3 * MIB}
ACCESS = {"direct": False, "page-cache": True}


@dataclass(frozen=True)
class Dataset:
    """A mount, and every file's bytes by its path."""

    root: Path
    files: dict[str, bytes]
    page_cache: bool


@pytest.fixture(scope="module", params=ACCESS)
def dataset(module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Dataset:
    source = tmp_path_factory.mktemp("source")
    random = np.random.default_rng(1)
    files = {}
    for name, length in LENGTHS.items():
        values = random.integers(0, 256, 3 * length - 1, np.uint8)
        document = array(values.shape, (2 * length,), sharding((length,), UINT8, CRC32C), data_type="uint8")
        files |= {f"{name}/{key}": data for key, data in store(source / name, document, values).items()}
    nested = array((40, 40), (32, 32), sharding((16, 16), sharding((8, 4), LITTLE), GZIP))
    files |= {f"nested/{key}": data for key, data in store(source / "nested", nested).items()}
    files["plain"] = random.bytes(500_009)
    (source / "plain").write_bytes(files["plain"])
    page_cache = ACCESS[request.param]
    return Dataset(module_mount(source, page_cache=page_cache).path, files, page_cache)


OFFSETS = st.integers(0, 2**17) | st.integers(0, 4 * MIB) | st.sampled_from([4095, 4096, MIB - 1, MIB, 2**40, 2**62])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_range_of_any_file_is_exact(dataset: Dataset, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(dataset.files)))
    ranges = data.draw(st.lists(st.tuples(OFFSETS, OFFSETS), min_size=1, max_size=5))
    expected = dataset.files[name]
    fd = os.open(dataset.root / name, os.O_RDONLY)
    try:
        for offset, size in ranges:
            size = min(size, 4 * MIB)
            assert os.pread(fd, size, offset) == expected[offset : offset + size]
    finally:
        os.close(fd)


def test_a_private_mapping_works_on_every_file(dataset: Dataset) -> None:
    for name, expected in dataset.files.items():
        with open(dataset.root / name, "rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE) as mapped:
            assert mapped[:] == expected


def test_a_shared_mapping_works_on_plain_files_and_with_the_page_cache_on_chunks(dataset: Dataset) -> None:
    for name in ("plain", "medium/zarr.json", "medium/c/1"):
        with open(dataset.root / name, "rb") as file:
            if name == "medium/c/1" and not dataset.page_cache:
                with refuses(errno.ENODEV):
                    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            else:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                    assert mapped[:] == file.read()


READ_AT_RANDOM = """
import random, sys
from pathlib import Path
root, expected, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
random.seed(seed)
names = sorted(path.relative_to(expected) for path in expected.rglob("*") if path.is_file())
for _ in range(200):
    name = random.choice(names)
    with open(root / name, "rb", buffering=0) as shown, open(expected / name, "rb") as stored:
        data = stored.read()
        offset = random.randrange(len(data)) if random.random() < 0.5 else 0
        shown.seek(offset)
        assert shown.read(len(data)) == data[offset:], (name, offset)
"""


def test_eight_processes_read_right_at_the_same_time(dataset: Dataset, tmp_path: Path) -> None:
    for name, content in dataset.files.items():
        if not name.startswith("large/"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(content)
    script = [sys.executable, "-S", "-c", READ_AT_RANDOM, str(dataset.root), str(tmp_path)]
    readers = [subprocess.Popen([*script, str(seed)], stderr=subprocess.PIPE) for seed in range(8)]
    for reader in readers:
        _, complaint = reader.communicate(timeout=60)
        assert (reader.returncode, complaint) == (0, b"")
