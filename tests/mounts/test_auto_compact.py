"""`mount --write --auto-compact RATIO`: shards are rewritten where an append would leave too much dead, unnoticed."""

import os
from pathlib import Path

import numpy as np

from tests.support.corpus import array, sharding
from tests.support.datasets import store
from tests.support.encoder import Layout
from tests.support.mounting import Mount, Mounter, flush
from tests.support.readers import READERS, read_zarr

KEY, NEIGHBOUR, ELSEWHERE = "c/0/0", "c/1/1", "c/3/3"
SHARD, OTHER = "c/0/0", "c/1/1"
SIZE = 4 * 24 + 4 * 16 + 4


def document() -> dict[str, object]:
    """An array of four shards of 2 × 2 inner chunks of 24 bytes."""
    return array((8, 12), (4, 6), sharding((2, 3)))


def waste(mounted: Mount, times: int = 4) -> None:
    """Replace one chunk again and again, each time with a commit."""
    for number in range(times):
        (mounted.path / KEY).write_bytes(bytes([number]) * 24)
        flush(mounted.path)


def size(mounted: Mount, key: str = SHARD) -> int:
    return (mounted.source / key).stat().st_size


def attributes(root: Path) -> dict[str, tuple[int, int, int]]:
    """Inode number, time and size of every chunk."""
    found = {}
    for path in (root / "c").rglob("*"):
        if path.is_file():
            status = path.stat()
            found[str(path.relative_to(root))] = status.st_ino, status.st_mtime_ns, status.st_size
    return found


def test_nobody_notices(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    store(source, document())
    mounted = mount(source, write=True, auto_compact=0.5, metadata_ttl=0)
    old = (mounted.path / KEY).read_bytes()
    with open(mounted.path / KEY, "rb", buffering=0) as before, open(source / SHARD, "rb") as native:
        (mounted.path / KEY).write_bytes(bytes([3]) * 24)
        seen, values = attributes(mounted.path), read_zarr(mounted.path)
        number = (source / SHARD).stat().st_ino
        with (
            open(mounted.path / KEY, "rb", buffering=0) as latest,
            open(mounted.path / NEIGHBOUR, "rb", buffering=0) as beside,
        ):
            neighbour = (mounted.path / NEIGHBOUR).read_bytes()
            flush(mounted.path)
            assert size(mounted) == SIZE
            assert (source / SHARD).stat().st_ino != number
            assert attributes(mounted.path) == seen
            assert (latest.read(), beside.read(), before.read()) == (bytes([3]) * 24, neighbour, old)
            assert [os.fstat(file.fileno()).st_size for file in (latest, beside, before)] == [24] * 3
            assert os.fstat(latest.fileno()).st_ino == seen[KEY][0]
            assert len(native.read()) == SIZE
    assert np.array_equal(read_zarr(mounted.path), values)
    for read in READERS.values():
        assert np.array_equal(read(source), values)
    waste(mounted)  # and it goes on
    assert size(mounted) == SIZE


def test_auto_compact_rewrites_only_written_shards_from_the_ratio_on(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    store(source, document())
    data = (source / OTHER).read_bytes()  # more than half of it is dead, by other programs
    (source / OTHER).write_bytes(data[:-68] + b"\0" * 1000 + data[-68:])
    others = {key: (source / key).read_bytes() for key in ("c/1/0", OTHER)}
    mounted = mount(source, write=True, auto_compact=0.5)
    assert (mounted.path / ELSEWHERE).read_bytes()
    waste(mounted)
    assert size(mounted) == SIZE
    before = (source / "c/0/1").read_bytes()
    (mounted.path / "c/0/3").write_bytes(b"1" * 100_000)  # of a shard that has too few dead bytes then
    flush(mounted.path)
    assert (source / "c/0/1").read_bytes().startswith(before)
    assert {key: (source / key).read_bytes() for key in others} == others
    mounted.unmount()
    assert {key: (source / key).read_bytes() for key in others} == others


def test_a_foreign_prefix_stays(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    store(source / "foreign", document(), layout=Layout(foreign_prefix=8))
    store(source / "plain", document())
    foreign = (source / "foreign" / SHARD).read_bytes()
    mounted = mount(source, write=True, auto_compact=0.1, metadata_ttl=0)
    for number in range(3):
        for name in ("foreign", "plain"):
            (mounted.path / name / KEY).write_bytes(bytes([number]) * 24)
        flush(mounted.path)
    assert (source / "plain" / SHARD).stat().st_size == SIZE
    mounted.unmount()
    assert (source / "foreign" / SHARD).read_bytes().startswith(foreign)


def test_chunks_that_another_program_changed_before_a_commit_are_new_versions(mount: Mounter, tmp_path: Path) -> None:
    store(tmp_path / "source", document())
    mounted = mount(tmp_path / "source", write=True, metadata_ttl=3600)
    before = attributes(mounted.path)
    (mounted.path / KEY).write_bytes(b"0" * 24)
    published = (mounted.path / KEY).stat().st_ino
    os.utime(tmp_path / "source" / SHARD)  # that is a change, for all that anybody can know
    flush(mounted.path)
    after = attributes(mounted.path)
    in_shard = {"c/0/1", "c/1/0", "c/1/1"}
    assert {key for key in after if after[key][0] != before[key][0]} == {KEY, *in_shard}
    assert after[KEY][0] == published
