"""References of kerchunk and VirtualiZarr as a source: ranges of other files, shown as files of Zarr."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr

import shardfs
from tests.support.commands import FAILED, SOURCE, WRONG_USAGE, one_line_of, run, run_json
from tests.support.corpus import LITTLE, array
from tests.support.corpus import sharding as sharded
from tests.support.datasets import files_below, store
from tests.support.mounting import Mounter, refuses
from tests.support.references import kerchunked, virtualized, write_axes, write_document, write_hdf5, write_records
from tests.support.s3_mounts import Remote
from tests.support.serving import served
from tests.support.web_server import web_server


def succeed(*arguments: str | Path) -> str:
    done = run(*arguments)
    assert done.returncode == 0, str(done)
    return done.stdout + done.stderr


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A directory with an HDF5 file."""
    (tmp_path / "data").mkdir()
    write_hdf5(tmp_path / "data/file.h5")
    return tmp_path / "data"


FORMS: dict[str, Callable[[Path, dict[str, Any]], Path]] = {
    "refs.json": write_document,
    "refs.parq": write_records,
}


@pytest.mark.parametrize("name", FORMS)
def test_arrays_of_hdf5_have_the_values_that_h5py_reads(mount: Mounter, files: Path, name: str) -> None:
    values = write_hdf5(files / "file.h5")
    source = FORMS[name](files / name, kerchunked(files / "file.h5"))
    root = mount(source).path
    group = zarr.open_group(root, mode="r", zarr_format=2)
    for path, expected in values.items():
        np.testing.assert_array_equal(group[path][...], expected)
    assert not (root / "partial/1.0").exists(), "a chunk that is not stored has no file"
    with pytest.raises(FileNotFoundError):
        (root / "partial/0.00").read_bytes()
    without = [path for path in values if path != "packed"]  # their dimensions have no names, and several lengths
    found = xarray.open_dataset(
        root, engine="zarr", consolidated=False, zarr_format=2, drop_variables=without, mask_and_scale=False
    )
    np.testing.assert_array_equal(found["packed"], values["packed"])
    assert sorted(os.listdir(root / "packed")) == sorted(
        [".zarray", ".zattrs", *(f"{i}.{j}" for i in range(4) for j in range(4))]
    )


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_references_of_virtualizarr_have_the_values_that_h5py_reads(mount: Mounter, files: Path, form: str) -> None:
    """It writes small arrays into the references."""
    values = write_axes(files / "axes.h5")
    source = virtualized(files / "axes.h5", files / ("refs.json" if form == "json" else "refs.parq"), form)
    root = mount(source).path
    options: dict[str, Any] = {"engine": "zarr", "consolidated": form == "parquet", "zarr_format": 2}
    found = xarray.open_dataset(root, mask_and_scale=False, **options)
    for name, expected in values.items():
        np.testing.assert_array_equal(found[name], expected)


def test_both_forms_show_the_same_chunks(mount: Mounter, files: Path) -> None:
    references = kerchunked(files / "file.h5")
    document = files_below(mount(write_document(files / "a.json", references)).path)
    records = files_below(mount(write_records(files / "b.parq", references)).path)
    consolidated = json.loads(records.pop(".zmetadata"))
    assert records.keys() == document.keys()
    for key, data in records.items():
        if ".z" in key:
            expected = json.loads(document[key])
            assert json.loads(data) == expected | ({"dimension_separator": "."} if ".zarray" in key else {})
            assert consolidated["metadata"][key] == json.loads(data)
        else:
            assert data == document[key]
    raw = (files / "file.h5").read_bytes()
    url, offset, nbytes = references["refs"]["packed/2.3"]
    assert (url, document["packed/2.3"]) == (str(files / "file.h5"), raw[offset : offset + nbytes])


