"""`shardfs unpack`: the very files that a mount shows; and back from `pack`, the very chunks that went in."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.bulk.test_pack import pack, write_v2, write_v3
from tests.support.commands import FAILED, run
from tests.support.corpus import CASES, write_case
from tests.support.damage import edit, flip
from tests.support.datasets import files_below
from tests.support.mounting import Mounter

EXPECTED = ("is skipped in the", "is not read correctly by all users")
VIEWS = [("v3",), ("v2", "--decode"), ("npy",)]


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS, ids=" ".join)
def test_what_is_unpacked_is_what_a_mount_shows(tmp_path: Path, mount: Mounter, view: tuple[str, ...]) -> None:
    source = tmp_path / "source"
    write_v3(source)
    for case in CASES:
        if case.name.startswith(("nested-3", "transpose-2", "type-s", "encoded", "keys-v2")):
            write_case(case, source / "corpus" / case.name)
    (source / "link").symlink_to("README.txt")
    done = run("unpack", "--jobs", "1", "--view", *view, source, tmp_path / "unpacked")
    skipped = [line for line in done.stderr.splitlines() if line.startswith("shardfs: skipped: ")]
    assert done.returncode == (FAILED if skipped else 0), str(done)
    assert bool(skipped) is (view != ("v3",))  # some arrays of the corpus have no such form
    mounted = mount(source, arguments=["--view", *view], expect=EXPECTED)
    shown = files_below(mounted.path)
    assert files_below(tmp_path / "unpacked") == shown
    assert not (tmp_path / "unpacked/link").is_symlink()


@pytest.mark.slow
def test_chunks_of_an_unsharded_dataset_come_back_as_they_were_and_documents_say_the_same(tmp_path: Path) -> None:
    write_v3(tmp_path / "source")
    group = zarr.open_group(tmp_path / "source")
    del group["below/table"]
    zarr.consolidate_metadata(group.store)
    before = files_below(tmp_path / "source")
    pack(tmp_path / "source", tmp_path / "packed", "--shard-size", "20K")
    assert len(files_below(tmp_path / "packed")) < len(before) / 3
    assert run("unpack", "--jobs", "1", tmp_path / "packed", tmp_path / "unpacked").returncode == 0
    after = files_below(tmp_path / "unpacked")
    assert after.keys() == before.keys()
    for name, data in before.items():
        if name.endswith("zarr.json"):
            assert json.loads(after[name]) == json.loads(data)
        else:
            assert after[name] == data


@pytest.mark.slow
def test_the_chunks_of_a_damaged_shard_are_named_and_skipped(tmp_path: Path) -> None:
    write_v3(tmp_path / "source")
    edit(tmp_path / "source/below/table/c/3/1", flip(-3))
    done = run("unpack", "--jobs", "1", tmp_path / "source", tmp_path / "unpacked")
    assert done.returncode == FAILED
    problems = [line for line in done.stderr.splitlines() if "skipped" in line]
    damaged = {f"below/table/c/{i}/{j}" for i in (6, 7) for j in range(4, 8)}
    shard = "below/table/c/3/1: the crc32c does not match"
    assert [line.partition("shardfs: ")[2] for line in problems] == [f"skipped: below/table/c/6/4 and 7 more: {shard}"]
    chunks = {name for name in files_below(tmp_path / "unpacked") if name.startswith("below/table/c/")}
    assert len(chunks) == 16 * 16 - 8
    assert not chunks & damaged


@pytest.mark.slow
def test_a_link_out_of_the_source_is_named_and_not_followed(tmp_path: Path) -> None:
    write_v3(tmp_path / "source")
    (tmp_path / "secret").write_text("secret")
    os.symlink("../secret", tmp_path / "source/link")
    for command in ("pack", "unpack"):
        done = run(command, "--jobs", "1", tmp_path / "source", tmp_path / command)
        assert done.returncode == FAILED
        assert "skipped: link is a link that leads out of the dataset" in done.stderr
        assert not (tmp_path / command / "link").exists()


def differences(source: Path, made: Path) -> list[str]:
    done = run("verify", "--jobs", "1", source, made)
    lines = done.stdout.splitlines()
    assert done.returncode == (FAILED if lines[:-1] else 0), str(done)
    return lines[:-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "options", "view"), [(write_v3, ["--codecs", "gzip"], ["v2"]), (write_v2, [], ["v2", "--decode"])]
)
def test_what_was_packed_and_unpacked_is_the_same_however_it_is_stored(
    tmp_path: Path, write: Callable[[Path], None], options: list[str], view: list[str]
) -> None:
    source = tmp_path / "source"
    write(source)
    words = np.array([f"word {number}" for number in range(64)], dtype=object)
    if options:
        zarr.create_array(source / "words", shape=(64,), chunks=(4,), dtype=str)[...] = words  # type: ignore[type-var]
    pack(source, tmp_path / "packed", "--shard-size", "20K", *options)
    assert differences(source, tmp_path / "packed") == []
    assert run("unpack", "--jobs", "1", "--view", *view, tmp_path / "packed", tmp_path / "made").returncode == 0
    assert differences(source, tmp_path / "made") == []


@pytest.mark.slow
def test_unpacked_v2_with_the_missing_value_as_fill_value_is_the_same_if_no_chunk_is_missing(tmp_path: Path) -> None:
    source, made = tmp_path / "source", tmp_path / "made"
    group = zarr.open_group(source, mode="w")
    named = {"dtype": "f4", "fill_value": 5.0}
    table = group.create_array("table", shape=(5, 7), chunks=(2, 2), shards=(4, 4), dimension_names=["x", "y"], **named)
    table[:2] = 3
    group.create_array("point", shape=(), chunks=(), **named)
    assert run("unpack", "--jobs", "1", "--view", "v2", source, made).returncode == 0
    assert json.loads((made / "table/.zarray").read_text())["fill_value"] is None
    assert differences(source, made) == []
    shown = (made / "table/.zarray").read_text()
    (made / "table/.zarray").write_text(shown.replace('"fill_value": null', '"fill_value": 3.0'))
    assert differences(source, made) == ["table: other fill_value"]
    (made / "table/.zarray").write_text(shown)
    shutil.rmtree(made / "point")
    assert differences(source, made) == ["point is missing"]
    (made / "table/2.3").unlink()  # which the source does not have either
    assert "table/1/1: 1 of 2 chunks missing, which would read as another value" in differences(source, made)
    for chunk in [*made.glob("table/[2-3].*"), *made.glob("table/[0-3].[2-3]")]:
        chunk.unlink(missing_ok=True)
    assert "table: all of 2 shards missing, which would read as another value" in differences(source, made)


@pytest.mark.slow
def test_whatever_differs_is_named(tmp_path: Path) -> None:
    source, made = tmp_path / "source", tmp_path / "made"
    write_v3(source)
    group = zarr.open_group(source)
    group.create_array("ends", shape=(4,), chunks=(2,), dtype="u2", compressors=None)[...] = [1, 2, 0x101, 0x202]
    group.create_array("huge", shape=(2**41,), chunks=(2**40,), dtype="u1", compressors=None)
    (source / "huge/c").mkdir()
    (source / "huge/c/0").write_bytes(b"short")
    pack(source, made, "--shards", "2")
    changed = zarr.open_group(made, use_consolidated=False)
    changed["image"][0, 0, 0] += 1
    changed.create_array("more", shape=(3,), chunks=(3,), dtype="i4")
    changed["below/few"][:10] = 99
    (made / "below/table/c/1/1").unlink()
    (made / "notes/more.bin").write_bytes(b"x")
    (made / "README.txt").unlink()
    os.truncate(made / "point/c", 2**40)
    document = json.loads((made / "point/zarr.json").read_text())
    (made / "point/zarr.json").write_text(json.dumps(document | {"attributes": {"a": 1}}))
    text = (made / "ends/zarr.json").read_text()
    (made / "ends/zarr.json").write_text(text.replace('"little"', '"big"', 1))  # equal bytes are other values
    assert sorted(differences(source, made)) == [
        "README.txt: is missing in DEST",
        "below/few/chunk 0 differs",
        *(f"below/table/chunk {i}/{j} is missing" for i in (2, 3) for j in (2, 3)),
        "ends/chunk 0 differs",
        "huge/chunk 0: 1,099,511,627,776 bytes are too many to be compared",
        "image/chunk 0/0/0 differs",
        "more is in DEST only",
        "notes/more.bin: differs",
        "point/chunk : 1,099,511,627,776 bytes are too many to be compared",
        "point: other attributes",
    ]
