"""Chunks and documents that programs write in place: several at once, and names that are made and not published yet."""

import ctypes
import errno
import json
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

KEY, ABSENT = "c/0/0", "c/0/1"
CUT = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
_RENAME_NOREPLACE = 1


@pytest.fixture
def root(new_array: Callable[..., Path]) -> Path:
    return new_array(absent=[(0, 1)])


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A plain directory, with a file where the mount has a chunk."""
    (tmp_path / "plain/c/0").mkdir(parents=True)
    (tmp_path / "plain" / KEY).write_bytes(b"0" * 24)
    return tmp_path / "plain"


def content(path: Path) -> bytes | None:
    """What a reader finds, None if there is nothing."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


# Several writers


def versions_of(root: Path, name: str) -> list[bytes]:
    """What two programs write as the whole of a file."""
    if name != "zarr.json":
        return [b"1" * 5000, b"2" * 4000]
    document = json.loads((root / name).read_text())
    return [json.dumps({**document, "attributes": {"text": text * 3000}}).encode() for text in "ab"]


@pytest.mark.parametrize("name", [KEY, ABSENT, "zarr.json"])
def test_of_programs_that_write_one_file_as_a_whole_one_wins_whole(root: Path, name: str) -> None:
    versions, barrier = versions_of(root, name), Barrier(2, timeout=60)

    def write(data: bytes) -> None:
        for _ in range(10):
            barrier.wait()
            fd = os.open(root / name, CUT, 0o644)
            for start in range(0, len(data), 500):
                os.write(fd, data[start : start + 500])
            os.close(fd)
            barrier.wait()
            assert (root / name).read_bytes() in versions

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, versions))


@pytest.mark.parametrize("name", [KEY, ABSENT, "zarr.json"])
def test_of_two_that_cut_a_file_the_last_to_close_wins(root: Path, name: str) -> None:
    first, second = versions_of(root, name)
    old = content(root / name)
    fds = [os.open(root / name, CUT, 0o644) for _ in range(2)]
    os.write(fds[0], first[:7])
    assert os.fstat(fds[0]).st_size == 7
    os.write(fds[1], second)
    assert os.fstat(fds[1]).st_size == len(second)
    os.pwrite(fds[0], first[7:], 7)
    assert content(root / name) == old
    os.close(fds[1])
    assert (root / name).read_bytes() == second
    os.close(fds[0])
    assert (root / name).read_bytes() == first


def test_who_does_not_cut_a_file_shares_the_buffer_that_was_begun_last(root: Path) -> None:
    cut = os.open(root / KEY, CUT)
    os.write(cut, b"1111")
    with (root / KEY).open("ab", buffering=0) as more, (root / KEY).open("r+b", buffering=0) as beside:
        more.write(b"22")
        beside.write(b"3")
        assert beside.read() == b"11122"
    os.close(cut)
    assert (root / KEY).read_bytes() == b"311122"


def test_who_has_a_file_open_and_wrote_nothing_begins_with_what_was_published(root: Path) -> None:
    with (root / KEY).open("r+b", buffering=0) as file:
        (root / KEY).write_bytes(b"published")
        file.write(b"P")
        assert os.pread(file.fileno(), 100, 0) == b"Published"
        os.fsync(file.fileno())
        (root / KEY).write_bytes(b"again")
        os.pwrite(file.fileno(), b"A", 0)
    assert (root / KEY).read_bytes() == b"Again"


def test_who_does_not_cut_a_file_begins_with_what_was_published_last(root: Path) -> None:
    """Not with what another program wrote before, and still has open."""
    cut = os.open(root / KEY, CUT)
    os.write(cut, b"older")
    os.fsync(cut)
    (root / KEY).write_bytes(b"published")
    with (root / KEY).open("r+b", buffering=0) as file:
        assert os.pread(file.fileno(), 100, 0) == b"published"
        file.write(b"P")
    assert (root / KEY).read_bytes() == b"Published"
    os.truncate(root / KEY, 3)
    assert (root / KEY).read_bytes() == b"Pub"
    os.write(cut, b" and newer")
    os.close(cut)
    assert (root / KEY).read_bytes() == b"older and newer"


