"""A ZIP file with Zarr in it: every door shows what it shows of the directory that was zipped."""

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr

import shardfs
from tests.support.commands import SOURCE, one_line_of, run, run_json
from tests.support.datasets import files_below
from tests.support.mounting import Mounter
from tests.support.precomputed import info, scale, sharding, write_volume
from tests.support.s3_server import Bucket
from tests.support.serving import served
from tests.support.web_server import web_server
from tests.support.zips import write_zip

METHODS = {"stored": zipfile.ZIP_STORED, "deflated": zipfile.ZIP_DEFLATED}
VIEWS = ["", "--decode", "--view=v2", "--view=v2 --decode", "--view=npy"]


def zipped(directory: Path, path: Path, method: int = zipfile.ZIP_STORED) -> Path:
    path.parent.mkdir(exist_ok=True)
    write_zip(path, files_below(directory), method)
    return path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A group of Zarr v3 with consolidated metadata, arrays with and without shards, one of v2, and a text."""
    values = np.arange(40 * 30, dtype="<u2").reshape(40, 30)
    group: Any = zarr.create_group(tmp_path / "data.zarr", attributes={"of": "a group"})
    for path, options in {"plain": {}, "deep/sharded": {"shards": (16, 16)}, "raw": {"compressors": None}}.items():
        array = group.create_array(path, shape=values.shape, chunks=(8, 8), dtype="u2", **options)
        array[:32] = values[:32]
        array.attrs["path"] = path
    zarr.consolidate_metadata(tmp_path / "data.zarr")
    old: Any = zarr.create_group(tmp_path / "data.zarr/old", zarr_format=2)
    old.create_array("array", shape=values.shape, chunks=(8, 8), dtype="u2")[...] = values
    (tmp_path / "data.zarr/README.txt").write_text("text " * 1000)
    return tmp_path / "data.zarr"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("options", VIEWS)
def test_a_mount_is_that_of_the_directory(
    mount: Mounter, directory: Path, tmp_path: Path, options: str, method: str
) -> None:
    source = zipped(directory, tmp_path / "zipped/data.zarr", METHODS[method])  # names in the npy view begin with it
    there, here = (mount(each, arguments=options.split()).path for each in (directory, source))
    assert files_below(here) == files_below(there)
    sizes = [{path.relative_to(root): path.lstat().st_size for path in root.rglob("*")} for root in (there, here)]
    assert {path: size for path, size in sizes[0].items() if (there / path).is_file()} == {
        path: size for path, size in sizes[1].items() if (here / path).is_file()
    }
    with (here / "README.txt").open("rb") as file:
        file.seek(4321)
        assert file.read() == (b"text " * 1000)[4321:]
    with pytest.raises(OSError, match="Read-only"):
        (here / "README.txt").write_bytes(b"")


@pytest.mark.parametrize("method", METHODS)
def test_commands_say_of_it_what_they_say_of_the_directory(directory: Path, tmp_path: Path, method: str) -> None:
    shutil.rmtree(directory / "old")
    source = zipped(directory, tmp_path / "data.zarr.zip", METHODS[method])
    there, here = (
        sorted(run_json("info", "--json", each)["arrays"], key=lambda array: array["path"])
        for each in (directory, source)
    )
    assert here == there
    for command in (["info", "--tools"], ["info"], ["map"]):
        done = run(*command, source)
        assert (done.returncode, done.stderr) == (0, ""), str(done)
    assert "zarr-python" in run("info", "--tools", source).stdout
    there, here = (
        sorted((array["path"], len(array["shards"])) for array in run_json("map", "--json", each)["arrays"])
        for each in (directory, source)
    )
    assert here == there
    report = run_json("verify", "--json", "--data", source)
    assert report["sound"] is True


def test_references_lead_to_members_that_are_stored(directory: Path, tmp_path: Path) -> None:
    source = zipped(directory, tmp_path / "data.zip")
    references = shardfs.refs(source)
    files, there = fsspec.filesystem("reference", fo=references), shardfs.refs(directory)["refs"]
    assert references["refs"].keys() == there.keys()
    url, offset, nbytes = references["refs"]["deep/sharded/c/2/1"]
    assert url == f"file://{source}"
    with shardfs.open(directory) as dataset:
        assert source.read_bytes()[offset : offset + nbytes] == dataset["deep/sharded"].read_chunk((2, 1))
        assert files.cat("plain/c/1/1") == (directory / "plain/c/1/1").read_bytes()
    done = run("refs", zipped(directory, tmp_path / "deflated.zip", zipfile.ZIP_DEFLATED))
    assert done.returncode != 0
    assert "not shown are" not in done.stderr
    assert "made" in done.stderr or "range" in done.stderr, done.stderr


@pytest.mark.parametrize("method", METHODS)
def test_it_is_packed_and_unpacked_as_the_directory_is(directory: Path, tmp_path: Path, method: str) -> None:
    shutil.rmtree(directory / "old")
    source = zipped(directory, tmp_path / "data.zarr.zip", METHODS[method])
    for command in ("pack", "unpack"):
        copies = []
        for each in (directory, source):
            copy = tmp_path / f"{command} {each.name}"
            assert run(command, each, copy).returncode == 0
            assert run("verify", each, copy).returncode == 0
            copies.append(files_below(copy))
        assert copies[0] == copies[1]


def test_it_is_served_with_pages_as_the_directory_is(directory: Path, tmp_path: Path) -> None:
    source = zipped(directory, tmp_path / "data.zarr.zip")
    with served(directory) as there, served(source) as here:
        for target in ("/zarr.json", "/plain/c/0/0", "/deep/sharded/c/3/1", "/README.txt", "/-/v2/plain/.zarray"):
            assert here.ask(target).body == there.ask(target).body
            assert here.ask(target).status == 200
        for target in ("/", "/plain/", "/deep/sharded/"):
            page = here.ask(target, Accept="text/html")
            assert page.status == 200
            assert "<html" in page.body.decode()
        assert here.ask("/plain/c/9/9").status == 404


def test_it_is_opened_without_a_mount(directory: Path, tmp_path: Path) -> None:
    source = zipped(directory, tmp_path / "image.ozx", zipfile.ZIP_DEFLATED)
    expected = np.asarray(zarr.open_group(directory, mode="r")["deep/sharded"])
    with shardfs.open(source) as dataset:
        group = zarr.open_group(dataset.store(), mode="r")
        assert group.attrs["of"] == "a group"
        np.testing.assert_array_equal(np.asarray(group["deep/sharded"]), expected)
        files = dataset.filesystem()
        assert files.cat("README.txt") == b"text " * 1000
        assert dataset["deep/sharded"].read_chunk((0, 0)) == files.cat("deep/sharded/c/0/0")


def test_other_formats_in_it_are_what_they_are_in_a_directory(mount: Mounter, tmp_path: Path) -> None:
    document = info(scale((16, 16, 8), (8, 8, 4), sharding(1, "identity", 1, 1, "gzip", "gzip")))
    write_volume(tmp_path / "volume", document, [np.arange(2048, dtype="u2").reshape(16, 16, 8, 1)])
    (tmp_path / "volume/info").write_text(json.dumps(document))
    source = zipped(tmp_path / "volume", tmp_path / "volume.zip", zipfile.ZIP_DEFLATED)
    assert files_below(mount(source).path) == files_below(mount(tmp_path / "volume").path)


def test_what_cannot_be_read_is_an_error_for_itself_alone(mount: Mounter, directory: Path, tmp_path: Path) -> None:
    source = zipped(directory, tmp_path / "data.zip")
    data = bytearray(source.read_bytes())
    at = data.rindex(b"plain/c/0/0")
    data[at - 46 + 10] = 12  # bzip2
    at = data.rindex(b"plain/c/1/1")
    data[at - 46 + 8] |= 1  # encrypted
    at = data.index(b"plain/c/2/2")
    data[at + 11] ^= 1  # the first byte of its data
    source.write_bytes(data)
    mounted = mount(source)
    mounted.expect("bzip2|encrypted|checksum")
    for name in ("0/0", "1/1", "2/2"):
        assert (mounted.path / f"plain/c/{name}").exists()
        with pytest.raises(OSError, match="Input/output"):
            (mounted.path / f"plain/c/{name}").read_bytes()
    assert (mounted.path / "plain/c/0/1").read_bytes() == (directory / "plain/c/0/1").read_bytes()
    note = run_json("info", "--json", source)["note"]
    assert "1 member cannot be read: it is encrypted" in note
    assert "1 member cannot be read: its compression method is bzip2" in note
    report = run_json("verify", "--json", "--data", source, status=1)
    messages = " ".join(problem["message"] for problem in report["problems"])
    assert all(word in messages for word in ("bzip2", "encrypted", "checksum"))


def test_a_file_that_is_replaced_is_shown_anew_and_one_that_is_removed_is_an_error(
    mount: Mounter, directory: Path, tmp_path: Path
) -> None:
    source = zipped(directory, tmp_path / "data.zip")
    mounted = mount(source, metadata_ttl=0)
    name, old, new = "README.txt", b"text " * 1000, b"TEXT " * 2000
    with (mounted.path / name).open("rb", buffering=0) as before:
        assert before.read(10) == old[:10]
        (directory / name).write_bytes(new)
        zipped(directory, tmp_path / "new").replace(source)
        with (mounted.path / name).open("rb", buffering=0) as after:
            assert after.read(10) == new[:10]
            assert before.read(4500) == old[10:4510]  # of pages that the kernel has, and of others
            assert after.read() == new[10:]
            assert before.read() == old[4510:]
    with (mounted.path / name).open("rb", buffering=0) as before:
        source.write_bytes(source.read_bytes() + b"in place")
        with pytest.raises(OSError, match="Stale"):
            before.read()
    source.unlink()
    mounted.expect("was removed|is missing|is gone")
    with pytest.raises(OSError, match="Input/output"):
        (mounted.path / "raw/c/0/0").read_bytes()


def test_it_is_read_by_ranges_from_the_web_and_s3(
    directory: Path, tmp_path: Path, s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = zipped(directory, tmp_path / "data.zarr.zip", zipfile.ZIP_DEFLATED)
    expected = np.asarray(zarr.open_group(directory, mode="r")["deep/sharded"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_bucket.endpoint_url)
    s3_bucket.put("some/data.zarr.zip", source.read_bytes())
    with web_server(tmp_path) as web:
        for url in (f"{web.url}/data.zarr.zip", s3_bucket.url("some/data.zarr.zip")):
            with shardfs.open(url) as dataset:
                group = zarr.open_group(dataset.store(), mode="r")
                np.testing.assert_array_equal(np.asarray(group["deep/sharded"]), expected)
                assert sorted(group) == ["deep", "plain", "raw"]
            report = run_json("verify", "--json", "--data", url)
            assert report["sound"] is True
        assert all(asked.startswith("bytes=") for method, _, asked in web.asked() if method == "GET")


def test_what_is_no_zip_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.ozx").write_bytes(b"text" * 100)
    assert "it is no ZIP file" in one_line_of(run("info", tmp_path / "a.ozx"), SOURCE)
    write_zip(tmp_path / "nameless", {"zarr.json": b"{}"})
    assert run("info", tmp_path / "nameless").returncode == 0, "it begins as a ZIP file"
