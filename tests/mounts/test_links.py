"""Names of passed-through files, several of one file among them: the same as in a plain directory."""

import errno
import os
import random
import subprocess
from pathlib import Path

import pytest

from tests.support.corpus import array, sharding
from tests.support.datasets import files_below, store
from tests.support.mounting import Mount, Mounter, flush

NAMES = ["a", "b", "f", "d/a", "d/b", "c/0/lock", "c/0/other"]


def test_two_names_of_a_passed_through_file_are_one_file(root: Path) -> None:
    (root / "a").write_bytes(b"one")
    number = (root / "a").stat().st_ino
    os.link(root / "a", root / "b")
    for name in "ab":
        assert ((root / name).stat().st_ino, (root / name).stat().st_nlink) == (number, 2)
    (root / "b").write_bytes(b"two")
    assert (root / "a").read_bytes() == b"two"
    assert {entry.name: entry.inode() for entry in os.scandir(root)}["b"] == number
    (root / "d").mkdir()
    os.rename(root / "a", root / "d/a")
    assert (root / "d/a").stat().st_ino == number
    (root / "b").unlink()
    assert ((root / "d/a").stat().st_ino, (root / "d/a").stat().st_nlink) == (number, 1)


@pytest.mark.parametrize(("name", "way"), [("file", "replaced"), ("c/0/0.__lock", "removed"), ("directory", "removed")])
def test_the_inode_number_of_a_removed_file_is_never_used_again(root: Path, name: str, way: str) -> None:
    """A file system may give the very next file the number of the last one; here the kernel may hold that still."""
    make = os.mkdir if name == "directory" else Path.touch
    remove = os.rmdir if name == "directory" else os.unlink
    held, seen = [], set()
    for n in range(10):
        make(root / name)
        held.append(os.open(root / name, os.O_PATH))
        number = (root / name).stat().st_ino
        assert number not in seen
        seen.add(number)
        if way == "replaced":
            make(root / f"{name}-{n}")
            seen.add((root / f"{name}-{n}").stat().st_ino)
            os.rename(root / f"{name}-{n}", root / name)
        remove(root / name)
    for fd in held:
        os.close(fd)


def test_a_link_that_is_renamed_onto_a_chunk_is_a_copy(root: Path) -> None:
    (root / "a").write_bytes(b"one")
    os.link(root / "a", root / "b")
    number = (root / "a").stat().st_ino
    with (root / "a").open("r+b", buffering=0) as file:
        os.rename(root / "a", root / "c/0/0")
        assert (root / "b").stat().st_ino == number != (root / "c/0/0").stat().st_ino
        assert (root / "b").stat().st_nlink == 1
        file.write(b"two")
    for _ in range(2):
        assert [(root / name).read_bytes() for name in ("c/0/0", "b")] == [b"one", b"two"]
        flush(root.parent)


def links(root: Path) -> dict[str, tuple[bytes, int, set[str]]]:
    """What each file holds, how many names it has, and which of `NAMES` are links of it."""
    found = {name: (root / name).stat() for name in NAMES if (root / name).exists()}
    return {
        name: (
            (root / name).read_bytes(),
            status.st_nlink,
            {other for other in found if found[other].st_ino == status.st_ino},
        )
        for name, status in found.items()
    }


@pytest.mark.parametrize("seed", range(2))
def test_names_are_those_of_a_plain_directory(mounted: Mount, root: Path, tmp_path: Path, seed: int) -> None:
    """Random changes, some of them by another program in the source."""
    choose = random.Random(seed)
    plain = tmp_path / "plain"
    (plain / "c/0").mkdir(parents=True)
    for directory in (root, plain):
        (directory / "d").mkdir()

    def change(directory: Path, what: str, old: str, new: str, text: bytes) -> object:
        try:
            if what in ("wb", "r+b"):
                with (directory / old).open(what) as file:
                    file.seek(0, os.SEEK_END)
                    file.write(text)
            elif what == "unlink":
                os.unlink(directory / old)
            elif what == "rename both":
                os.rename(directory / "d", directory / "e")
                assert not (directory / "d").exists()
                os.rename(directory / "e", directory / "d")
            else:
                getattr(os, what)(directory / old, directory / new)
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return None

    for n in range(80):
        what = choose.choice(["wb", "r+b", "link", "link", "rename", "rename", "rename both", "unlink"])
        old, new = choose.sample(NAMES, 2)
        is_behind = choose.random() < 0.2 and "c/0" not in old + new and what != "rename both"
        place = mounted.source / root.name if is_behind else root
        assert change(place, what, old, new, b"%d" % n) == change(plain, what, old, new, b"%d" % n), (n, what, old, new)
        if is_behind:  # the kernel believes what it knows of a file for the TTL, or until it is opened
            files_below(root)
        assert links(root) == links(plain), (n, what, old, new, is_behind)


@pytest.mark.parametrize("location", ["start", "end"])
def test_a_snapshot_by_hard_links_keeps_every_shard_as_it_was(mount: Mounter, tmp_path: Path, location: str) -> None:
    chunks = store(tmp_path / "source", array((8, 12), (4, 6), sharding((2, 3), index_location=location)))
    subprocess.run(["cp", "-al", tmp_path / "source", tmp_path / "snapshot"], check=True)
    before = files_below(tmp_path / "snapshot")
    mounted = mount(tmp_path / "source", write=True)
    for new in (b"1" * 12, b"2" * 12):
        (mounted.path / "c/0/0").write_bytes(new)
        flush(mounted.path)
        assert files_below(tmp_path / "snapshot") == before
    (mounted.path / "c/0/1").unlink()
    mounted.unmount()
    assert files_below(tmp_path / "snapshot") == before
    shown = files_below(mount(tmp_path / "source").path)
    assert {key: shown.get(key) for key in chunks} == {**chunks, "c/0/0": new, "c/0/1": None}
