"""Random datasets in ZIP files of several programs, read as zarr-python's ZipStore reads them."""

import asyncio
import random
import shutil
import subprocess
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import zarr
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import ZipStore

import shardfs
from tests.formats.zip.test_members import all_of
from tests.support.commands import run, run_json

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TYPES = ["u1", "<i4", ">u2", "f4", "f8", "c8", "bool"]


def fill(group: Any, chance: random.Random, zarr_format: int) -> None:
    """Make some arrays, of which parts are written."""
    rng = np.random.default_rng(chance.randrange(2**32))
    for number in range(chance.randint(1, 4)):
        ndim = chance.randint(1, 3)
        chunks = tuple(chance.randint(1, 5) for _ in range(ndim))
        shape = tuple(chance.randint(1, 20) for _ in range(ndim))
        shards = tuple(n * chance.randint(1, 3) for n in chunks) if chance.random() < 0.5 else None
        compressors: Any = chance.choice([None, GzipCodec(), ZstdCodec(), BloscCodec(cname="lz4")])
        options: dict[str, Any] = {"chunks": chunks, "fill_value": chance.choice([0, 1])}
        if zarr_format == 3:
            options |= {"shards": shards, "compressors": compressors}
            options["dimension_names"] = [f"d{i}" for i in range(ndim)] if chance.random() < 0.5 else None
        dtype = np.dtype(chance.choice(TYPES))
        path = "/".join(["deep"] * chance.randint(0, 2) + [f"a{number}"])
        array = group.create_array(path, shape=shape, dtype=dtype, **options)
        part = tuple(slice(0, chance.randint(0, n)) for n in shape)
        array[part] = (rng.random(array[part].shape) * 100).astype(dtype)
        for _ in range(chance.randint(0, 2)):
            array.attrs[chance.choice("xyz")] = chance.choice([1, "text ä", None, [1.5]])
    group.attrs["of"] = "a group"


def by_zarr(method: int) -> Callable[[Path, Path, Callable[[Any], None]], None]:
    def write(path: Path, _: Path, write_into: Callable[[Any], None]) -> None:
        with ZipStore(path, mode="w", compression=method) as store:
            write_into(store)

    return write


def by_zipfile(path: Path, scratch: Path, write_into: Callable[[Any], None]) -> None:
    write_into(str(scratch / "stored"))
    shutil.make_archive(str(path.with_suffix("")), "zip", scratch / "stored")


def by_program(*command: str) -> Callable[[Path, Path, Callable[[Any], None]], None]:
    def write(path: Path, scratch: Path, write_into: Callable[[Any], None]) -> None:
        if shutil.which(command[0]) is None:
            pytest.skip(f"there is no {command[0]}")
        write_into(str(scratch / "stored"))
        subprocess.run([*command, path, "."], cwd=scratch / "stored", check=True, capture_output=True)

    return write


def through_a_pipe(path: Path, scratch: Path, write_into: Callable[[Any], None]) -> None:
    """With sizes that follow the members, and ZIP64 fields."""
    if shutil.which("zip") is None:
        pytest.skip("there is no zip")
    write_into(str(scratch / "stored"))
    with path.open("wb") as file:
        subprocess.run(["zip", "-qr", "-", "."], cwd=scratch / "stored", check=True, stdout=file)


WRITERS = {
    "zarr, stored": by_zarr(zipfile.ZIP_STORED),
    "zarr, deflated": by_zarr(zipfile.ZIP_DEFLATED),
    "zipfile": by_zipfile,
    "zip": by_program("zip", "-qr"),
    "zip, stored": by_program("zip", "-qr0"),
    "zip, ZIP64": by_program("zip", "-qr", "-fz"),
    "zip, through a pipe": through_a_pipe,
    "7z": by_program("7z", "a", "-tzip"),
}


async def keys_of(store: ZipStore) -> dict[str, bytes]:
    prototype, found = default_buffer_prototype(), {}
    async for key in store.list():
        data = await store.get(key, prototype)
        if data is not None and not key.endswith("/"):
            found[key] = data.to_bytes()
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("writer", WRITERS)
def test_keys_and_values_are_those_that_zarr_reads(tmp_path: Path, writer: str, seed: int) -> None:
    chance = random.Random(f"{writer} {seed}")
    zarr_format: Any = chance.choice([2, 3])
    path, scratch = tmp_path / "data.zarr.zip", tmp_path / "scratch"
    scratch.mkdir()

    def write_into(store: Any) -> None:
        fill(zarr.create_group(store, zarr_format=zarr_format), chance, zarr_format)
        if chance.random() < 0.5:
            zarr.consolidate_metadata(store, zarr_format=zarr_format)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        WRITERS[writer](path, scratch, write_into)
    with ZipStore(path, mode="r") as store:
        assert trio.run(all_of, path) == asyncio.run(keys_of(store))
    with ZipStore(path, mode="r") as store, shardfs.open(path) as dataset:
        theirs, ours = zarr.open_group(store, mode="r"), zarr.open_group(dataset.store(), mode="r")
        assert dict(ours.attrs) == dict(theirs.attrs)
        members = dict(theirs.members(max_depth=None))
        assert {name for name, _ in ours.members(max_depth=None)} == members.keys()
        for name, node in members.items():
            mine = ours[name]
            assert dict(mine.attrs) == dict(node.attrs)
            if isinstance(node, zarr.Array) and isinstance(mine, zarr.Array):
                assert (mine.dtype, mine.chunks, mine.fill_value) == (node.dtype, node.chunks, node.fill_value)
                np.testing.assert_array_equal(mine[...], node[...])
    assert run_json("verify", "--json", "--data", path)["sound"] is True
    assert run("pack", path, tmp_path / "packed").returncode == 0
    assert run("verify", path, tmp_path / "packed").returncode == 0
    with ZipStore(path, mode="r") as store:
        packed = zarr.open_group(tmp_path / "packed", mode="r")
        for name, node in zarr.open_group(store, mode="r").members(max_depth=None):
            if isinstance(node, zarr.Array):
                copy = packed[name]
                assert isinstance(copy, zarr.Array)
                np.testing.assert_array_equal(copy[...], node[...])
