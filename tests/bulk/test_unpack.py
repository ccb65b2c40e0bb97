"""`shardfs unpack`: the very files that a mount shows; and back from `pack`, the very chunks that went in."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import zarr

from tests.bulk.test_pack import pack, write_v3
from tests.support.commands import FAILED, run
from tests.support.corpus import CASES, write_case
from tests.support.damage import edit, flip
from tests.support.datasets import files_below
from tests.support.mounting import Mounter

EXPECTED = ("is left out of the", "is not read correctly by all users")
VIEWS = [("v3",), ("v2", "--decode"), ("npy",)]


@pytest.mark.parametrize("view", VIEWS, ids=" ".join)
def test_what_is_unpacked_is_what_a_mount_shows(tmp_path: Path, mount: Mounter, view: tuple[str, ...]) -> None:
    source = tmp_path / "source"
    write_v3(source)
    for case in CASES:
        if case.name.startswith(("nested-3", "transpose-2", "type-s", "encoded", "keys-v2")):
            write_case(case, source / "corpus" / case.name)
    (source / "link").symlink_to("README.txt")
    done = run("unpack", "--jobs", "1", "--view", *view, source, tmp_path / "unpacked")
    left_out = [line for line in done.stderr.splitlines() if line.startswith("shardfs: left out: ")]
    assert done.returncode == (FAILED if left_out else 0), str(done)
    assert bool(left_out) is (view != ("v3",))  # some arrays of the corpus have no such form
    mounted = mount(source, arguments=["--view", *view], expect=EXPECTED)
    shown = files_below(mounted.path)
    assert files_below(tmp_path / "unpacked") == shown
    assert not (tmp_path / "unpacked/link").is_symlink()


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


def test_the_chunks_of_a_damaged_shard_are_named_and_left_out(tmp_path: Path) -> None:
    write_v3(tmp_path / "source")
    edit(tmp_path / "source/below/table/c/3/1", flip(-3))
    done = run("unpack", "--jobs", "1", tmp_path / "source", tmp_path / "unpacked")
    assert done.returncode == FAILED
    problems = [line for line in done.stderr.splitlines() if "left out" in line]
    damaged = {f"below/table/c/{i}/{j}" for i in (6, 7) for j in range(4, 8)}
    assert {line.split(": ")[2] for line in problems} == damaged
    chunks = {name for name in files_below(tmp_path / "unpacked") if name.startswith("below/table/c/")}
    assert len(chunks) == 16 * 16 - 8
    assert not chunks & damaged


def test_a_link_out_of_the_source_is_named_and_not_followed(tmp_path: Path) -> None:
    write_v3(tmp_path / "source")
    (tmp_path / "secret").write_text("secret")
    os.symlink("../secret", tmp_path / "source/link")
    for command in ("pack", "unpack"):
        done = run(command, "--jobs", "1", tmp_path / "source", tmp_path / command)
        assert done.returncode == FAILED
        assert "left out: link is a link that leads out of the dataset" in done.stderr
        assert not (tmp_path / command / "link").exists()
