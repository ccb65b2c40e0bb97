"""Sources on a web server in other formats than Zarr v3: found by their documents, with few requests."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import zarr

from shardfs.dataset.hierarchy import open_source
from shardfs.errors import NotFoundError, UnsupportedError
from shardfs.stores.url import StoreOptions
from shardfs.vfs.options import TreeOptions
from shardfs.vfs.paths import Paths, open_paths
from tests.support.b2nd import Geometry, write_b2nd
from tests.support.commands import one_line_of, run, run_json
from tests.support.datasets import files_below
from tests.support.mounting import Mounter
from tests.support.opened import in_trio
from tests.support.precomputed import KEY, info, read_volume, scale, sharding, write_volume
from tests.support.references import write_document, write_records
from tests.support.serving import served
from tests.support.web_server import Web, web_server
from tests.support.wkw import LZ4, RAW, layer, write_properties, write_wkw

SIZE, CHUNK = (40, 40, 40), (10, 10, 10)
pytestmark = pytest.mark.slow

HALF = "16_16_40"
VALUES = np.arange(1, 1601, dtype="u2").reshape(40, 40)


def write_precomputed(path: Path) -> None:
    """A volume of two sharded scales, of one chunk in four minishards of four shards."""
    specification = sharding(0, "identity", 2, 2, "gzip", "raw")
    document = info(
        scale(SIZE, CHUNK, specification), scale((20, 20, 20), CHUNK, specification, key=HALF, resolution=[16, 16, 40])
    )
    write_volume(path, document, [np.full((*size, 1), 7, "u2") for size in (SIZE, (20, 20, 20))])


def write_v2(path: Path, *, consolidated: bool) -> None:
    """An image of OME-Zarr 0.4, beside an array in a group that only consolidated metadata name."""
    images = {"multiscales": [{"version": "0.4", "datasets": [{"path": "0"}], "axes": []}]}
    group = zarr.open_group(path, mode="w", zarr_format=2, attributes=images)
    group.create_array(
        "0", shape=VALUES.shape, chunks=(16, 16), dtype="u2", chunk_key_encoding={"name": "v2", "separator": "/"}
    )
    group["0"][...] = VALUES
    group.create_group("more").create_array("beside", shape=(40,), chunks=(16,), dtype="u2")[...] = VALUES[0]
    if consolidated:
        zarr.consolidate_metadata(path, zarr_format=2)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    write_precomputed(tmp_path / "files/volume")
    with web_server(tmp_path / "files") as server:
        yield server


@asynccontextmanager
async def opened(url: str, options: StoreOptions | None = None) -> AsyncIterator[Paths]:
    async with open_source(url, options) as source, open_paths(source, TreeOptions()) as paths:
        yield paths


def asked(web: Web) -> list[tuple[str, str]]:
    """Method and path of the requests since the last call; the name that nothing has is a question mark."""
    return [(method, "?" if "shardfs-" in path else path.removeprefix("/volume/")) for method, path, _ in web.asked()]


@in_trio
async def test_a_volume_is_found_by_its_info_and_a_cold_chunk_takes_three_requests(web: Web) -> None:
    async with opened(f"{web.url}/volume") as paths:
        assert asked(web) == [("GET", "zarr.json"), ("GET", "info"), ("HEAD", "?")]
        assert {one.name for one in await paths.names("")} == {"info", KEY, HALF}
        assert b"sharding" not in bytes(await paths.read("info"))
        assert asked(web) == []
        chunk = bytes(await paths.read(f"{KEY}/0-10_0-10_0-10"))
        assert chunk == np.full(1000, 7, "<u2").tobytes()
        assert asked(web) == [("GET", f"{KEY}/0.shard")] * 3  # its index, the index of a minishard, and the chunk
        assert bytes(await paths.read(f"{KEY}/10-20_0-10_0-10")) == chunk  # id 1, in another minishard
        assert asked(web) == [("GET", f"{KEY}/0.shard")] * 2
        assert bytes(await paths.read(f"{KEY}/0-10_0-10_20-30")) == chunk  # id 32, in the first minishard
        assert asked(web) == [("GET", f"{KEY}/0.shard")]
        with pytest.raises(NotFoundError):
            await paths.read(f"{KEY}/50-60_0-10_0-10")


@in_trio
async def test_of_a_large_shard_each_cold_chunk_takes_no_byte_but_indexes_and_its_own(web: Web) -> None:
    size, chunk = (128, 128, 128), (32, 32, 32)
    document = info(scale(size, chunk, sharding(0, "identity", 2, 0)))
    values = np.random.default_rng(3).integers(1, 2**16, (*size, 1)).astype("u2")
    write_volume(web.root / "large", document, [values])
    shard = (web.root / "large" / KEY / "0.shard").read_bytes()
    table = np.frombuffer(shard, "<u8", 8).reshape(4, 2) + 64
    nbytes = 2 * 32**3
    async with opened(f"{web.url}/large") as paths:
        web.asked()
        expected, known = ["bytes=0-63"], set()
        for x, y in [(3, 1), (0, 2), (1, 3), (2, 0), (0, 1), (0, 0), (1, 2)]:
            name = f"{32 * x}-{32 * x + 32}_{32 * y}-{32 * y + 32}_64-96"
            data = bytes(await paths.read(f"{KEY}/{name}"))
            at = shard.index(data)
            minishard = x % 2 + 2 * (y % 2)
            start, stop = table[minishard].tolist()
            expected += [] if minishard in known else [f"bytes={start}-{stop - 1}"]
            assert [part for _, _, part in web.asked()] == [*expected, f"bytes={at}-{at + nbytes - 1}"]
            expected, known = [], known | {minishard}
        assert len(known) == 4


@in_trio
async def test_a_volume_is_found_where_whatever_does_not_exist_is_refused(web: Web) -> None:
    web.absent = 403
    async with opened(f"{web.url}/volume") as paths:
        assert bytes(await paths.read(f"{KEY}/0-10_0-10_0-10"))
        with pytest.raises(NotFoundError):
            await paths.read("nothing")


@in_trio
async def test_chunks_of_a_volume_are_listed_only_if_each_shard_may_be_asked_for(web: Web) -> None:
    async with opened(f"{web.url}/volume") as paths:
        with pytest.raises(UnsupportedError, match="--assume-complete"):
            await paths.names(HALF)
    async with opened(f"{web.url}/volume", StoreOptions(assume_complete=True)) as paths:
        assert len(await paths.names(HALF)) == 8


@pytest.mark.slow
def test_commands_and_mounts_read_a_volume(web: Web, tmp_path: Path, mount: Mounter) -> None:
    url, complete = f"{web.url}/volume", "--assume-complete"
    assert [one["path"] for one in run_json("info", "--json", url)["arrays"]] == [HALF, KEY]
    assert run_json("verify", "--json", "--data", "--jobs=1", complete, url)["sound"]
    assert run("unpack", "--jobs=1", complete, url, tmp_path / "unpacked").returncode == 0
    native = read_volume(web.root / "volume")
    assert np.array_equal(read_volume(tmp_path / "unpacked"), native)
    assert np.array_equal(read_volume(mount(url).path), native)


@pytest.mark.parametrize("consolidated", [True, False], ids=["consolidated", "not consolidated"])
@in_trio
async def test_zarr_v2_is_found_by_its_documents(web: Web, consolidated: bool) -> None:
    write_v2(web.root / "v2", consolidated=consolidated)
    async with opened(f"{web.url}/v2") as paths:
        first = [path.removeprefix("/v2/") for _, path in asked(web)]
        assert first[:4] == ["zarr.json", "info", ".zmetadata", "?" if consolidated else ".zarray"]
        assert first[4:6] == ([] if consolidated else [".zgroup", ".zattrs"])
        names = {one.name for one in await paths.names("")}
        assert names == ({".zmetadata", "more"} if consolidated else set()) | {".zgroup", ".zattrs", "0"}
        web.asked()
        assert json.loads(bytes(await paths.read("more/beside/.zarray")))["shape"] == [40]
        assert bytes(await paths.read("0/1/2")) == (web.root / "v2/0/1/2").read_bytes()
        paths_asked = [path.removeprefix("/v2/") for _, path in asked(web)]
        files = ["more/beside/.zarray"] * 2 + ["0/1/2"] * 2  # each is looked up, and read
        found = ["more/info", "more/beside/info", "0/info"]  # as they are not nodes of Zarr v3
        if not consolidated:
            files.remove("more/beside/.zarray")
            found += [f"more/{name}" for name in (".zarray", ".zgroup", ".zattrs", "beside/.zattrs")]
            found += ["0/.zarray", "0/.zattrs"]
        looked_at = [".zmetadata"] * 3 if consolidated else [".zgroup"] * 4  # after what is said not to exist
        assert sorted(paths_asked) == sorted(files + found + looked_at)
        with pytest.raises(NotFoundError):
            await paths.read("0/7/7")
        with pytest.raises(UnsupportedError, match="--assume-complete"):
            await paths.names("0/1")


@pytest.mark.slow
@pytest.mark.parametrize("consolidated", [True, False], ids=["consolidated", "not consolidated"])
def test_zarr_v2_is_read_through_a_mount_and_packed(
    web: Web, tmp_path: Path, mount: Mounter, consolidated: bool
) -> None:
    write_v2(web.root / "v2", consolidated=consolidated)
    group = zarr.open_group(mount(f"{web.url}/v2").path, mode="r", zarr_format=2)
    assert np.array_equal(group["0"][...], VALUES)
    assert np.array_equal(group["more/beside"][...], VALUES[0])
    done = run("pack", "--jobs=1", "--assume-complete", f"{web.url}/v2", tmp_path / "packed.zarr")
    assert done.returncode == 0, str(done)
    packed = zarr.open_group(tmp_path / "packed.zarr", mode="r", zarr_format=3)
    assert np.array_equal(packed["0"][...], VALUES)
    assert packed["0"].shards
    assert ("more" in packed) == consolidated


def test_assume_complete_changes_nothing_of_references_and_single_files(web: Web, tmp_path: Path) -> None:
    zarray = {
        "zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "order": "C",
        "fill_value": 0, "compressor": None, "filters": None,
    }  # fmt: skip
    members = {".zgroup": '{"zarr_format": 2}', "a/.zarray": json.dumps(zarray), "a/0": ["a.bin", 3, 2], "a/1": "xy"}
    (web.root / "a.bin").write_bytes(b"abcdefgh")
    write_document(web.root / "refs.json", members)
    write_records(web.root / "refs.parq", {name: value for name, value in members.items() if name != "a/1"})
    write_b2nd(web.root / "image.b2nd", Geometry((20, 7), (10, 4), (5, 2), "i2", {}))
    for name in ("refs.json", "refs.parq", "image.b2nd"):
        url = f"{web.url}/{name}"
        assert run_json("info", "--json", "--assume-complete", url) == run_json("info", "--json", url)
        usual, complete = tmp_path / "usual" / name, tmp_path / "complete" / name
        for directory, words in ((usual, []), (complete, ["--assume-complete"])):
            directory.parent.mkdir(exist_ok=True)
            assert run("unpack", "--jobs=1", *words, url, directory).returncode == 0
        assert files_below(usual) == files_below(complete) != {}
    local = tmp_path / "files/refs.json"
    refused = f"--assume-complete is for https:// and http:// sources, and this is {local}"
    assert one_line_of(run("info", "--assume-complete", local), 2).endswith(refused)


def test_a_source_without_any_document_is_refused_with_the_reason(web: Web) -> None:
    (web.root / "other").mkdir()
    (web.root / "other/info").write_text('{"name": "of something else"}')
    assert "web servers list nothing" in one_line_of(run("info", f"{web.url}/other"), 3)


def write_dataset(path: Path, kind: str = LZ4) -> dict[str, np.ndarray]:
    """A dataset of webKnossos: two magnifications of a layer, files of one of which are missing; returns its values."""
    values = {
        "1": np.random.default_rng(3).integers(1, 5, (2, 37, 20, 18)).astype("u2"),
        "2-2-1": np.random.default_rng(4).integers(1, 5, (2, 19, 10, 18)).astype("u2"),
    }
    for name, one in values.items():
        write_wkw(path / "color" / name, one, kind)
    (path / "color/1/z1/y1/x2.wkw").unlink()
    values["1"][:, 32:, 16:, 16:] = 0
    write_properties(
        path, layer("color", [(0, 0, 0), (37, 20, 18)], wkwResolutions=[{"resolution": 1}, {"resolution": [2, 2, 1]}])
    )
    return {f"color/{name}": one for name, one in values.items()}


@in_trio
async def test_a_dataset_of_webknossos_is_found_by_its_properties_and_a_block_takes_one_request(web: Web) -> None:
    write_dataset(web.root / "dataset")
    names = [f"color/1/c/0/{x}/{y}/4" for x, y in [(8, 0), (8, 1), (7, 3), (0, 0)]]
    async with opened(str(web.root / "dataset")) as paths:
        expected = [bytes(await paths.read(name)) for name in names]
        documents = [bytes(await paths.read(f"color/{name}/zarr.json")) for name in ("1", "2-2-1")]
    async with opened(f"{web.url}/dataset") as paths:
        assert {one.name for one in await paths.names("")} == {"datasource-properties.json", "color"}
        assert {one.name for one in await paths.names("color")} == {"1", "2-2-1"}
        assert [bytes(await paths.read(f"color/{name}/zarr.json")) for name in ("1", "2-2-1")] == documents
        asked(web)
        counts = []
        for name, block, file in zip(names, expected, ("x2", "x2", "x1", "x0"), strict=True):
            assert bytes(await paths.read(name)) == block
            requests = asked(web)
            assert set(requests) == {("GET", f"/dataset/color/1/z1/y0/{file}.wkw")}
            counts.append(len(requests))
        assert counts[1] == 1  # the index of its file is known
        assert max(counts) == 2
        for name in ("8/4/4", "12/0/0"):  # in a file that is missing, and outside of the bounding box
            with pytest.raises(NotFoundError):
                await paths.read(f"color/1/c/0/{name}")
        with pytest.raises(UnsupportedError, match="--assume-complete"):
            await paths.names("color/1/c/0/8")


@pytest.mark.parametrize("kind", [RAW, LZ4])
def test_commands_and_mounts_read_a_dataset_of_webknossos(web: Web, tmp_path: Path, mount: Mounter, kind: str) -> None:
    values = write_dataset(web.root / "dataset", kind)
    url, complete = f"{web.url}/dataset", ["--jobs=1", "--assume-complete"]
    described = {one["path"]: one for one in run_json("info", "--json", "--assume-complete", url)["arrays"]}
    assert {path: one["shape"] for path, one in described.items()} == {
        path: list(one.shape) for path, one in values.items()
    }
    assert (described["color/1"]["stored_shards"], described["color/1"]["shards"]) == (11, 12)
    assert run_json("verify", "--json", "--data", *complete, url)["sound"]
    mapped = run_json("map", "--json", *complete, url)["arrays"]
    assert sum(len(found["shards"]) for found in mapped) == 11 + 4
    assert run("unpack", *complete, url, tmp_path / "unpacked").returncode == 0
    assert run("pack", *complete, url, tmp_path / "packed").returncode == 0
    with served(url) as server:
        for root in (mount(url).path, tmp_path / "unpacked", tmp_path / "packed", f"{server.url}/-/v3"):
            for path, expected in values.items():
                found = zarr.open_array(f"{root}/{path}", mode="r")[...]
                assert np.array_equal(found, expected), (root, path)


def test_an_array_of_webknossos_of_unknown_size_has_a_reason_and_a_way_out(
    web: Web, tmp_path: Path, mount: Mounter
) -> None:
    write_dataset(web.root / "dataset")
    (item,) = run_json("info", "--json", f"{web.url}/dataset/color/1")["arrays"]
    assert "let SOURCE be the dataset" in item["reason"]
    mounted = mount(f"{web.url}/dataset/color/1")
    assert not (mounted.path / "c/0/0/0/0").exists()
    assert "let SOURCE be the dataset" in mounted.log
    (web.root / "dataset/datasource-properties.json").unlink()
    assert "datasource-properties.json" in one_line_of(run("info", f"{web.url}/dataset"), 3)


def test_arrays_of_zarr_in_a_dataset_of_webknossos_are_found_by_its_properties(web: Web) -> None:
    path = web.root / "dataset"
    zarr.create_array(path / "color/1", data=VALUES, chunks=(8, 8), shards=(16, 16))
    write_properties(path, layer("color", [(0, 0, 0), (40, 40, 1)], mags=[{"mag": [1, 1, 1], "path": "./color/1"}]))
    (item,) = run_json("info", "--json", f"{web.url}/dataset")["arrays"]
    assert (item["path"], item["shape"]) == ("color/1", [40, 40])


@in_trio
async def test_other_sources_are_never_asked_for_headers_of_webknossos(web: Web) -> None:
    write_v2(web.root / "v2", consolidated=False)
    zarr.create_array(web.root / "v3/some/0", data=VALUES, chunks=(8, 8), shards=(16, 16))
    zarr.create_group(web.root / "v3")
    for name in ("v2", "v3", "volume"):
        async with opened(f"{web.url}/{name}") as paths:
            for path in ("", "some", "some/0", "more", "nothing"):
                with suppress(NotFoundError, UnsupportedError):
                    await paths.names(path)
    assert not [path for _, path, _ in web.asked() if path.endswith(("header.wkw", "chunks.b2frame"))]
