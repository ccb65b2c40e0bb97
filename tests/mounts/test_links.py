"""Names of plain files, several of one file among them: the same as in a plain directory, also by inode number."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from tests.support.commands import run
from tests.support.corpus import LITTLE, array, sharding
from tests.support.datasets import store
from tests.support.mounting import Mount, Mounter

NAMES = ["a", "b", "c", "d/a", "d/b", "image/c/0/lock", "image/c/0/other"]


@pytest.fixture
def mounted(mount: Mounter, tmp_path: Path) -> Mount:
    store(tmp_path / "source/image", array((8, 12), (4, 6), sharding((2, 3), LITTLE)))
    (tmp_path / "source/d").mkdir()
    return mount(tmp_path / "source", write=True, metadata_ttl=3600)


@pytest.fixture
def root(mounted: Mount) -> Path:
    return mounted.path


def links(root: Path) -> dict[str, tuple[bytes, int, set[str]]]:
    """What each file holds, how many names it has, and which of `NAMES` are links of it."""
    there = [name for name in NAMES if (root / name).exists()]
    numbers = {name: (root / name).stat().st_ino for name in there}
    return {
        name: (
            (root / name).read_bytes(),
            (root / name).stat().st_nlink,
            {other for other in there if numbers[other] == numbers[name]},
        )
        for name in there
    }


def test_two_names_of_a_plain_file_are_one_file(root: Path) -> None:
    (root / "a").write_bytes(b"one")
    number = (root / "a").stat().st_ino
    os.link(root / "a", root / "b")
    for name in "ab":
        assert ((root / name).stat().st_ino, (root / name).stat().st_nlink) == (number, 2)
    (root / "b").write_bytes(b"two")
    assert (root / "a").read_bytes() == b"two"
    assert {entry.name: entry.inode() for entry in os.scandir(root)}["b"] == number
    os.rename(root / "a", root / "d/a")
    assert (root / "d/a").stat().st_ino == number
    (root / "b").unlink()
    assert ((root / "d/a").stat().st_ino, (root / "d/a").stat().st_nlink) == (number, 1)


def test_a_file_that_is_open_keeps_its_number_whatever_its_names(root: Path) -> None:
    (root / "a").write_bytes(b"one")
    with (root / "a").open("r+b", buffering=0) as file:
        number = os.fstat(file.fileno()).st_ino
        os.link(root / "a", root / "b")
        assert os.fstat(file.fileno()).st_nlink == 2
        (root / "a").unlink()
        (root / "a").write_bytes(b"another")
        os.fchmod(file.fileno(), 0o600)
        file.write(b"two")
        assert (os.fstat(file.fileno()).st_ino, os.fstat(file.fileno()).st_nlink) == (number, 1)
        assert (root / "b").stat().st_ino == number != (root / "a").stat().st_ino
        (root / "b").unlink()
        assert (os.fstat(file.fileno()).st_ino, os.fstat(file.fileno()).st_nlink) == (number, 0)
        assert os.pread(file.fileno(), 10, 0) == b"two"
    assert (root / "a").read_bytes() == b"another"


@pytest.mark.parametrize(
    ("name", "way"), [("file", "replaced"), ("image/c/0/0.__lock", "removed"), ("directory", "removed")]
)
def test_the_number_of_what_is_gone_is_never_given_out_again(mounted: Mount, name: str, way: str) -> None:
    """A file system may give the very next file the number of the last one; here the kernel may hold that still."""
    make = os.mkdir if name == "directory" else Path.touch
    remove = os.rmdir if name == "directory" else os.unlink
    held, seen = [], set()
    for n in range(10):
        make(mounted.path / name)
        held.append(os.open(mounted.path / name, os.O_PATH))
        number = (mounted.path / name).stat().st_ino
        assert number not in seen
        seen.add(number)
        if way == "removed":
            remove(mounted.path / name)
        else:
            make(mounted.path / f"{name}-{n}")
            seen.add((mounted.path / f"{name}-{n}").stat().st_ino)
            os.rename(mounted.path / f"{name}-{n}", mounted.path / name)
            remove(mounted.path / name)
    for fd in held:
        os.close(fd)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_who_writes_a_file_that_lost_one_of_its_names_writes_the_chunk_that_the_other_becomes(
    root: Path, is_replaced: bool
) -> None:
    (root / "a").write_bytes(b"one")
    os.link(root / "a", root / "b")
    with (root / "a").open("r+b", buffering=0) as file:
        if is_replaced:
            (root / "other").write_bytes(b"other")
            os.rename(root / "other", root / "a")
        else:
            os.rename(root / "b", root / "a")  # which are one file, and stay
            os.rename(root / "a", root / "b")
            (root / "a").unlink()
        os.rename(root / "b", root / "image/c/0/0")
        file.write(b"two")
    assert (root / "image/c/0/0").read_bytes() == b"two"


def test_a_link_that_is_renamed_onto_a_chunk_is_a_copy(root: Path) -> None:
    (root / "a").write_bytes(b"one")
    os.link(root / "a", root / "b")
    number = (root / "a").stat().st_ino
    with (root / "a").open("r+b", buffering=0) as file:
        os.rename(root / "a", root / "image/c/0/0")
        assert (root / "b").stat().st_ino == number != (root / "image/c/0/0").stat().st_ino
        assert (root / "b").stat().st_nlink == 1
        file.write(b"two")
    assert (root / "image/c/0/0").read_bytes() == b"two"
    assert (root / "b").read_bytes() == b"one"
    assert run("flush", root).returncode == 0
    assert (root / "image/c/0/0").read_bytes() == b"two"


@pytest.mark.parametrize("seed", range(2))
def test_names_are_those_of_a_plain_directory(mounted: Mount, tmp_path: Path, seed: int) -> None:
    """Random changes, some of them by another program in the source."""
    choose = random.Random(seed)
    plain = tmp_path / "plain"
    (plain / "d").mkdir(parents=True)
    (plain / "image/c/0").mkdir(parents=True)

    def change(root: Path, what: str, old: str, new: str, text: bytes) -> object:
        try:
            if what == "write":
                (root / old).write_bytes(text)
            elif what == "append":
                with (root / old).open("r+b") as file:
                    file.seek(0, os.SEEK_END)
                    file.write(text)
            elif what == "unlink":
                os.unlink(root / old)
            else:
                getattr(os, what)(root / old, root / new)
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return None

    for n in range(80):
        what = choose.choice(["write", "append", "link", "link", "rename", "rename", "unlink"])
        old, new = choose.sample(NAMES, 2)
        if what == "rename" and choose.random() < 0.1:  # also directories
            old, new = "d", "e"
            for root in (mounted.path, plain):
                os.rename(root / "d", root / "e")
                assert not (root / "d").exists()
                os.rename(root / "e", root / "d")
            continue
        is_behind = choose.random() < 0.2 and "image" not in old + new
        root = mounted.source if is_behind else mounted.path
        assert change(root, what, old, new, b"%d" % n) == change(plain, what, old, new, b"%d" % n), (n, what, old, new)
        if is_behind:
            for name in NAMES:  # the kernel believes what it knows of a name for the TTL
                with_fresh_attributes(mounted.path / name)
        assert links(mounted.path) == links(plain), (n, what, old, new, is_behind)


def with_fresh_attributes(path: Path) -> None:
    """Have the kernel ask for the attributes of a file that was changed behind it."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return
    os.close(fd)
