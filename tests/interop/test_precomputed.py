"""Sharded volumes of neuroglancer: what cloud-volume and tensorstore write is read through a mount by both."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.clients import CLOUD_VOLUME
from tests.support.commands import run
from tests.support.datasets import files_below
from tests.support.mounting import Mounter
from tests.support.precomputed import KEY, info, names_in, read_volume, scale, sharding, write_volume

SIZE, HALF, CHUNK = (70, 50, 40), (35, 25, 20), (16, 16, 16)
BLOCK = {"compressed_segmentation_block_size": [8, 8, 8]}
ENCODINGS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "raw": ("float32", 2, {}),
    "jpeg": ("uint8", 3, {"jpeg_quality": 90}),
    "png": ("uint8", 1, {}),
    "compressed_segmentation": ("uint64", 1, BLOCK),
}
SPECIFICATIONS = [
    sharding(3, "identity", 2, 2, "gzip", "gzip"),
    sharding(0, "murmurhash3_x86_128", 3, 3, "raw", "gzip"),
    sharding(1, "murmurhash3_x86_128", 0, 0, "gzip", "raw"),
    sharding(9, "identity", 6, 15, "raw", "raw"),
]


def volume(encoding: str, specification: dict[str, Any]) -> dict[str, Any]:
    data_type, nchannels, members = ENCODINGS[encoding]
    members = {"encoding": encoding, **members}
    return info(
        scale(SIZE, CHUNK, specification, voxel_offset=[100, -8, 3], **members),
        scale(HALF, CHUNK, specification, key="16_16_80", resolution=[16, 16, 80], **members),
        data_type=data_type,
        num_channels=nchannels,
        type="segmentation" if encoding == "compressed_segmentation" else "image",
    )


def values_of(document: dict[str, Any], index: int) -> np.ndarray:
    """Smooth values, as of a picture, none of which is zero."""
    size = document["scales"][index]["size"]
    x, y, z, channel = np.indices([*size, document["num_channels"]])
    return np.asarray(x // 4 + y // 4 + z // 4 + 10 * channel + 1).astype(document["data_type"])


CASES = [
    (encoding, each) for at, each in enumerate(SPECIFICATIONS) for encoding in dict.fromkeys(["raw", [*ENCODINGS][at]])
]
"""Raw chunks in shards of all kinds, and each other encoding in shards of one."""

every_case = pytest.mark.parametrize(
    ("encoding", "specification"), CASES, ids=[f"{case[0]} {SPECIFICATIONS.index(case[1])}" for case in CASES]
)


READ = """
import sys, numpy
from cloudvolume import CloudVolume
found, root, native = sys.argv[1:]
volumes = [CloudVolume(f"precomputed://file://{root}", mip=mip, progress=False) for mip in (0, 1)]
assert all(volume.info["scales"][0].get("sharding") is None for volume in volumes)
natively = [CloudVolume(f"precomputed://file://{native}", mip=mip, progress=False) for mip in (0, 1)]
assert all(numpy.array_equal(one[:], other[:]) for one, other in zip(volumes, natively))
numpy.savez(found, **{f"mip{volume.mip}": numpy.asarray(volume[:]) for volume in volumes})
"""


@every_case
def test_a_volume_of_tensorstore_is_read_as_an_unsharded_one(
    mount: Mounter, tmp_path: Path, encoding: str, specification: dict[str, Any]
) -> None:
    document = volume(encoding, specification)
    write_volume(tmp_path / "source", document, [values_of(document, index) for index in (0, 1)])
    root = mount(tmp_path / "source").path
    found = CLOUD_VOLUME.arrays(READ, tmp_path, root, tmp_path / "source")
    for index in (0, 1):
        native = read_volume(tmp_path / "source", index)
        assert np.array_equal(read_volume(root, index), native)
        if encoding != "jpeg":  # of which each library has its own idea
            assert np.array_equal(found[f"mip{index}"], native)
            assert np.array_equal(native, values_of(document, index))


WRITE = """
import json, os, sys, numpy
from cloudvolume import chunks
from cloudvolume.datasource.precomputed.common import compressed_morton_code
from cloudvolume.datasource.precomputed.sharding import ShardingSpecification
directory, values = sys.argv[1:]
document = json.load(open(os.path.join(directory, "info")))
values = numpy.load(values)
scale = document["scales"][0]
size, edges = numpy.array(scale["size"]), numpy.array(scale["chunk_sizes"][0])
grid = -(-size // edges)
specification = ShardingSpecification.from_dict(scale["sharding"])
labels = {}
for position in numpy.ndindex(*grid):
    start = edges * position
    box = tuple(slice(a, b) for a, b in zip(start, numpy.minimum(start + edges, size)))
    block = scale.get("compressed_segmentation_block_size")
    data = chunks.encode(numpy.asfortranarray(values[box]), scale["encoding"], block_size=block)
    labels[int(compressed_morton_code(numpy.array(position), grid))] = data
os.makedirs(os.path.join(directory, scale["key"]))
for name, data in specification.synthesize_shards(labels).items():
    with open(os.path.join(directory, scale["key"], name), "wb") as file:
        file.write(data)
"""


@every_case
def test_a_volume_of_cloud_volume_is_read_as_an_unsharded_one(
    mount: Mounter, tmp_path: Path, encoding: str, specification: dict[str, Any]
) -> None:
    document = volume(encoding, specification)
    del document["scales"][1]
    values, source = values_of(document, 0), tmp_path / "source"
    source.mkdir()
    (source / "info").write_text(json.dumps(document))
    np.save(tmp_path / "values.npy", values)
    CLOUD_VOLUME.run(WRITE, source, tmp_path / "values.npy")
    root = mount(source).path
    assert {path.name for path in (root / KEY).iterdir()} == set(names_in(document))
    native = read_volume(source)
    assert np.array_equal(read_volume(root), native)
    if encoding != "jpeg":
        assert np.array_equal(native, values)


def test_what_is_unpacked_is_what_the_mount_shows(mount: Mounter, tmp_path: Path) -> None:
    document = volume("png", SPECIFICATIONS[0])
    write_volume(tmp_path / "source", document, [values_of(document, index) for index in (0, 1)])
    root = mount(tmp_path / "source").path
    assert run("unpack", tmp_path / "source", tmp_path / "unpacked").returncode == 0
    assert files_below(tmp_path / "unpacked") == files_below(root)