def test_references_that_shardfs_writes_are_a_source(mount: Mounter, tmp_path: Path) -> None:
    """Of Zarr v3, too: the mount shows that in all views."""
    chunks = store(tmp_path / "data.zarr/image", array((8, 12), (4, 6), sharded((2, 3), LITTLE)))
    references = tmp_path / "refs.json"
    succeed("refs", "--output", references, tmp_path / "data.zarr")
    shown = files_below(mount(references).path)
    assert {key: data for key, data in shown.items() if "zarr.json" not in key} == {
        f"image/{key}": data for key, data in chunks.items()
    }
    native = zarr.open_array(tmp_path / "data.zarr/image", mode="r")[...]
    for options in ([], ["--decode"]):
        np.testing.assert_array_equal(zarr.open_array(mount(references, arguments=options).path / "image")[...], native)
    v2 = mount(references, arguments=["--view=v2"]).path
    np.testing.assert_array_equal(zarr.open_array(v2 / "image", zarr_format=2)[...], native)
    np.testing.assert_array_equal(np.load(mount(references, arguments=["--view=npy"]).path / "image.npy"), native)
    with shardfs.open(references, decode=True) as dataset:
        assert dataset["image"].read_chunk((0, 0)) == native[:2, :3].tobytes()
    records = tmp_path / "refs.parquet"
    succeed("refs", "--parquet", records, tmp_path / "data.zarr")
    np.testing.assert_array_equal(zarr.open_array(mount(records).path / "image", zarr_format=2)[...], native)


def test_a_shard_can_be_a_range_of_a_file(mount: Mounter, tmp_path: Path) -> None:
    """Such as a file of Zarr in a tar: the array is sharded, and shown unsharded."""
    chunks = store(tmp_path / "data.zarr", array((8, 12), (4, 6), sharded((2, 3), LITTLE)))
    whole, refs = b"before", {}
    for key, data in files_below(tmp_path / "data.zarr").items():
        refs[key] = ["one.bin", len(whole), len(data)]
        whole += data + b"between"
    (tmp_path / "one.bin").write_bytes(whole)
    source = write_document(tmp_path / "refs.json", {"version": 1, "refs": refs})
    shown = files_below(mount(source).path)
    assert {key: data for key, data in shown.items() if key != "zarr.json"} == chunks
    assert run_json("verify", "--data", "--json", source)["shards"] == 4
    assert run_json("info", "--json", source)["arrays"][0]["stored_shards"] == 4
    assert "4 of 4" in succeed("map", source)


def test_pack_makes_sharded_zarr_v3_and_unpack_plain_zarr(tmp_path: Path, files: Path) -> None:
    values = write_hdf5(files / "file.h5")
    for name, write in FORMS.items():
        source = write(files / name, kerchunked(files / "file.h5"))
        succeed("pack", "--shards", "2", source, tmp_path / f"packed-{name}")
        succeed("unpack", source, tmp_path / f"plain-{name}")
        for made, version in ((f"packed-{name}", 3), (f"plain-{name}", 2)):
            group = zarr.open_group(tmp_path / made, mode="r", zarr_format=version)
            for path, expected in values.items():
                np.testing.assert_array_equal(group[path][...], expected)
        again = succeed("pack", "--sync", "--shards", "2", source, tmp_path / f"packed-{name}")
        assert "0 objects stored" in again
        assert "no difference" in succeed("verify", source, tmp_path / f"packed-{name}")


def test_without_fuse_python_and_http_read_them(files: Path) -> None:
    values = write_hdf5(files / "file.h5")
    source = write_document(files / "refs.json", kerchunked(files / "file.h5"))
    with shardfs.open(source) as dataset:
        group = zarr.open_group(dataset.store(), mode="r", zarr_format=2)
        np.testing.assert_array_equal(group["packed"][...], values["packed"])
    with served(source) as server:
        group = zarr.open_group(f"{server.url}/-/v3", mode="r", zarr_format=2)
        np.testing.assert_array_equal(group["plain"][...], values["plain"])


def test_nothing_can_be_written(files: Path, tmp_path: Path) -> None:
    source = write_document(files / "refs.json", kerchunked(files / "file.h5"))
    (tmp_path / "mnt").mkdir()
    said = one_line_of(run("mount", "--write", source, tmp_path / "mnt"), SOURCE)
    assert "can only be read" in said
    assert "can only be read" in one_line_of(run("compact", source), SOURCE)
    assert "is a set of references already" in one_line_of(run("refs", "-o", tmp_path / "refs", source), WRONG_USAGE)
    with pytest.raises(shardfs.errors.SourceError, match="can only be read"):
        shardfs.open(source, write=True)


