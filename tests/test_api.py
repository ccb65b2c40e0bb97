"""`shardfs.open`: metadata and inner chunks without FUSE; `shardfs.mount`: a mount for the length of a block."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr

import shardfs
from shardfs import errors
from tests.support.changing import ChangingArray
from tests.support.corpus import CASES, GZIP, LITTLE, array, write_case
from tests.support.daemons import end_mounts_below
from tests.support.damage import ENTRY_FAULTS, SHARD, SHARD_FAULTS, document, edit
from tests.support.datasets import files_below, store
from tests.support.mounting import environment, mount_points, skip_without_fuse
from tests.support.processes import interrupted
from tests.support.s3_faults import Hang
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket

pytestmark = pytest.mark.slow


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    store(tmp_path / "data set/image", document(LITTLE, GZIP))
    store(tmp_path / "data set/group/plain", array((4, 6), (2, 3), LITTLE))
    for name in ("", "group"):
        (tmp_path / "data set" / name / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    return tmp_path / "data set"


@pytest.mark.slow
def test_every_inner_chunk_of_the_corpus_is_read(tmp_path: Path) -> None:
    encoded = {case.name: write_case(case, tmp_path / case.name) for case in CASES}
    opened = shardfs.open(tmp_path)
    for case in CASES:
        node = opened[case.name]
        inner_shape = node.metadata["chunk_grid"]["configuration"]["chunk_shape"]
        grid = [-(-length // inner) for length, inner in zip(case.document["shape"], inner_shape, strict=True)]
        read = {coords: node.read_chunk(coords) for coords in np.ndindex(*grid)}
        assert {coords: data for coords, data in read.items() if data is not None} == encoded[case.name].inner


def test_missing_nodes_are_not_found_and_no_path_leads_out_of_the_source(dataset: Path) -> None:
    opened = shardfs.open(dataset)
    for path in ("nowhere", "image/c", "image/zarr.json", "group/plain/c/0", "a\0b", "x" * 300):
        with pytest.raises(errors.NotFoundError):
            opened[path]
    with pytest.raises(errors.NotFoundError, match=r"there is no array or group imag in .*; did you mean image\?"):
        opened["imag"]
    for path in ("", "group/plain"):
        with pytest.raises(errors.NotUnshardable):
            opened[path].read_chunk((0, 0))
    for path in ("..", "../data set", "group/../../data set/image"):
        with pytest.raises(errors.ShardfsError):
            opened[path]


def test_an_array_is_indexed_as_zarr_python_does_and_a_group_by_names(dataset: Path) -> None:
    stored = np.asarray(zarr.open_array(dataset / "image", mode="r")[...])
    with shardfs.open(dataset) as opened:
        assert opened["image"][3, 4] == stored[3, 4]
        assert np.array_equal(opened["image"][...], stored)
        assert np.array_equal(opened["image"][1:3, ::2], stored[1:3, ::2])
        assert opened["group"]["plain"].path == "group/plain"
        with pytest.raises(TypeError, match="is a group"):
            opened["group"][0, 0]
        with pytest.raises(TypeError):
            iter(opened["image"])


def test_coordinates_outside_the_grid_are_an_index_error(dataset: Path) -> None:
    image = shardfs.open(dataset)["image"]
    for coords in [(2, 0), (0, 4), (-1, 0), (0,), (0, 0, 0), ()]:
        with pytest.raises(IndexError, match="not in the grid"):
            image.read_chunk(coords)
    for odd in [(0.5, 0), ("0", 0), None, 0]:
        with pytest.raises((TypeError, IndexError)):
            image.read_chunk(odd)  # type: ignore[arg-type]
    assert image.read_chunk(np.array([1, 3])) == image.read_chunk([1, 3]) == image.read_chunk((1, 3))


@pytest.mark.parametrize("fault", SHARD_FAULTS | ENTRY_FAULTS)
def test_damage_is_a_corruption_error_for_what_it_touches(tmp_path: Path, fault: str) -> None:
    chunks = store(tmp_path, document())
    edit(tmp_path / SHARD, (SHARD_FAULTS | ENTRY_FAULTS)[fault])
    image = shardfs.open(tmp_path)[""]
    with pytest.raises(errors.CorruptionError):
        image.read_chunk((0, 1))
    assert image.read_chunk((0, 2)) == chunks["c/0/2"]
    if fault in ENTRY_FAULTS:
        assert image.read_chunk((0, 0)) == chunks["c/0/0"]


def test_a_replaced_shard_is_seen_at_the_next_read_and_a_replaced_document_after_the_ttl(tmp_path: Path) -> None:
    changing = ChangingArray(tmp_path / "array")
    opened = shardfs.open(tmp_path, metadata_ttl=0)
    node = opened["array"]
    slow = shardfs.open(tmp_path, metadata_ttl=3600)["array"]
    for number in (1, 2, 3):
        changing.replace("c/0/0", number)
        expected = changing.chunks(number)["c/0/0"]
        assert node.read_chunk((0, 0)) == slow.read_chunk((0, 0)) == expected
    changing.overwrite("c/0/0", 4)
    assert node.read_chunk((0, 0)) == changing.chunks(4)["c/0/0"]
    changing.document["attributes"] = {"changed": True}
    changing.replace_document()
    assert opened["array"].metadata["attributes"] == {"changed": True}


@pytest.mark.slow
def test_a_read_that_is_interrupted_keeps_no_connection_and_the_next_one_gets_its_answer(
    dataset: Path, s3_bucket: Bucket, s3_proxy: S3Proxy
) -> None:
    s3_bucket.upload(dataset, "data")
    reach = shardfs.StoreOptions(endpoint_url=s3_proxy.url, max_connections=1)
    with shardfs.open(s3_bucket.url("data"), store_options=reach) as opened:
        image, hang = opened["image"], Hang()
        rule = s3_proxy.fail("GetObject", hang)
        with interrupted(rule.wait):
            image.read_chunk((0, 0))
        hang.release()
        assert image.read_chunk((0, 0)) == shardfs.open(dataset)["image"].read_chunk((0, 0))


def test_a_dataset_that_is_closed_says_so(dataset: Path) -> None:
    with shardfs.open(dataset) as opened:
        image = opened["image"]
    for use in (lambda: list(opened), lambda: opened["image"], lambda: image.read_chunk((0, 0))):
        with pytest.raises(errors.ClosedError, match="data set is closed: open it again"):
            use()


@pytest.fixture
def no_mount_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    skip_without_fuse()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    end_mounts_below(tmp_path)


@pytest.mark.usefixtures("no_mount_left")
def test_a_mount_ends_with_the_exception_that_leaves_its_block(dataset: Path) -> None:
    with pytest.raises(KeyError, match="mine"), shardfs.mount(str(dataset)) as path:
        raise KeyError("mine")
    assert str(path) not in mount_points()
    assert not path.exists()


@pytest.mark.usefixtures("no_mount_left")
def test_a_mount_lasts_from_one_cell_of_a_notebook_to_another(dataset: Path) -> None:
    mounted = shardfs.mount(dataset, write=True)
    (mounted.path / "image/c/0/1").write_bytes(b"new")
    mounted.flush()
    assert shardfs.open(dataset)["image"].read_chunk((0, 1)) == b"new"
    assert Path(mounted) == mounted.path
    mounted.unmount()
    mounted.unmount()
    assert str(mounted.path) not in mount_points()
    assert not mounted.path.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("no_mount_left")
def test_a_mount_that_is_not_unmounted_ends_with_its_process(dataset: Path) -> None:
    code = "import shardfs, sys; m = shardfs.mount(sys.argv[1], write=True); (m.path / 'image/c/0/1').write_bytes(b'x')"
    done = subprocess.run([sys.executable, "-P", "-c", code, dataset], env=environment(), capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert shardfs.open(dataset)["image"].read_chunk((0, 1)) == b"x"


@pytest.mark.usefixtures("no_mount_left")
def test_failures_to_mount_are_errors_of_shardfs(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(errors.SourceError, match="does not exist"), shardfs.mount(tmp_path / "nowhere"):
        pass
    with pytest.raises(errors.MountPointError, match="mkdir -p"), shardfs.mount(dataset, tmp_path / "nowhere"):
        pass
    with (
        pytest.raises(errors.MountPointError, match="lies inside the source"),
        shardfs.mount(dataset, dataset / "image"),
    ):
        pass
    with pytest.raises(errors.ShardfsError, match="nonsense"):
        shardfs.mount(dataset, fuse_options=("nonsense",))
    assert not [path for path in mount_points() if path.startswith(str(tmp_path))]


@pytest.mark.usefixtures("no_mount_left")
def test_a_block_that_leaves_a_file_open_raises_and_deletes_nothing(dataset: Path) -> None:
    before = files_below(dataset)
    with pytest.raises(errors.MountPointError, match="busy"), shardfs.mount(dataset) as path:
        file = open(path / "image/c/0/0", "rb")  # noqa: SIM115
    with file:
        assert file.read() == shardfs.open(dataset)["image"].read_chunk((0, 0))
    assert files_below(dataset) == before


@pytest.mark.slow
@pytest.mark.usefixtures("no_mount_left")
def test_values_that_commands_refuse_are_refused(dataset: Path, tmp_path: Path) -> None:
    for options in ({"metadata_ttl": -1}, {"view": "v4"}, {"shards": (2,)}, {"view": "npy", "write": True}):
        for opening in (shardfs.open, shardfs.mount):
            with pytest.raises(errors.UsageError):
                opening(dataset, **options)
    for mounting in ({"write": True, "auto_compact": 7.0}, {"fuse_options": ("ro", "rw")}):
        with pytest.raises(errors.UsageError, match=r"auto-compact|-o ro"):
            shardfs.mount(dataset, **mounting)
    for wrong in ({"shard_size": -1}, {"index_location": "mid"}):
        with pytest.raises(errors.UsageError):
            shardfs.pack(dataset, tmp_path / "packed", **wrong)
    assert not (tmp_path / "packed").exists()
