"""Any number of processes write into one array by stores, mounts, a server and tensorstore, and nothing is lost."""

import copy
import errno
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import dask.array
import numpy as np
import pytest
import xarray
import zarr
from distributed import Client, LocalCluster
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import shardfs
from shardfs import errors
from shardfs.api.dataset import Dataset
from tests.interop.writers import CELLS, CHUNKS, SHAPE, SHARDS, VALUES, make_image, write_cell
from tests.support.clusters import local_cluster
from tests.support.commands import running_program
from tests.support.mounting import PATIENCE, Mounter, environment, flush, refuses
from tests.support.readers import READERS, assert_same
from tests.support.s3_server import Bucket, S3Server, credentials
from tests.support.serving import served
from tests.support.writers import open_tensorstore


@dataclass(frozen=True)
class Place:
    """Where a dataset is; *bucket* is None for a directory."""

    url: str
    bucket: Bucket | None
    scratch: Path

    def stored(self) -> Path:
        """A directory with what is stored."""
        return Path(self.url) if self.bucket is None else self.bucket.download(self.scratch / "downloaded")

    def has(self, path: str, expected: np.ndarray) -> None:
        """Native readers find these values, and nothing waits for a commit."""
        stored = self.stored()
        for read in READERS.values():
            assert_same(read(stored / path), expected)
        with shardfs.open(self.url) as dataset:
            for shard in dataset[path].shards():
                assert shard["error"] is None
        assert [file for file in stored.rglob("*") if file.suffix in (".journal", ".__lock")] == []


