"""`shardfs stats`: what one mount did, counted exactly."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Background
from tests.support.commands import MOUNT_POINT, one_line_of, run, run_json
from tests.support.corpus import GZIP, LITTLE, array, sharding
from tests.support.daemons import kill_daemon
from tests.support.datasets import store
from tests.support.mounting import Mounter


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    store(tmp_path / "source/image", array((8, 12), (4, 6), sharding((2, 3))))
    store(tmp_path / "source/whole", array((8, 12), (4, 6), sharding((2, 3), LITTLE), GZIP))
    store(tmp_path / "source/damaged", array((4, 6), (4, 6), sharding((2, 3))))
    (tmp_path / "source/damaged/c/0/0").write_bytes(b"")
    return tmp_path / "source"


def read(path: Path) -> None:
    with open(path, "rb", buffering=0) as file:
        assert len(file.read(1000)) == 24


def test_requests_bytes_and_loads_are_counted(mount: Mounter, dataset: Path) -> None:
    root = mount(dataset, metadata_ttl=3600).path
    before = run_json("stats", "--json", root)
    assert before["bytes_read"] == before["index_loads"] == before["replaced_shards"] == 0
    for name in ("image/c/0/0", "image/c/1/1", "image/c/0/0", "image/c/3/3", "whole/c/0/0", "whole/c/0/1"):
        read(root / name)
    counts = run_json("stats", "--json", root)
    assert counts["bytes_read"] == 6 * 24
    assert counts["requests"]["open"] == 6
    assert counts["index_loads"] == 3  # two shards of the image, one that is encoded as a whole
    assert counts["index_bytes"] == 3 * (4 * 16 + 4)
    assert counts["whole_shard_decodes"] == 1
    assert counts["index_hits"] > 0
    assert set(counts["errors"]) <= {"ENOSYS"}  # an answer to the kernel, not to a program


def test_a_replaced_shard_and_errors_are_counted(mount: Mounter, dataset: Path) -> None:
    root = mount(dataset, expect=("unreadable shard", "lookup: ")).path
    read(root / "image/c/0/0")
    os.utime(dataset / "image/c/0/0")
    read(root / "image/c/0/0")
    with pytest.raises(OSError, match="Input/output error"):
        read(root / "damaged/c/0/0")
    counts = run_json("stats", "--json", root)
    assert counts["replaced_shards"] == 1
    assert counts["errors"]["EIO"] == 1


def numbers(text: str) -> dict[str, Any]:
    """The counts in the text for people, by their names; those of requests and errors under theirs."""
    found: dict[str, Any] = {}
    for line in text.splitlines():
        name, _, value = line.strip().rpartition(" ")
        group = found.setdefault("requests" if "errors" not in found else "errors", {}) if line[0] == " " else found
        if line.endswith((":", "none")):
            found[line.partition(":")[0]] = {}
        else:
            group[name.strip().replace(" ", "_")] = int(value.replace(",", ""))
    return found


def test_the_text_has_the_same_counts(mount: Mounter, dataset: Path) -> None:
    root = mount(dataset).path
    read(root / "image/c/0/0")
    as_json = run_json("stats", "--json", root)
    as_text = numbers(run("stats", root).stdout)
    assert as_text.keys() == as_json.keys()
    for name in ("bytes_read", "index_loads", "index_bytes", "index_hits", "replaced_shards"):
        assert as_text[name] == as_json[name]
    assert as_text["requests"]["open"] == as_json["requests"]["open"] == 1


def test_each_mount_counts_for_itself(mount: Mounter, dataset: Path) -> None:
    first, second = mount(dataset).path, mount(dataset).path
    read(first / "image/c/0/0")
    assert run_json("stats", "--json", first)["bytes_read"] == 24
    assert run_json("stats", "--json", second)["bytes_read"] == 0


def test_asking_shows_in_no_listing(mount: Mounter, dataset: Path) -> None:
    root = mount(dataset).path
    assert sorted(os.listdir(root)) == ["damaged", "image", "whole"]
    assert not [name for name in os.listxattr(root) if name.startswith("user.shardfs")]


def test_a_dead_mount_has_no_counts(background: Background, source: Path, place: Path) -> None:
    assert background(source, place).returncode == 0
    kill_daemon(place)
    said = one_line_of(run("stats", place), MOUNT_POINT)
    assert said == f"{place} does not answer: its daemon died; mount it again, or run: shardfs umount {place}"
