"""Reads are exact: any offset and size, mapped, large, and from many processes at once."""

import errno
import hashlib
import mmap
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.corpus import CRC32C, GZIP, LITTLE, array, extension, sharding
from tests.support.datasets import store
from tests.support.mounting import Mounter, refuses
from tests.support.processes import running

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


READ_ALL = """
import hashlib, os, sys
for path in sys.argv[1:]:
    with open(path, "rb", buffering=0) as file:
        data = file.read()
        file.seek(len(data) // 2)
        assert file.read(len(data)) == data[len(data) // 2 :], path
    print(hashlib.sha256(data).hexdigest())
"""


def test_eight_processes_read_right_at_the_same_time(dataset: Dataset) -> None:
    names = [name for name in sorted(dataset.files) if not name.startswith("large/")]
    expected = "".join(f"{hashlib.sha256(dataset.files[name]).hexdigest()}\n" for name in names)
    script = [sys.executable, "-S", "-c", READ_ALL, *(str(dataset.root / name) for name in names)]
    with ExitStack() as stack:
        readers = [stack.enter_context(running(script, stdout=subprocess.PIPE, text=True)) for _ in range(8)]
        assert [reader.communicate(timeout=60)[0] for reader in readers] == [expected] * 8