def test_files_elsewhere_are_read_only_if_the_user_allows_it(mount: Mounter, files: Path, tmp_path: Path) -> None:
    (tmp_path / "refs").mkdir()
    references = {".zgroup": "{}", "a": [str(files / "file.h5"), 0, 8], "b": ["../data/file.h5"], "c": ["beside", 1, 3]}
    source = write_document(tmp_path / "refs/refs.json", references)
    (tmp_path / "refs/beside").write_text("12345")
    mounted = mount(source)
    assert (mounted.path / "c").read_bytes() == b"234"
    assert (mounted.path / ".zgroup").read_bytes() == b"{}"
    assert sorted(os.listdir(mounted.path)) == [".zgroup", "a", "b", "c"]
    for _ in range(2):
        for name in ("a", "b"):
            with refuses(errno.EACCES):
                (mounted.path / name).read_bytes()
    mounted.expect(f"not allowed.*add --allow-target {files}")
    other = mount(source, arguments=[f"--allow-target={files}"])
    other.expect("c: beside is not allowed")
    allowed = other.path
    assert (allowed / "a").read_bytes() == b"\x89HDF\r\n\x1a\n"
    assert (allowed / "b").stat().st_size == (files / "file.h5").stat().st_size
    with refuses(errno.EACCES):  # the roots that are named take the place of the usual one
        (allowed / "c").read_bytes()
    both = mount(source, arguments=[f"--allow-target={files}", f"--allow-target={tmp_path / 'refs'}"]).path
    assert (both / "a").read_bytes()
    assert (both / "c").read_bytes()


def test_a_mount_says_at_once_which_files_are_not_allowed(files: Path, tmp_path: Path) -> None:
    (tmp_path / "refs").mkdir()
    (tmp_path / "mnt").mkdir()
    references = kerchunked(files / "file.h5")
    for name, write in FORMS.items():
        source = write(tmp_path / "refs" / name, references)
        done = run("mount", source, tmp_path / "mnt")
        try:
            assert done.returncode == 0, str(done)
            assert f"allow them with --allow-target {files}" in done.stderr
        finally:
            run("umount", tmp_path / "mnt")


LINKS: dict[str, Callable[[Path, Path], object]] = {
    "to a file outside": lambda root, outside: (root / "link").symlink_to(outside / "secret"),
    "relative": lambda root, outside: (root / "link").symlink_to("../outside/secret"),
    "a directory": lambda root, outside: (root / "dir").symlink_to(outside),
}


