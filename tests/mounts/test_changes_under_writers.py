"""Directories that are moved, and documents that are changed, while chunks are written."""

import errno
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import run
from threading import Event, Thread

import numpy as np
import pytest
import zarr

from tests.support.corpus import LITTLE, array, sharding
from tests.support.datasets import store
from tests.support.mounting import PATIENCE, Mounter

NBYTES = 24
KEYS = [f"c/{i}/{j}" for i in range(4) for j in range(4)]
FLUSH = "import os, sys; os.setxattr(sys.argv[1], 'user.shardfs.flush', b'')"


def new_source(tmp_path: Path) -> Path:
    """One array of four shards of 2 × 2 inner chunks."""
    store(tmp_path / "source/0", array((8, 12), (4, 6), sharding((2, 3), LITTLE)))
    return tmp_path / "source"


def flush(path: Path) -> None:
    run([sys.executable, "-c", FLUSH, path], check=True, timeout=PATIENCE)


@contextmanager
def written(directory: Callable[[], Path]) -> Iterator[dict[str, bytes]]:
    """Write chunks all the time, each by one thread of four; yields what each holds."""
    noted: dict[str, bytes] = {}
    end = Event()

    def write(keys: list[str]) -> None:
        count = 0
        while not end.is_set():
            for key in keys:
                count += 1
                try:
                    with open(directory() / key, "r+b") as file:
                        file.write(b"%024d" % count)
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.ESTALE):
                        raise
                    continue  # the directory has just been moved, or the array resized, once more
                noted[key] = b"%024d" % count

    threads = [Thread(target=write, args=(KEYS[first::4],)) for first in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield noted
    finally:
        end.set()
        for thread in threads:
            thread.join()


def test_what_is_written_while_the_directory_of_an_array_is_moved_goes_along(mount: Mounter, tmp_path: Path) -> None:
    mounted = mount(new_source(tmp_path), write=True)
    now = mounted.path / "0"
    with written(lambda: now) as noted:
        for number in range(1, 8):
            time.sleep(0.05)
            now = now.rename(mounted.path / str(number))
    flush(mounted.path)
    assert {key: (now / key).read_bytes() for key in noted} == noted


def test_what_is_written_while_an_array_is_resized_is_there(mount: Mounter, tmp_path: Path) -> None:
    mounted = mount(new_source(tmp_path), write=True)
    path = mounted.path / "0"
    document = json.loads((path / "zarr.json").read_text())
    with written(lambda: path) as noted:
        for number in range(1, 16):
            time.sleep(0.03)
            (path / "new").write_text(json.dumps({**document, "shape": [8, 12 + 4 * (number % 5)]}))
            (path / "new").rename(path / "zarr.json")
    for _ in range(2):
        assert {key: (path / key).read_bytes() for key in noted} == noted
        flush(mounted.path)


def test_chunks_of_one_shard_from_before_and_after_a_resize_by_another_program(mount: Mounter, tmp_path: Path) -> None:
    source = new_source(tmp_path)
    mounted = mount(source, write=True, metadata_ttl=0)
    (mounted.path / "0/c/0/0").write_bytes(b"1" * NBYTES)
    document = json.loads((source / "0/zarr.json").read_text())
    (source / "new").write_text(json.dumps({**document, "shape": [8, 24]}))
    os.rename(source / "new", source / "0/zarr.json")
    (mounted.path / "0/c/0/1").write_bytes(b"2" * NBYTES)
    flush(mounted.path)
    assert (mounted.path / "0/c/0/0").read_bytes() == b"1" * NBYTES
    assert (mounted.path / "0/c/0/1").read_bytes() == b"2" * NBYTES


@pytest.mark.parametrize("is_native", [False, True])
def test_who_opens_a_chunk_to_write_has_its_current_version_while_others_have_it_open_unchanged(
    mount: Mounter, tmp_path: Path, is_native: bool
) -> None:
    source = new_source(tmp_path)
    path = mount(source, write=True, metadata_ttl=0).path / "0/c/0/1"
    with open(path, "r+b"):
        if is_native:
            zarr.open_array(source / "0")[0:2, 3:6] = np.frombuffer(b"new." * 6, "<i4").reshape(2, 3)
        else:
            path.write_bytes(b"new." * 6)
        with open(path, "r+b") as file:
            assert file.read() == b"new." * 6
            file.seek(0)
            file.write(b"changed ")
    assert path.read_bytes() == b"changed " + b"new." * 4


def test_programs_that_change_parts_of_a_chunk_share_them_when_others_have_changed_its_shard(
    mount: Mounter, tmp_path: Path
) -> None:
    source = new_source(tmp_path)
    path = mount(source, write=True, metadata_ttl=0).path / "0/c/0/1"
    with open(path, "r+b", buffering=0) as one:
        zarr.open_array(source / "0")[0:2, 0:6] = np.frombuffer(b"new." * 12, "<i4").reshape(2, 6)
        with open(path, "r+b", buffering=0) as other:
            one.write(b"1111")
            other.seek(8)
            other.write(b"2222")
    assert path.read_bytes() == b"1111new.2222" + b"new." * 3


def test_what_is_written_from_the_first_byte_on_is_never_mixed_with_what_others_store_meanwhile(
    mount: Mounter, tmp_path: Path
) -> None:
    source = new_source(tmp_path)
    path = mount(source, write=True, metadata_ttl=0).path / "0/c/0/1"
    with open(path, "wb", buffering=0) as one:
        one.write(b"1" * 12)
        os.fsync(one.fileno())
        flush(path.parents[3])
        zarr.open_array(source / "0")[0:2, 3:6] = np.frombuffer(b"new." * 6, "<i4").reshape(2, 3)
        with open(path, "r+b") as other:
            assert other.read() == b"new." * 6
        one.write(b"1" * 12)
    assert path.read_bytes() == b"1" * NBYTES


@pytest.mark.parametrize("view", ["v3", "v2"])
def test_who_opens_a_document_to_write_has_its_current_version_while_others_have_it_open_unchanged(
    mount: Mounter, tmp_path: Path, view: str
) -> None:
    source = new_source(tmp_path)
    path = mount(source, write=True, metadata_ttl=0, arguments=["--view", view]).path / "0"
    if view == "v2":
        (path / ".zattrs").write_text('{"before": 1}')
    with open(path / ("zarr.json" if view == "v3" else ".zattrs"), "r+b") as one:
        zarr.open_array(source / "0").update_attributes({"natively": 1})
        with open(one.name, "r+") as other:
            document = json.load(other)
            (document if view == "v2" else document["attributes"])["through the mount"] = 1
            other.seek(0)
            json.dump(document, other)
            other.truncate()
    assert json.loads((source / "0/zarr.json").read_text())["attributes"].keys() >= {"natively", "through the mount"}


def test_programs_that_write_one_document_share_it_after_one_has_flushed(mount: Mounter, tmp_path: Path) -> None:
    path = mount(new_source(tmp_path), write=True).path / "0/zarr.json"
    text = json.dumps({**json.loads(path.read_text()), "attributes": {"who": "nobody"}}).encode()
    with open(path, "wb", buffering=0) as one:
        one.write(text)
        os.fsync(one.fileno())
        with open(path, "r+b", buffering=0) as other:
            other.write(text.replace(b"nobody", b"second"))
        one.write(b" \n")
    assert path.read_bytes() == text.replace(b"nobody", b"second") + b" \n"
