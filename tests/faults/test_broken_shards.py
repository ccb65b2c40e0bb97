"""Damaged shards: EIO for what is touched, its names listed, and all else as it should be."""

import errno
import gzip
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
from tests.support.damage import ENTRY_FAULTS, SHARD, SHARD_FAULTS, Change, document, edit, flip
from tests.support.datasets import files_below, store
from tests.support.mounting import Mount, Mounter

MAX_MEMORY = 250 * 2**20
INSIDE = ("c/0/0", "c/0/1", "c/1/0", "c/1/1")
"""The chunks of the damaged shard."""
PLAIN = document(LITTLE, GZIP)
START = document(LITTLE, GZIP, index_location="start")
NESTED = array((8, 12), (8, 6), sharding((4, 6), sharding((4, 3), LITTLE, GZIP)))
Damage = Callable[[Path], object]


def content(change: Change) -> Damage:
    return lambda path: edit(path, change)


def instead(make: Callable[[Path], object]) -> Damage:
    return lambda path: (path.unlink(), make(path))


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(path.parent, os.O_PATH)
        listener.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)


@dataclass(frozen=True)
class Fault:
    """A damaged shard, and which inner chunks it takes with it."""

    damage: Damage
    touched: tuple[str, ...] = INSIDE
    document: dict[str, Any] = field(default_factory=lambda: PLAIN)
    errno: int = errno.EIO


def in_enclosed_index(data: bytes) -> bytes:
    """Damage the index of the first enclosed shard, which ends where the second one begins."""
    (second_offset,) = struct.unpack_from("<Q", data, len(data) - 20)
    return flip(second_offset - 7)(data)


FAULTS = {
    **{name: Fault(content(change)) for name, change in SHARD_FAULTS.items()},
    **{name: Fault(content(change), ("c/0/1",)) for name, change in ENTRY_FAULTS.items()},
    "garbage": Fault(content(lambda data: bytes(1000))),
    "cut-behind-start-index": Fault(content(lambda data: data[:70]), document=START),
    "cut-in-start-index": Fault(content(lambda data: data[:40]), document=START),
    "cut-in-payload-behind-start-index": Fault(
        content(lambda data: data[: 68 + 48 + 30]), INSIDE[1:], document(LITTLE, index_location="start")
    ),
    "bit-in-start-index": Fault(content(flip(5)), document=START),
    "bit-under-checksum": Fault(content(flip(0)), document=document(LITTLE, after=(CRC32C,))),
    "bit-under-checksum-between-levels": Fault(
        content(flip(0)), INSIDE[:2], array((8, 12), (8, 6), sharding((4, 6), sharding((4, 3), LITTLE), CRC32C))
    ),
    "encoded-and-cut": Fault(content(lambda data: data[:-1]), document=document(LITTLE, after=(GZIP,))),
    "encoded-and-too-short-for-its-index": Fault(
        content(lambda data: gzip.compress(b"short")), document=document(LITTLE, after=(GZIP,))
    ),
    "bit-in-index-without-checksum": Fault(
        content(flip(-9)), ("c/1/1",), document(LITTLE, GZIP, index_codecs=[LITTLE])
    ),  # the last offset, far beyond
    "bit-in-outer-index": Fault(content(flip(-20)), document=NESTED),
    "bit-in-enclosed-index": Fault(content(in_enclosed_index), ("c/0/0", "c/0/1"), NESTED),
    "directory": Fault(instead(os.mkdir)),
    "fifo": Fault(instead(os.mkfifo)),
    "socket": Fault(instead(make_socket)),
    "link-out-of-the-source": Fault(instead(lambda path: path.symlink_to("/etc/passwd"))),
    "link-up-and-out": Fault(instead(lambda path: path.symlink_to("../" * 40 + "etc/passwd"))),
    "link-to-nothing": Fault(instead(lambda path: path.symlink_to("../../not-fetched"))),
    "link-to-itself": Fault(instead(lambda path: path.symlink_to(path.name))),
    "mode-000": Fault(lambda path: path.chmod(0), errno=errno.EACCES),
}


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
        fault.damage(source / name / SHARD)
    expected = ("unreadable shard: ", r"\b(lookup|getattr|open|readdir|read): ")
    return Hospital(module_mount(source, bound_by_modes=True, expect=expected, address_space=2**32), chunks)


@pytest.mark.parametrize("name", FAULTS)
def test_damage_fails_what_it_touches_and_cp_r_copies_everything_else(
    hospital: Hospital, name: str, tmp_path: Path
) -> None:
    fault, shown = FAULTS[name], hospital.mount.path / name
    for key in fault.touched:
        for call in (os.stat, Path.read_bytes, lambda path: os.getxattr(path, "user.shardfs.offset")):
            with pytest.raises(OSError) as raised:
                call(shown / key)
            assert raised.value.errno == fault.errno
    done = subprocess.run(["cp", "-r", shown, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert all(f"{name}/{key}'" in done.stderr for key in fault.touched)
    copied = files_below(tmp_path / name)
    copied.pop("zarr.json")
    assert copied == {key: data for key, data in hospital.chunks[name].items() if key not in fault.touched}
    for key, data in hospital.chunks["sound"].items():
        assert (hospital.mount.path / "sound" / key).read_bytes() == data
    assert hospital.mount.peak_memory() < MAX_MEMORY


def test_a_mended_shard_is_read_again_at_once(mount: Mounter, tmp_path: Path) -> None:
    chunks = store(tmp_path / "source", PLAIN)
    shard = tmp_path / "source" / SHARD
    sound = shard.read_bytes()
    edit(shard, SHARD_FAULTS["bit-in-the-index"])
    root = mount(tmp_path / "source", metadata_ttl=3600, expect=("unreadable shard: ", "lookup: ")).path
    with pytest.raises(OSError, match="Input/output error"):
        (root / SHARD).read_bytes()
    shard.write_bytes(sound)
    for key, data in chunks.items():
        assert (root / key).read_bytes() == data