@pytest.mark.parametrize("name", [KEY, "zarr.json"])
def test_who_writes_a_plain_file_that_was_replaced_does_not_write_what_replaced_it(root: Path, name: str) -> None:
    old, plain = (root / name).read_bytes(), root / "plain"
    with plain.open("wb", buffering=0) as file:
        os.rename(root / name, plain)
        os.rename(plain, root / name)
        file.write(b"nowhere")
    assert (root / name).read_bytes() == old


@pytest.mark.parametrize("way", ["moved", "replaced"])
def test_mode_and_time_are_given_to_the_document_that_is_open(root: Path, way: str) -> None:
    """Not to another one that has its name by now."""
    group = b'{"zarr_format": 3, "node_type": "group"}'
    place, moved = root.with_name(f"{root.name}-{way}"), root.with_name(f"{root.name}-{way}-to")
    place.mkdir()
    document = place / "zarr.json"
    with document.open("wb", buffering=0) as file:
        file.write(group)
        os.fsync(file.fileno())
        if way == "moved":
            place.rename(moved)
            place.mkdir()
        else:
            document.unlink()
        document.write_bytes(group)
        other = document.stat()
        os.fchmod(file.fileno(), 0o600)
        os.utime(file.fileno(), (1, 1))
    assert (document.stat().st_mode, document.stat().st_mtime_ns) == (other.st_mode, other.st_mtime_ns)
    if way == "moved":
        found = (moved / "zarr.json").stat()
        assert (stat.S_IMODE(found.st_mode), found.st_mtime) == (0o600, 1)


def test_a_rename_and_a_removal_take_all_writers_along(root: Path) -> None:
    fds = [os.open(root / KEY, CUT) for _ in range(2)]
    for fd, data in zip(fds, (b"first", b"second"), strict=True):
        os.write(fd, data)
    os.rename(root / KEY, root / ABSENT)
    assert (root / ABSENT).read_bytes() == b"second"
    os.write(fds[0], b" more")
    os.close(fds[0])
    assert ((root / ABSENT).read_bytes(), content(root / KEY)) == (b"first more", None)
    (root / ABSENT).unlink()
    os.write(fds[1], b" nowhere")
    os.close(fds[1])
    assert content(root / ABSENT) is None


def test_a_file_that_is_made_and_open_has_its_name(root: Path, plain: Path) -> None:
    """All that asks for the name, or takes it, does what it does in a plain directory; only readers find nothing."""

    def refused(change: Callable[[], object]) -> str | None:
        try:
            change()
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return None

    def try_all(directory: Path) -> list[object]:
        path, found = directory / ABSENT, list[object]()
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        (directory / "beside").write_bytes(b"beside")
        for size in (0, 3):
            os.pwrite(fd, b"1" * size, 0)
            os.fchmod(fd, 0o640)
            found += [path.exists(), path.stat().st_size, path.stat().st_ino == os.fstat(fd).st_ino]
            found += [stat.S_ISREG(path.stat().st_mode), os.access(path, os.W_OK)]
            found += [refused(lambda: os.chmod(path, 0o644)), refused(lambda: os.utime(path, ns=(1, 1)))]
            found += [refused(lambda: os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))]
            found += [refused(lambda: os.link(directory / "beside", path))]
            found += [refused(lambda: rename_if_absent(directory / "beside", path))]
            found += [refused(lambda: os.mkdir(path)), refused(lambda: os.rmdir(path))]
        os.unlink(path)
        found += [path.exists(), os.fstat(fd).st_size, os.pread(fd, 10, 0), refused(lambda: os.unlink(path))]
        second = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        found += [os.fstat(second).st_size, os.fstat(second).st_ino == os.fstat(fd).st_ino]
        os.pwrite(second, b"second", 0)
        os.pwrite(fd, b"nowhere", 0)
        os.close(second)
        os.close(fd)
        return [*found, path.read_bytes()]

    assert try_all(root) == try_all(plain)


def rename_if_absent(old: Path, new: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), _RENAME_NOREPLACE):
        raise OSError(ctypes.get_errno(), "renameat2")
