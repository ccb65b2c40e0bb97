"""`shardfs compact`: shards without dead bytes, in C order, atomically, and only where nothing is lost by it."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Background
from tests.support.changing import ChangingArray
from tests.support.commands import SOURCE, one_line_of, run, run_json
from tests.support.corpus import BIG, C_ORDER, CRC32C, GZIP, LITTLE, array, sharding, transpose, write_case
from tests.support.corpus import CASES as CASES_OF_CORPUS
from tests.support.daemons import kill_daemon
from tests.support.damage import ENTRY_FAULTS, SHARD_FAULTS, edit
from tests.support.datasets import files_below, store
from tests.support.encoder import Layout
from tests.support.mounting import Mounter
from tests.support.readers import assert_same, read_zarr

SHARD = "c/0/0"
WASTEFUL = Layout(gaps=True, order="reversed")


def document(*after: Any, **members: Any) -> dict[str, Any]:
    """An array of two shards of 2 × 3 inner chunks, which have 6 elements of 4 bytes."""
    return array((4, 18), (4, 9), sharding((2, 3), LITTLE, **members), *after)


def use_of(source: Path) -> dict[str, dict[str, Any]]:
    """What `map` says of every shard, by its key."""
    return {use["key"]: use for item in run_json("map", "--json", source)["arrays"] for use in item["shards"]}


def compact(source: Path, *arguments: str) -> list[str]:
    done = run("compact", *arguments, source)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("index_location", "index_codecs"),
    [("start", [LITTLE]), ("end", [BIG, CRC32C, CRC32C]), ("start", [transpose(2, 0, 1), LITTLE, CRC32C])],
    ids=str,
)
def test_a_compacted_shard_is_byte_for_byte_what_a_plain_writer_writes(
    tmp_path: Path, index_location: str, index_codecs: list[Any]
) -> None:
    stored = document(index_location=index_location, index_codecs=index_codecs)
    for name, layout in {"wasteful": WASTEFUL, "plain": C_ORDER}.items():
        store(tmp_path / name, stored, absent=[(1, 1), (0, 5)], layout=layout)
    assert files_below(tmp_path / "wasteful") != files_below(tmp_path / "plain")
    compact(tmp_path, "--threshold", "0", "--force")
    assert files_below(tmp_path / "wasteful") == files_below(tmp_path / "plain")


CASES = [
    *("gaps", "gaps-start", "reversed", "everything-at-once", "stored-beyond"),
    *("gaps-nested", "foreign-prefix-nested", "shared-nested"),
]


def test_only_dead_bytes_are_removed(tmp_path: Path) -> None:
    values = {
        case.name: write_case(case, tmp_path / case.name).values for case in CASES_OF_CORPUS if case.name in CASES
    }
    before = use_of(tmp_path)
    compact(tmp_path, "--threshold", "0", "--force")
    for key, use in use_of(tmp_path).items():
        assert before[key]["size"] - use["size"] == before[key]["dead"] - use["dead"]
        assert not use["dead"] or "nested" in key  # those within are moved as they are
    for name, expected in values.items():
        assert_same(read_zarr(tmp_path / name), expected)
    files = files_below(tmp_path)
    assert compact(tmp_path, "--threshold", "0", "--force") == ["0 shards compacted, 0 dead bytes removed"]
    assert files_below(tmp_path) == files


FOREIGN = {"hdf5": b"\x89HDF\r\n\x1a\n", "tiff": b"II*\0", "bigtiff": b"MM\0+", "other": b"anything"}


def test_a_shard_behind_a_foreign_prefix_is_left_unless_forced(tmp_path: Path) -> None:
    values = {}
    for name, magic in FOREIGN.items():
        store(tmp_path / name, document(), layout=Layout(foreign_prefix=400))
        with open(tmp_path / name / SHARD, "r+b") as file:
            file.write(magic)
        values[name] = read_zarr(tmp_path / name)
    before = files_below(tmp_path)
    lines = compact(tmp_path, "--threshold", "0")
    assert sorted(lines[:-1]) == sorted(
        f"left as it is: {name}/c/0/{j}: it begins with bytes that are no chunk's: another format may own them "
        "(--force compacts it)"
        for name in FOREIGN
        for j in range(2)
    )
    assert lines[-1] == "0 shards compacted, 0 dead bytes removed"
    assert files_below(tmp_path) == before
    assert compact(tmp_path, "--force")[-1] == f"{2 * len(FOREIGN)} shards compacted, {2 * len(FOREIGN) * 400:,} " + (
        "dead bytes removed"
    )
    for name, expected in values.items():
        assert_same(read_zarr(tmp_path / name), expected)
        assert len((tmp_path / name / SHARD).read_bytes()) == 6 * 24 + 6 * 16 + 4


def test_a_damaged_shard_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    faults = ENTRY_FAULTS | SHARD_FAULTS
    for name, fault in faults.items():
        store(tmp_path / name, array((8, 12), (8, 6), sharding((4, 3))), layout=Layout(gaps=True))
        edit(tmp_path / name / SHARD, fault)
    before = files_below(tmp_path)
    lines = compact(tmp_path, "--threshold", "0", "--force")
    for name in faults:
        assert [line for line in lines if line.startswith(f"left as it is: {name}/{SHARD}: ")]
        assert (tmp_path / name / SHARD).read_bytes() == before[f"{name}/{SHARD}"]
        assert (tmp_path / name / "c/0/1").read_bytes() != before[f"{name}/c/0/1"]  # its neighbour is compacted
    assert lines[-1].startswith(f"{len(faults)} shards compacted, ")


@pytest.mark.parametrize("after", [(GZIP,), (CRC32C,)], ids=["gzip", "crc32c"])
def test_shards_that_are_encoded_as_a_whole_are_left_alone(tmp_path: Path, after: tuple[Any, ...]) -> None:
    """Which bytes are dead cannot be told, and each write makes them anew without any."""
    store(tmp_path, document(*after), layout=Layout(gaps=True))
    before = files_below(tmp_path)
    assert compact(tmp_path, "--threshold", "0") == ["0 shards compacted, 0 dead bytes removed"]
    assert files_below(tmp_path) == before


def test_open_files_keep_reading_the_old_shard(tmp_path: Path, mount: Mounter) -> None:
    changing = ChangingArray(tmp_path / "source")
    changing.append(SHARD, 1, changing.chunks(2)["c/0/1"])
    expected = (tmp_path / "source" / SHARD).read_bytes()
    mounted = mount(tmp_path / "source")
    with open(tmp_path / "source" / SHARD, "rb") as native, open(mounted.path / "c/0/1", "rb", buffering=0) as chunk:
        assert compact(tmp_path / "source", "--threshold", "0.01")[-1].startswith("1 shard compacted")
        assert native.read() == expected
        assert chunk.read() == changing.chunks(2)["c/0/1"]
        assert (tmp_path / "source" / SHARD).stat().st_ino != os.fstat(native.fileno()).st_ino
    assert (mounted.path / "c/0/1").read_bytes() == changing.chunks(2)["c/0/1"]
    assert (mounted.path / "c/1/1").read_bytes() == changing.chunks(1)["c/1/1"]


def test_a_source_that_has_a_journal_is_not_compacted(background: Background, source: Path, place: Path) -> None:
    assert background("--write", source, place).returncode == 0
    (place / "c/0/0").write_bytes(b"a" * 24)
    kill_daemon(place)
    run("umount", place)
    before = files_below(source)
    said = one_line_of(run("compact", source), SOURCE)
    assert f"shardfs recover --apply {source}" in said or "shardfs recover --apply file://" in said
    after = files_below(source)
    for files in (before, after):
        for lock in (".shardfs/lock", ".shardfs/0/lock"):
            del files[lock]
    assert after == before
    assert run("recover", "--apply", source).returncode == 0
    assert compact(source, "--threshold", "0.01")[-1].startswith("1 shard compacted")
