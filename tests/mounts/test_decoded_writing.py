"""Writing decoded chunks through real mounts, in every way that files are written, to arrays stored in many ways."""

import errno
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.corpus import (
    BIG,
    BLOSC,
    CRC32C,
    GZIP,
    LITTLE,
    ZSTD,
    array,
    extension,
    rectilinear,
    sharding,
    transpose,
)
from tests.support.datasets import age, store
from tests.support.encoder import encode
from tests.support.mounting import Mount, Mounter, flush, refuses

N = 40_000
"""Elements of a chunk that is decoded in a thread."""
SHAPE = (8, 12)
VALUES = np.arange(96, dtype="<i4").reshape(SHAPE)
DOCUMENTS = {
    "sharded": array(SHAPE, (8, 6), sharding((4, 3), BIG, ZSTD, CRC32C)),
    "nested": array(SHAPE, (8, 12), sharding((4, 6), sharding((2, 3), LITTLE, GZIP), GZIP)),
    "turned": array(SHAPE, (8, 6), transpose(1, 0), sharding((3, 4), LITTLE, GZIP)),
    "rectilinear": array(SHAPE, rectilinear([4, 8], [6, 6]), sharding((2, 3), LITTLE, BLOSC)),
    "wrapped": array(SHAPE, (8, 6), sharding((4, 3), LITTLE), GZIP),
    "loose": array(SHAPE, (4, 3), BIG, GZIP),  # not sharded
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "data.zarr"
    for name, document in DOCUMENTS.items():
        for key, data in encode(document, VALUES).files.items():
            (path / name / key).parent.mkdir(parents=True, exist_ok=True)
            (path / name / key).write_bytes(data)
        (path / name / "zarr.json").write_text(json.dumps(document))
    age(path)
    return path


def assert_stored(mount: Mounter, source: Path, first: bytes, second: bytes, **options: Any) -> None:
    """The chunks at (0, 0) and (1, 1) hold this, and all others what they held, as a view of encoded chunks has it."""
    root = mount(source, **options).path
    for name in DOCUMENTS:
        height, width = json.loads((root / name / "zarr.json").read_text())["chunk_grid"]["configuration"][
            "chunk_shape"
        ]
        nbytes = 4 * height * width
        expected = VALUES.copy()
        for plain, at in ((first, 0), (second, 1)):
            part = np.frombuffer(plain * (nbytes // len(plain)), "<i4").reshape(height, width)
            expected[at * height : (at + 1) * height, at * width : (at + 1) * width] = part
        assert np.array_equal(zarr.open_array(str(root / name), mode="r")[...], expected), name


def change_in_every_way(mounted: Mount, one: Path, other: Path, beside: Path) -> None:
    """Write two chunks until they hold as many `a` and `b` as they have bytes."""
    old = one.read_bytes()
    n = len(old)
    with open(one, "r+b", buffering=0) as file:
        file.seek(5)
        file.write(b"hello")
        file.seek(0)
        assert file.read() == old[:5] + b"hello" + old[10:]
    old = old[:5] + b"hello" + old[10:]

    def assert_old() -> None:
        assert (one.read_bytes(), one.stat().st_size) == (old, n)

    assert_old()
    for size in (0, 3, n + 1):
        with refuses(errno.EINVAL):
            os.truncate(one, size)
        assert_old()
    os.truncate(one, n)
    with refuses(errno.EINVAL), open(one, "ab", buffering=0) as file:
        file.write(b"x")
    assert_old()
    fd = os.open(one, os.O_WRONLY | os.O_TRUNC)
    os.write(fd, b"abc")
    with refuses(errno.EINVAL):
        os.fsync(fd)
    assert one.read_bytes() == old
    os.pwrite(fd, b"z" * (n - 3), 3)
    os.fsync(fd)
    new = b"abc" + b"z" * (n - 3)
    assert one.read_bytes() == new
    os.close(fd)

    before = other.read_bytes()
    with open(other, "rb", buffering=0) as file:
        begun = file.read(4)
        subprocess.run(["cp", "--reflink=auto", one, other], check=True)
        flush(mounted.path)
        assert begun + file.read() == before
        assert other.read_bytes() == new

    subprocess.run(["mv", other, one], check=True)
    assert one.read_bytes() == new
    assert not other.exists()
    os.rename(one, beside)
    assert beside.read_bytes() == new
    beside.write_bytes(b"a" * (n + 1))
    for take in (os.rename, os.link):
        with refuses(errno.EINVAL):
            take(beside, one)
        assert not one.exists()
    os.truncate(beside, n)
    os.link(beside, one)
    assert one.read_bytes() == b"a" * n
    os.rename(beside, other)
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.pwrite(fd, b"b", n - 1)
    os.pwrite(fd, b"b" * (n - 1), 0)
    os.rename(beside, other)
    os.close(fd)
    assert other.read_bytes() == b"b" * n


def test_plain_chunks_are_changed_as_any_file_is_except_in_size(mount: Mounter, source: Path) -> None:
    mounted = mount(source, write=True, arguments=["--decode"], expect=(r"has \d+ bytes, not",))
    for name in DOCUMENTS:
        directory = mounted.path / name
        change_in_every_way(mounted, directory / "c/0/0", directory / "c/1/1", directory / "beside")
        assert f"{name}/c/0/0 is refused: a chunk of this array has " in mounted.log
    mounted.unmount()
    assert_stored(mount, source, b"a", b"b")


def test_open_chunks_stay_while_their_shards_are_appended_to_and_replaced(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "a"
    values = np.arange(4 * N, dtype="<i4").reshape(4, N)
    store(source, array((4, N), (4, N), sharding((1, N), LITTLE, ZSTD)), values)
    mounted = mount(
        source,
        write=True,
        metadata_ttl=0,
        arguments=["--decode"],
        expect=("c/2/0", "shows them: 2/0", "another program has changed the array"),
    )
    chunks = [mounted.path / f"c/{row}/0" for row in range(4)]
    with open(chunks[0], "rb", buffering=0) as begun, open(chunks[1], "rb", buffering=0) as unread:
        start = begun.read(100)
        chunks[0].write_bytes(bytes(4 * N))
        flush(mounted.path)
        assert chunks[0].read_bytes() == bytes(4 * N)
        chunks[2].write_bytes(bytes(4 * N))
        shutil.rmtree(source / "c")
        store(source, array((4, N), (4, N), sharding((1, N), BIG, ZSTD)), values + 1)
        assert start + begun.read() == values[0].tobytes()
        assert unread.read() == values[1].tobytes()
    for row in (0, 1, 3):
        assert chunks[row].read_bytes() == (values[row] + 1).tobytes()
    with refuses(errno.EIO):  # it was encoded in the other byte order
        chunks[2].read_bytes()
    assert "c/2/0 of the array was published for metadata that another program has changed" in mounted.log
    with refuses(errno.EIO):
        flush(mounted.path)
    assert chunks[2].read_bytes() == (values[2] + 1).tobytes()


def test_chunks_that_cannot_be_encoded_are_refused_and_named(mount: Mounter, tmp_path: Path) -> None:
    codecs = {
        "level": extension("gzip", level=99),
        "dictionary": extension("zstd", level=3, dictionary="x"),
        "compressor": extension("blosc", cname="none", clevel=5, shuffle="shuffle", typesize=4, blocksize=0),
    }
    for name, codec in codecs.items():
        (tmp_path / "s" / name).mkdir(parents=True)
        document = array((4, 4), (4, 4), sharding((2, 2), LITTLE, codec))
        (tmp_path / "s" / name / "zarr.json").write_text(json.dumps(document))
    mounted = mount(tmp_path / "s", write=True, arguments=["--decode"], expect=("is refused",))
    for name in codecs:
        with refuses(errno.EINVAL):
            (mounted.path / name / "c/0/0").write_bytes(bytes(16))
        assert f"{name}/c/0/0 is refused: " in mounted.log
        assert not (mounted.path / name / "c/0/0").exists()
