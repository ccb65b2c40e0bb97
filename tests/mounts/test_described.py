"""What a document describes exists, whatever directories there are: scales and layers of which nothing is stored."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardfs
from tests.support.commands import run, run_json
from tests.support.mounting import Mounter
from tests.support.precomputed import info, read_volume, scale, sharding, write_volume
from tests.support.s3_mounts import Remote
from tests.support.serving import served
from tests.support.web_server import web_server

KEYS = ("8_8_40", "16_16_40", "deep/down/32_32_40")
SIZES = ((20, 18, 10), (10, 9, 5), (5, 5, 3))
CHUNK = (5, 9, 5)


def document() -> dict[str, Any]:
    specification = sharding(1, "identity", 1, 1)
    scales = zip(KEYS, SIZES, strict=True)
    return info(*(scale(size, CHUNK, specification, key=key) for key, size in scales), num_channels=2)


def write(path: Path, nstored: int) -> dict[str, np.ndarray]:
    """Write a volume of which only the first scales are anything but zeros; returns the values of all."""
    path.mkdir(parents=True)
    values = [np.full((*size, 2), index + 1 if index < nstored else 0, "u2") for index, size in enumerate(SIZES)]
    write_volume(path, document(), values)
    (path / "info").write_text(json.dumps(document()))
    stored = {key for key in KEYS if (path / key).exists()}
    assert stored == set(KEYS[:nstored])  # tensorstore stores no chunks of fill values
    return dict(zip(KEYS, values, strict=True))


def check(group: Any, values: dict[str, np.ndarray]) -> None:
    assert {name for name, node in group.members() if isinstance(node, zarr.Array)} == set(KEYS[:2])
    for path, expected in values.items():  # zarr-python does not look below directories that are no groups
        assert np.array_equal(np.asarray(group[path]), expected)


@pytest.mark.parametrize("nstored", [0, 1, 2])
def test_scales_without_stored_chunks_are_in_every_form_of_a_volume(
    mount: Mounter, tmp_path: Path, nstored: int
) -> None:
    source = tmp_path / "volume"
    values = write(source, nstored)
    assert [node["path"] for node in run_json("info", "--json", source)["arrays"]] == sorted(KEYS)
    for options in (["--decode"], ["--decode", "--view=v2"]):
        root = mount(source, arguments=options).path
        assert {name for name in os.listdir(root) if (root / name).is_dir()} == {"8_8_40", "16_16_40", "deep"}
        check(zarr.open_group(str(root), mode="r"), values)
        unpacked = tmp_path / f"unpacked{len(options)}"
        assert run("unpack", *options, source, unpacked).returncode == 0
        check(zarr.open_group(str(unpacked), mode="r"), values)
    root = mount(source).path
    for index, expected in enumerate(values.values()):
        assert np.array_equal(read_volume(root, index), expected)
    assert os.listdir(root / KEYS[2]) == []
    assert os.listxattr(root / KEYS[2]) == []
    assert (root / KEYS[2]).stat().st_mtime_ns == (source / "info").stat().st_mtime_ns
    packed = tmp_path / "packed"
    assert run("pack", source, packed).returncode == 0
    check(zarr.open_group(str(packed), mode="r"), values)
    assert run("verify", source, packed).returncode == 0
    with shardfs.open(str(source), decode=True) as dataset:
        check(zarr.open_group(dataset.store(), mode="r"), values)
    with served(source) as site:
        for key in KEYS:
            assert site.ask(f"/-/decoded/v3/{key}/zarr.json").status == 200


def test_a_copy_without_a_scale_of_zeros_is_found_by_verify(tmp_path: Path) -> None:
    write(tmp_path / "volume", 1)
    assert run("pack", tmp_path / "volume", tmp_path / "packed").returncode == 0
    (tmp_path / "packed" / KEYS[1] / "zarr.json").unlink()
    (tmp_path / "packed" / KEYS[1]).rmdir()
    done = run("verify", tmp_path / "volume", tmp_path / "packed")
    assert done.returncode == 1
    assert KEYS[1] in done.stdout + done.stderr


def test_an_array_may_be_named_that_nothing_is_stored_of(tmp_path: Path) -> None:
    write(tmp_path / "volume", 0)
    found = run_json("info", "--json", tmp_path / "volume", KEYS[2])["arrays"]
    assert [node["path"] for node in found] == [KEYS[2]]


@pytest.mark.parametrize("nstored", [0, 1])
def test_scales_without_stored_chunks_are_there_in_a_bucket(remote: Remote, nstored: int) -> None:
    values = write(remote.local, nstored)
    remote.upload("")
    root = remote.mount(arguments=["--decode"])
    check(zarr.open_group(str(root), mode="r"), values)


@pytest.mark.parametrize("nstored", [0, 1])
def test_scales_without_stored_chunks_are_there_on_a_web_server(mount: Mounter, tmp_path: Path, nstored: int) -> None:
    values = write(tmp_path / "files/volume", nstored)
    with web_server(tmp_path / "files") as web:
        root = mount(f"{web.url}/volume", arguments=["--decode"]).path
        check(zarr.open_group(str(root), mode="r"), values)
        assert run("pack", "--assume-complete", f"{web.url}/volume", tmp_path / "packed").returncode == 0
    check(zarr.open_group(str(tmp_path / "packed"), mode="r"), values)


def test_a_mount_that_writes_makes_nothing_of_a_scale_that_is_not_stored(mount: Mounter, tmp_path: Path) -> None:
    write(tmp_path / "volume", 1)
    mounted = mount(tmp_path / "volume", write=True)
    mounted.expect("only read")
    root = mounted.path
    for name in (KEYS[1], "deep"):
        with pytest.raises(OSError, match=r"Read-only|exists"):
            (root / name).mkdir()
        with pytest.raises(OSError, match="Read-only"):
            (root / name).rmdir()
    with pytest.raises(OSError, match="Read-only"):
        (root / KEYS[1] / "0.shard").write_bytes(b"")
    assert not (tmp_path / "volume" / KEYS[1]).exists()


@pytest.mark.parametrize(
    "key", ["a" * 256, "/".join("a" * 40), "\ud800", "x/../y", "a\0b", ".shardfs/journal"], ids=range(6)
)
def test_what_no_directory_can_be_called_is_not_shown(mount: Mounter, tmp_path: Path, key: str) -> None:
    (tmp_path / "volume").mkdir()
    made = document()
    made["scales"][1]["key"] = key
    (tmp_path / "volume/info").write_text(json.dumps(made))
    root = mount(tmp_path / "volume", arguments=["--decode"]).path
    assert {name for name in os.listdir(root) if (root / name).is_dir()} == {KEYS[0], "deep"}


def test_a_layer_of_webknossos_without_files_is_an_array(mount: Mounter, tmp_path: Path) -> None:
    wkw = pytest.importorskip("wkw")
    support = pytest.importorskip("tests.support.wkw")
    (tmp_path / "source").mkdir()
    support.write_properties(
        tmp_path / "source", support.layer("color", ([0, 0, 0], [20, 18, 10]), mags=[{"mag": [1, 1, 1]}])
    )
    (tmp_path / "source/color").mkdir()
    wkw.Dataset.create(str(tmp_path / "source/color/1"), wkw.Header(np.uint8, block_len=4, file_len=4)).close()
    assert os.listdir(tmp_path / "source/color/1") == ["header.wkw"]
    assert [node["path"] for node in run_json("info", "--json", tmp_path / "source")["arrays"]] == ["color/1"]
    root = mount(tmp_path / "source", arguments=["--decode"]).path
    array = zarr.open_array(str(root / "color/1"), mode="r")
    assert array.shape == (1, 20, 18, 10)
    assert not np.asarray(array).any()
    assert run("pack", tmp_path / "source", tmp_path / "packed").returncode == 0
    assert zarr.open_array(str(tmp_path / "packed/color/1"), mode="r").shape == (1, 20, 18, 10)