def test_no_link_leads_out_of_what_is_allowed(mount: Mounter, tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (root / "inside").write_text("inside")
    (root / "fine").symlink_to("inside")
    (root / "link").symlink_to(outside / "secret")
    (root / "relative").symlink_to("../outside/secret")
    (root / "dir").symlink_to(outside)
    (root / "sub").mkdir()
    names = ["link", "relative", "dir/secret", "../outside/secret", "sub/../../outside/secret", "inside/../../x"]
    names += [f"file://{outside}/secret", f"{root}/../outside/secret", "/proc/self/environ", "root", "sub", "nul\0"]
    refs = {f"bad/{number}": [name] for number, name in enumerate(names)} | {
        "fine": ["fine"],
        "also": ["sub/../inside"],
    }
    mounted = mount(write_document(root / "refs.json", refs))
    mounted.expect(".")
    assert (mounted.path / "fine").read_bytes() == (mounted.path / "also").read_bytes() == b"inside"
    assert len(os.listdir(mounted.path / "bad")) == len(names)
    for number in range(len(names)):
        with pytest.raises(OSError, match=r"Errno (5|13)\b"):
            (mounted.path / f"bad/{number}").read_bytes()


def test_ranges_beyond_the_end_and_missing_files_are_errors_of_their_chunks_alone(mount: Mounter, files: Path) -> None:
    size = (files / "file.h5").stat().st_size
    refs = {
        "whole": ["file.h5"],
        "end": ["file.h5", size - 1, 1],
        "nothing": ["file.h5", size, 0],
        "beyond": ["file.h5", size - 1, 2],
        "far": ["file.h5", 2**62, 1],
        "missing": ["missing.h5", 0, 1],
        "negative": ["file.h5", -1, 1],
        "scheme": ["ftp://host/file", 0, 1],
    }
    source = write_document(files / "refs.json", {"version": 1, "refs": refs})
    mounted = mount(source)
    mounted.expect(".")
    assert sorted(os.listdir(mounted.path)) == sorted(refs), "nobody takes them for absent"
    assert (mounted.path / "whole").read_bytes() == (files / "file.h5").read_bytes()
    assert len((mounted.path / "end").read_bytes()) == 1
    assert (mounted.path / "nothing").read_bytes() == b""
    for name in ("beyond", "far", "missing", "negative", "scheme"):
        with refuses(errno.EIO):
            (mounted.path / name).read_bytes()


def test_a_target_that_changes_is_read_as_one_version(mount: Mounter, files: Path) -> None:
    (files / "target").write_bytes(b"a" * 100)
    mounted = mount(write_document(files / "refs.json", {"x": ["target", 10, 5]}), metadata_ttl=0)
    root = mounted.path
    with (root / "x").open("rb", buffering=0) as file:
        (files / "new").write_bytes(b"b" * 100)
        (files / "new").rename(files / "target")
        assert os.pread(file.fileno(), 5, 0) in (b"aaaaa", b"")
    assert (root / "x").read_bytes() == b"bbbbb"
    with (root / "x").open("rb", buffering=0) as file:
        (files / "target").write_bytes(b"cc")
        with refuses(errno.ESTALE):
            os.pread(file.fileno(), 5, 0)
    mounted.expect("bytes up to 15", "was changed in place")
    with refuses(errno.EIO):
        (root / "x").read_bytes()


def test_pages_of_a_target_and_of_the_next_one_are_not_mixed(mount: Mounter, files: Path) -> None:
    old, new = b"a" * 100_000, b"b" * 100_000
    (files / "target").write_bytes(old)
    root = mount(write_document(files / "refs.json", {"x": ["target", 0, 100_000]}), metadata_ttl=0).path
    with (root / "x").open("rb", buffering=0) as before:
        assert before.read(10) == old[:10]
        (files / "new").write_bytes(new)
        (files / "new").rename(files / "target")
        with (root / "x").open("rb", buffering=0) as after:
            assert after.read(10) == new[:10]
            assert before.read(60_000) == old[:60_000]
            assert after.read() == new[10:]
            assert before.read() == old[60_010:]


def test_records_that_are_written_anew_are_not_mixed_with_earlier_ones(mount: Mounter, files: Path) -> None:
    references = kerchunked(files / "file.h5")
    mounted = mount(write_records(files / "refs.parq", references))
    assert (mounted.path / "packed/0.0").read_bytes()
    write_records(files / "refs.parq", references)
    mounted.expect("written anew")
    with refuses(errno.ESTALE):
        (mounted.path / "packed/3.3").read_bytes()


def test_files_in_s3_and_on_web_servers_are_read_by_their_ranges(mount: Mounter, remote: Remote, files: Path) -> None:
    values = write_hdf5(files / "file.h5")
    remote.bucket.put("part/file.h5", (files / "file.h5").read_bytes())
    references = kerchunked(files / "file.h5", f"s3://{remote.bucket.name}/part/file.h5")
    remote.bucket.put("part/refs.json", json.dumps(references).encode())
    endpoint = f"--endpoint-url={remote.bucket.endpoint_url}"
    local = write_document(files / "refs.json", references)
    for source, options in (
        (local, [endpoint, f"--allow-target=s3://{remote.bucket.name}/part"]),
        (f"s3://{remote.bucket.name}/part/refs.json", [endpoint]),
    ):
        group = zarr.open_group(mount(source, arguments=options).path, mode="r", zarr_format=2)
        np.testing.assert_array_equal(group["packed"][...], values["packed"])
    with web_server(files) as web:
        references = kerchunked(files / "file.h5", f"{web.url}/file.h5")
        for write, name in ((write_document, "web.json"), (write_records, "web.parq")):
            write(files / name, references)
            group = zarr.open_group(mount(f"{web.url}/{name}").path, mode="r", zarr_format=2)
            web.asked()
            np.testing.assert_array_equal(group["packed"][...], values["packed"])
            asked = [wanted for method, path, wanted in web.asked() if (method, path) == ("GET", "/file.h5")]
            assert asked
            assert all(wanted.startswith("bytes=") for wanted in asked)


def test_a_chunk_on_a_web_server_takes_one_request_for_its_bytes_alone(mount: Mounter, files: Path) -> None:
    """Though the kernel asks for it in pieces, and the file goes on behind it."""
    data = np.random.default_rng(3).bytes(12 * 2**20)
    (files / "large.bin").write_bytes(data)
    refs = {str(i): ["large.bin", i * 10**6, 10**6] for i in range(11)}
    write_document(files / "refs.json", refs)
    with web_server(files) as web:
        root = mount(f"{web.url}/refs.json").path
        for name in ("7", "2", "5"):
            web.asked()
            start = int(name) * 10**6
            assert (root / name).read_bytes() == data[start : start + 10**6]
            ranges = [wanted for method, _, wanted in web.asked() if method == "GET"]
            assert ranges == [f"bytes={start}-{start + 10**6 - 1}"]


HOSTILE: dict[str, tuple[Any, str]] = {
    "a list.json": ([1, 2], "cannot be read as references: it is no valid JSON"),
    "version.json": ({"version": 9, "refs": {}}, "version 9"),
}


def test_what_is_no_set_of_references_is_refused(tmp_path: Path) -> None:
    for name, (written, reason) in HOSTILE.items():
        path = write_document(tmp_path / name, written)
        assert reason in one_line_of(run("info", path), SOURCE)
    assert "does not exist" in one_line_of(run("info", tmp_path / "nothing.json"), SOURCE)
    (tmp_path / "x.parq").mkdir()
    (tmp_path / "x.parq/.zmetadata").write_text('{"metadata": {}}')
    assert "no `record_size`" in one_line_of(run("info", tmp_path / "x.parq"), SOURCE)
    (tmp_path / "refs.json").write_text("{}")
    missing = run("info", "--allow-target", tmp_path / "nothing", tmp_path / "refs.json")
    assert "--allow-target" in one_line_of(missing, SOURCE)
    assert "is for references" in one_line_of(run("info", "--allow-target", "/x", tmp_path), WRONG_USAGE)


RECORDS: dict[str, Callable[[Path], object]] = {
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("PAR1 and nothing else PAR1"),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
}


def test_a_damaged_record_is_an_error_of_its_chunks_alone(mount: Mounter, files: Path) -> None:
    for kind, damage in RECORDS.items():
        source = write_records(files / f"{kind}.parq", kerchunked(files / "file.h5"))
        if kind != "a directory":
            damage(source / "packed/refs.1.parq")
        mounted = mount(source)
        mounted.expect(".")
        assert (mounted.path / "packed/0.0").read_bytes()
        assert (mounted.path / "plain/0.0").read_bytes()
        if kind != "a directory":
            with refuses(errno.EIO):
                (mounted.path / "packed/1.0").read_bytes()
        shutil.rmtree(source)


def test_info_and_verify_say_what_is_there_and_what_is_wrong(files: Path) -> None:
    references = kerchunked(files / "file.h5")
    source = write_document(files / "refs.json", references)
    assert "Zarr v2" in succeed("info", source)
    described = {item["path"]: item for item in run_json("info", "--json", source)["arrays"]}
    assert {path: item["shape"] for path, item in described.items()} == {
        "packed": [20, 30],
        "partial": [40, 6],
        "plain": [7, 9],
        "scalar": [],
    }
    assert described["partial"]["stored_shards"] == 1
    assert described["packed"]["codecs"] == ["shuffle", "zlib"]
    assert run_json("info", "--json", source, "packed")["arrays"] == [described["packed"]]
    assert "there is no array nope" in one_line_of(run("info", source, "nope"), SOURCE)
    report = run_json("verify", "--json", source)
    assert report["sound"]
    assert report["references"] == len(references["refs"])
    references["refs"]["packed/0.0"] = ["missing.h5", 1, 2]
    references["refs"]["packed/0.1"][1] = 2**40
    references["refs"]["packed/0.2"] = ["/etc/passwd", 0, 1]
    write_document(source, references)
    report = run_json("verify", "--json", source, status=FAILED)
    assert {problem["shard"] for problem in report["problems"]} == {"packed/0.0", "packed/0.1", "packed/0.2"}
    assert any("--allow-target /etc" in problem["message"] for problem in report["problems"])
