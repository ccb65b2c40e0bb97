"""Damaged shards: EIO for what is touched, its names listed, and all else as it should be."""

import errno
import os
import socket
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.corpus import CRC32C, GZIP, LITTLE, array, sharding
from tests.support.damage import Change, edit, flip, index
from tests.support.datasets import files_below, store
from tests.support.encoder import EMPTY
from tests.support.mounting import Mount, Mounter

MAX_MEMORY = 250 * 2**20
BROKEN = "c/0/0"
"""Shards; each of them holds 2 × 2 inner chunks."""
INSIDE = ["c/0/0", "c/0/1", "c/1/0", "c/1/1"]
PLAIN = array((8, 12), (8, 6), sharding((4, 3), LITTLE, GZIP))
BARE = array((8, 12), (8, 6), sharding((4, 3), LITTLE, GZIP, index_codecs=[LITTLE]))
START = array((8, 12), (8, 6), sharding((4, 3), LITTLE, GZIP, index_location="start"))
WRAPPED = array((8, 12), (8, 6), sharding((4, 3), LITTLE), CRC32C)
NESTED = array((8, 12), (8, 6), sharding((4, 6), sharding((4, 3), LITTLE, GZIP)))
Damage = Callable[[Path], None]


def content(change: Change) -> Damage:
    return lambda path: edit(path, change)


def instead(make: Callable[[Path], object]) -> Damage:
    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(path.parent, os.O_PATH)
        listener.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)


@dataclass(frozen=True)
class Fault:
    """A damaged shard, and which inner chunks it takes with it."""

    damage: Damage
    touched: tuple[str, ...] = tuple(INSIDE)
    document: dict[str, Any] = field(default_factory=lambda: PLAIN)
    errno: int = errno.EIO


FAULTS = {
    "cut-by-one": Fault(content(lambda data: data[:-1])),
    "cut-in-half": Fault(content(lambda data: data[: len(data) // 2])),
    "cut-behind-start-index": Fault(content(lambda data: data[:70]), document=START),
    "cut-in-start-index": Fault(content(lambda data: data[:40]), document=START),
    "0-bytes": Fault(content(lambda data: b"")),
    "shorter-than-index": Fault(content(lambda data: data[:10])),
    "one-byte-more": Fault(content(lambda data: data + b"\0")),
    "garbage": Fault(content(lambda data: bytes(1000))),
    "bit-in-index": Fault(content(flip(-20))),
    "bit-in-start-index": Fault(content(flip(5)), document=START),
    "bit-in-checksum": Fault(content(flip(-1))),
    "bit-under-checksum": Fault(content(flip(0)), document=WRAPPED),
    "entry-beyond-the-end": Fault(content(index(1, 10, 10**6)), ("c/0/1",)),
    "entry-far-beyond": Fault(content(index(2, 2**40, 1)), ("c/1/0",)),
    "entry-overflows": Fault(content(index(3, 2**64 - 2, 100)), ("c/1/1",)),
    "entry-overflows-to-0": Fault(content(index(3, 2**64 - 16, 16)), ("c/1/1",)),
    "entry-half-empty-offset": Fault(content(index(0, EMPTY, 5)), ("c/0/0",)),
    "entry-half-empty-nbytes": Fault(content(index(0, 5, EMPTY)), ("c/0/0",)),
    "bit-in-bare-index": Fault(content(flip(-9)), ("c/1/1",), document=BARE),  # the last offset, far beyond
    "bit-in-outer-index": Fault(content(flip(-20)), document=NESTED),
    "directory": Fault(instead(os.mkdir)),
    "fifo": Fault(instead(os.mkfifo)),
    "socket": Fault(instead(make_socket)),
    "link-out-of-the-source": Fault(instead(lambda path: path.symlink_to("/etc/passwd"))),
    "link-up-and-out": Fault(instead(lambda path: path.symlink_to("../" * 40 + "etc/passwd"))),
    "link-to-itself": Fault(instead(lambda path: path.symlink_to(path.name))),
    "mode-000": Fault(lambda path: path.chmod(0), errno=errno.EACCES),
}
every_fault = pytest.mark.parametrize("name", FAULTS)


@dataclass(frozen=True)
class Hospital:
    """One mount of an array per fault, beside a sound one."""

    mount: Mount
    chunks: dict[str, dict[str, bytes]]


@pytest.fixture(scope="module")
def hospital(module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory) -> Hospital:
    source = tmp_path_factory.mktemp("source")
    chunks = {"sound": store(source / "sound", PLAIN)}
    for name, fault in FAULTS.items():
        chunks[name] = store(source / name, fault.document)
        fault.damage(source / name / BROKEN)
    expected = ("unreadable shard: ", r"\b(lookup|getattr|open|readdir|read): ")
    return Hospital(module_mount(source, bound_by_modes=True, expect=expected, address_space=2**32), chunks)


@every_fault
def test_what_is_touched_answers_with_an_error_and_never_with_absence(hospital: Hospital, name: str) -> None:
    for key in FAULTS[name].touched:
        path = hospital.mount.path / name / key
        for call in (
            os.stat,
            lambda path: os.open(path, os.O_RDONLY),
            lambda path: os.getxattr(path, "user.shardfs.offset"),
        ):
            with pytest.raises(OSError) as raised:
                call(path)
            assert raised.value.errno == FAULTS[name].errno


@every_fault
def test_cp_r_fails_and_copies_everything_else(hospital: Hospital, name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["cp", "-r", hospital.mount.path / name, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    for key in FAULTS[name].touched:
        assert f"{name}/{key}'" in done.stderr
    copied = files_below(tmp_path / name)
    copied.pop("zarr.json")
    assert copied == {key: data for key, data in hospital.chunks[name].items() if key not in FAULTS[name].touched}


def test_a_damaged_enclosed_shard_takes_only_its_own_chunks(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    chunks = store(source, NESTED)
    shard = (source / BROKEN).read_bytes()
    (second_offset,) = struct.unpack_from("<Q", shard, len(shard) - 20)
    edit(source / BROKEN, flip(second_offset - 7))  # in the index of the first enclosed shard, which ends there
    root = mount(source, expect=("lookup: ", "open: ")).path
    assert sorted(os.listdir(root / "c/0")) == ["0", "1", "2", "3"]
    for key, data in chunks.items():
        if key in ("c/0/0", "c/0/1"):
            with pytest.raises(OSError, match="Input/output error"):
                (root / key).read_bytes()
        else:
            assert (root / key).read_bytes() == data


def test_a_mended_shard_is_read_again_at_once(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    chunks = store(source, PLAIN)
    sound = (source / BROKEN).read_bytes()
    edit(source / BROKEN, flip(-20))
    root = mount(source, metadata_ttl=3600, expect=("unreadable shard: ", "lookup: ")).path
    with pytest.raises(OSError, match="Input/output error"):
        (root / BROKEN).read_bytes()
    (source / BROKEN).write_bytes(sound)
    for key, data in chunks.items():
        assert (root / key).read_bytes() == data


def test_after_all_that_the_daemon_lives_and_is_small(hospital: Hospital) -> None:
    for name in FAULTS:
        subprocess.run(["find", hospital.mount.path / name, "-size", "+0"], capture_output=True, check=False)
    for key, data in hospital.chunks["sound"].items():
        assert (hospital.mount.path / "sound" / key).read_bytes() == data
    assert hospital.mount.peak_memory() < MAX_MEMORY