@pytest.fixture(params=["directory", "s3"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> Place:
    """Where there is nothing yet; processes of a test reach it without options."""
    if request.param == "directory":
        (tmp_path / "data.zarr").mkdir()
        return Place(str(tmp_path / "data.zarr"), None, tmp_path)
    bucket = s3_server.make_bucket()
    variables = credentials() | {"AWS_ENDPOINT_URL": bucket.endpoint_url, "XDG_STATE_HOME": str(tmp_path / "state")}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return Place(bucket.url(), bucket, tmp_path)


only_directory = pytest.mark.parametrize("place", ["directory"], indirect=True)


@contextmanager
def opened(place: Place, shards: Sequence[int] = SHARDS) -> Iterator[Dataset]:
    """A dataset whose new arrays get shards."""
    with shardfs.open(place.url, write=True, shards=tuple(shards)) as dataset:
        yield dataset


@pytest.fixture(scope="module")
def cluster(s3_server: S3Server) -> Iterator[LocalCluster]:
    """Worker processes of Dask, which reach buckets without options."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (credentials() | {"AWS_ENDPOINT_URL": s3_server.endpoint_url}).items():
            patch.setenv(name, value)
        with local_cluster(3, 2) as cluster:
            yield cluster


def test_workers_of_dask_store_an_array_whose_chunks_share_shards(place: Place, cluster: LocalCluster) -> None:
    with opened(place) as dataset, Client(cluster):
        image = make_image(dataset)
        values = dask.array.arange(100**3, chunks=25**3).reshape(SHAPE).rechunk(CHUNKS)
        dask.array.store(values, image, lock=False)
    place.has("image", VALUES)


def test_workers_write_an_xarray_whose_chunks_are_smaller_than_shards(place: Place, cluster: LocalCluster) -> None:
    values = np.arange(64 * 64.0).reshape(64, 64)
    data = xarray.Dataset({"height": (("y", "x"), values)}).chunk({"y": 8, "x": 16})
    with opened(place, (4, 4)) as dataset, Client(cluster):
        data.to_zarr(dataset.store(), zarr_format=3, consolidated=False)
    place.has("height", values)
    with opened(place) as dataset, Client(cluster):
        part = (-data).isel(y=slice(8, 32))
        part.to_zarr(dataset.store(), region={"y": slice(8, 32)}, consolidated=False)
    values[8:32] *= -1
    place.has("height", values)


WRITES = """
import sys
import shardfs, zarr
from tests.interop.writers import CELLS, VALUES
with shardfs.open(sys.argv[1], write=True) as dataset:
    array = zarr.open_array(dataset.store("image"), mode="r+")
    for number, cell in enumerate(CELLS[int(sys.argv[2]) :: 4]):
        array[cell] = VALUES[cell]
        print(number, flush=True)
        sys.stdin.readline()
"""


def test_who_is_killed_among_four_processes_loses_nothing_that_was_written(place: Place) -> None:
    with opened(place) as dataset:
        make_image(dataset)
    with ExitStack() as stack:
        processes = [stack.enter_context(running_program(WRITES, place.url, str(number))) for number in range(4)]
        for turn in range(16):
            for number, process in enumerate(processes):
                if number > 0 or turn <= 6:
                    assert process.stdout is not None
                    assert process.stdout.readline() == b"%d\n" % turn
            if turn == 6:
                processes[0].kill()
                processes[0].wait(PATIENCE)
            for number, process in enumerate(processes):
                if number > 0 or turn < 6:
                    assert process.stdin is not None
                    process.stdin.write(b"\n")
                    process.stdin.flush()
        for process in processes[1:]:
            assert process.wait(PATIENCE) == 0
    with opened(place):
        pass
    expected = VALUES.copy()
    for cell in CELLS[0::4][7:]:
        expected[cell] = 0
    place.has("image", expected)


@only_directory
def test_mounts_a_store_a_server_and_tensorstore_write_into_the_same_shards(place: Place, mount: Mounter) -> None:
    source, nchunks, length, nturns = Path(place.url), 20, 5_000, 4
    with opened(place, (10,)) as dataset:
        zarr.create_array(dataset.store(), shape=(nchunks * length,), chunks=(length,), dtype="i4", compressors=None)
    mounts = [mount(source, write=True) for _ in range(2)]
    native = open_tensorstore(source)
    with opened(place) as dataset, served(source, write=True) as site:
        image = zarr.open_array(dataset.store(), mode="r+")

        def by_store(cell: slice, _: int, data: np.ndarray) -> None:
            image[cell] = data

        def by_server(_: slice, number: int, data: np.ndarray) -> None:
            assert site.ask(f"/c/{number}", "PUT", data.tobytes()).status in (201, 204)

        def by_tensorstore(cell: slice, _: int, data: np.ndarray) -> None:
            native[cell].write(data).result()

        def by_mount(_: slice, number: int, data: np.ndarray) -> None:
            (mounts[number % 5].path / f"c/{number}").write_bytes(data.tobytes())

        ways = [by_mount, by_mount, by_store, by_server, by_tensorstore]

        def work(who: int) -> None:
            for turn in range(1, nturns + 1):
                for number in range(who, nchunks, len(ways)):
                    data = np.full(length, 100 * turn + number, "i4")
                    ways[who](slice(number * length, (number + 1) * length), number, data)
                if who < 2 and turn % 2:
                    flush(mounts[who].path)

        with ThreadPoolExecutor(len(ways)) as threads:
            list(threads.map(work, range(len(ways))))
    for mounted in mounts:
        mounted.unmount()
    place.has("", np.repeat(100 * nturns + np.arange(nchunks, dtype="i4"), length))


@only_directory
def test_the_end_of_a_session_commits_what_all_sessions_published(place: Place, mount: Mounter) -> None:
    with opened(place) as dataset:
        make_image(dataset)
    mounts = [mount(place.url, write=True) for _ in range(2)]
    expected = np.zeros_like(VALUES)
    for number, mounted in enumerate(mounts):
        image = zarr.open_array(mounted.path / "image", mode="r+")
        image[CELLS[number]] = expected[CELLS[number]] = VALUES[CELLS[number]]
    with opened(place) as dataset:
        zarr.open_array(dataset.store("image"), mode="r+")[CELLS[2]] = VALUES[CELLS[2]]
        expected[CELLS[2]] = VALUES[CELLS[2]]
    for read in READERS.values():
        assert_same(read(Path(place.url) / "image"), expected)


@only_directory
def test_the_second_of_two_edits_of_one_document_is_stale(place: Place, mount: Mounter) -> None:
    with opened(place) as dataset:
        make_image(dataset)
    first, second = (mount(place.url, write=True, metadata_ttl=0) for _ in range(2))
    texts = [(mounted.path / "image/zarr.json").read_text() for mounted in (first, second)]
    (first.path / "image/zarr.json").write_text(texts[0].replace('"attributes": {', '"attributes": {"by": "first"'))
    with refuses(errno.ESTALE):
        (second.path / "image/zarr.json").write_text(
            texts[1].replace('"attributes": {', '"attributes": {"by": "second"')
        )
    assert '"first"' in (second.path / "image/zarr.json").read_text()
    text = (second.path / "image/zarr.json").read_text().replace('"first"', '"second"')
    (second.path / "image/zarr.json").write_text(text)
    assert '"second"' in (Path(place.url) / "image/zarr.json").read_text()


def test_the_second_of_two_edits_of_attributes_by_stores_is_stale(place: Place) -> None:
    with opened(place) as dataset:
        make_image(dataset)
    with shardfs.open(place.url, write=True) as first, shardfs.open(place.url, write=True) as second:
        images = [zarr.open_array(dataset.store("image"), mode="r+") for dataset in (first, second)]
        images[0].attrs["by"] = "first"
        with pytest.raises(errors.StaleError):
            images[1].attrs["by"] = "second"
    assert dict(zarr.open_array(place.stored() / "image").attrs) == {"by": "first"}


@contextmanager
def refused() -> Iterator[None]:
    with pytest.raises(errors.StaleError, match=r"image was replaced by an array .* read its zarr.json again"):
        yield


def test_chunks_of_an_array_that_another_replaced_are_refused_until_it_is_read(place: Place) -> None:
    kept = np.ones((8, 8), "f8")
    with opened(place, (2, 2)) as first, shardfs.open(place.url, write=True, metadata_ttl=0) as second:
        group = zarr.create_group(first.store())
        group.create_array("image", shape=(8, 8), chunks=(4, 4), dtype="i4")[...] = 3
        old = zarr.open_array(second.store("image"), mode="r+")
        old[:4, :4] = 4
        second.flush()
        group.create_array("image", shape=(8, 8), chunks=(4, 4), dtype="f8", overwrite=True)[...] = kept
        with refused():
            old[:4, :4] = 5
        first.flush()
        with refused():
            old[:4, :4] = 0  # which removes the chunk
        zarr.open_group(second.store())  # it says nothing of the array
        with refused():
            old[:4, :4] = 5
        image = zarr.open_array(second.store("image"), mode="r+")
        assert_same(image[...], kept)
        image[:4] = 2
    kept[:4] = 2
    place.has("image", kept)


def test_an_array_that_was_read_is_known_again_by_consolidated_metadata(place: Place) -> None:
    with opened(place, (2, 2)) as first, shardfs.open(place.url, write=True, metadata_ttl=0) as second:
        group = zarr.create_group(first.store())

        def make(dtype: str) -> None:
            group.create_array("image", shape=(8, 8), chunks=(4, 4), dtype=dtype, overwrite=True)
            zarr.consolidate_metadata(first.store(), zarr_format=3)

        def read() -> Any:
            return zarr.open_group(second.store(), mode="r+", use_consolidated=True)["image"]

        make("i4")
        zarr.open_array(second.store("image"))
        old = read()
        make("i2")
        with refused():
            old[:4, :4] = 5  # of several, zarr-python goes on with the others when one is refused
        read()
        make("f8")
        new = read()  # without having tried to write before
        new[...] = 6
    place.has("image", np.full((8, 8), 6, "f8"))


@only_directory
def test_who_does_not_see_yet_that_an_array_was_made_replaces_none_of_its_shards(place: Place) -> None:
    chunk = default_buffer_prototype().buffer.from_bytes(np.full((4, 4), 7, "i4").tobytes())
    with opened(place, (2, 2)) as first, shardfs.open(place.url, write=True, metadata_ttl=600) as second:
        group = zarr.create_group(first.store())
        for key in ("c/1/0", "c/1/1"):
            sync(second.store("image").set(key, chunk))  # a file, as there is no array
        image = group.create_array("image", shape=(16, 16), chunks=(4, 4), dtype="i4", compressors=None)
        image[...] = 6
        first.flush()
        for key in ("c/1/0", "c/1/1"):  # which are names of shards, too
            with suppress(errors.StaleError):  # or it is a chunk
                sync(second.store("image").set(key, chunk))
    written = zarr.open_array(place.stored() / "image")[...]
    assert set(written[4:8, :8].flat) <= {6, 7}
    written[4:8, :8] = 6
    assert (written == 6).all()


@only_directory
def test_who_does_not_see_yet_that_an_array_was_made_removes_none_of_its_shards(place: Place, mount: Mounter) -> None:
    chunk = default_buffer_prototype().buffer.from_bytes(np.full((4, 4), 7, "i4").tobytes())
    late = mount(place.url, write=True, metadata_ttl=600)
    with opened(place, (2, 2)) as first, shardfs.open(place.url, write=True, metadata_ttl=600) as second:
        group = zarr.create_group(first.store())
        sync(second.store("image").set("c/1/0", chunk))  # a file, as there is no array
        assert (late.path / "image/c/1/0").read_bytes() == chunk.to_bytes()
        group.create_array("image", shape=(16, 16), chunks=(4, 4), dtype="i4", compressors=None)[...] = 6
        first.flush()
        with suppress(errors.StaleError):  # or the chunk is removed
            sync(second.store("image").delete("c/1/0"))
        with suppress(OSError):  # or the chunk gets another name
            os.rename(late.path / "image/c/1/0", late.path / "image/c/other")
    written = zarr.open_array(place.stored() / "image")[...]
    assert set(written[4:8, :4].flat) <= {0, 6}
    written[4:8, :4] = 6
    assert (written == 6).all()


@only_directory
def test_a_chunk_that_came_before_its_array_replaces_none_that_another_session_wrote_later(place: Place) -> None:
    with opened(place, (2, 2)) as first, shardfs.open(place.url, write=True, metadata_ttl=0) as second:
        group = zarr.create_group(first.store())
        group.create_array("image", shape=(8, 8), chunks=(4, 4), dtype="i4")[...] = 3
        first.flush()
        old = zarr.open_array(second.store("image"), mode="r+")
        sync(first.store().delete_dir("image"))
        old[:4, :4] = 4  # a file, as there is no array
        group.create_array("image", shape=(8, 8), chunks=(4, 4), dtype="i4")
        old[:4, :4] = 5
        second.flush()
    assert (zarr.open_array(place.stored() / "image")[:4, :4] == 5).all()


def test_another_shape_and_other_attributes_of_an_array_do_not_keep_others_from_writing_chunks(place: Place) -> None:
    with opened(place, (2, 2)) as first, shardfs.open(place.url, write=True, metadata_ttl=0) as second:
        image = zarr.create_array(first.store("image"), shape=(8, 8), chunks=(4, 4), dtype="i4")
        old = zarr.open_array(second.store("image"), mode="r+")
        image.resize((16, 8))
        image.attrs["by"] = "first"
        old[:4, :4] = 5
    assert (zarr.open_array(place.stored() / "image")[:4, :4] == 5).all()


@only_directory
def test_one_of_two_mounts_creates_a_document_exclusively(place: Place, mount: Mounter) -> None:
    with opened(place) as dataset:
        zarr.create_group(dataset.store())
    mounts = [mount(place.url, write=True) for _ in range(2)]
    text = b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'
    for number in range(4):
        names = [mounted.path / f"group-{number}" for mounted in mounts]
        assert not any(name.exists() for name in names)

        def create(name: Path) -> bool:
            try:
                name.mkdir(exist_ok=True)
                with (name / "zarr.json").open("xb") as file:
                    file.write(text)
            except FileExistsError:
                return False
            return True

        with ThreadPoolExecutor(2) as threads:
            assert sorted(threads.map(create, names)) == [False, True]


SENT = """
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
import shardfs
from tests.interop.writers import CELLS, SHARDS, VALUES, make_image, write_cell

if __name__ == "__main__":
    with shardfs.open(sys.argv[1], write=True, shards=SHARDS) as dataset:
        make_image(dataset)
        store = dataset.store("image")
        with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context(sys.argv[2])) as pool:
            writers = set(pool.map(write_cell, [store] * len(CELLS), CELLS, [VALUES[cell] for cell in CELLS]))
        assert os.getpid() not in writers
"""


@pytest.mark.parametrize(
    ("place", "method"), [("directory", "fork"), ("directory", "spawn"), ("s3", "fork")], indirect=["place"]
)
def test_processes_write_by_a_store_that_was_sent_to_them(place: Place, method: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SENT)
    command = [sys.executable, "-P", "-W", "ignore", str(program), place.url, method]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=4 * PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    place.has("image", VALUES)


def test_joblib_writes_by_a_store(place: Place) -> None:
    joblib = pytest.importorskip("joblib")
    with opened(place) as dataset:
        make_image(dataset)
        tasks = [joblib.delayed(write_cell)(dataset.store("image"), cell, VALUES[cell]) for cell in CELLS]
        joblib.Parallel(n_jobs=2)(tasks)
    place.has("image", VALUES)  # while the processes of joblib wait for more to do
    joblib.externals.loky.get_reusable_executor().shutdown()


@pytest.fixture
def cubed() -> Iterator[Any]:
    """The library; what it sets for all users of zarr-python when it is imported ends with the test."""
    before = copy.deepcopy(zarr.config.config)
    yield pytest.importorskip("cubed")
    zarr.config.config.clear()
    zarr.config.config.update(before)


@only_directory
def test_cubed_writes_by_a_store(cubed: Any, place: Place, tmp_path: Path) -> None:
    spec = cubed.Spec(work_dir=str(tmp_path / "work"), allowed_mem="500MB", executor_name="processes")
    with opened(place) as dataset:
        make_image(dataset)
        values = cubed.from_array(VALUES, chunks=CHUNKS, spec=spec)
        cubed.to_zarr(values, dataset.store(), path="image")
    place.has("image", VALUES)
