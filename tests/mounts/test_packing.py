"""Unsharded arrays copied into a mount with `--shards`: they become sharded, in whatever order the files come."""

import json
import os
import random
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import numpy as np
import pytest
import zarr

from tests.support.datasets import files_below
from tests.support.documents import aside_of
from tests.support.mounting import Mounter
from tests.support.readers import READERS, assert_same
from tests.support.writers import assert_packed, assert_sound, document_of, flush, tool

SHAPE, CHUNKS = (8, 4, 9), (2, 2, 2)  # the last shard of the last axis overhangs
VALUES = np.arange(1, 1 + 8 * 4 * 9, dtype="u2").reshape(SHAPE)
NCHUNKS = 4 * 2 * 5
PLAIN = {"chunks": CHUNKS, "compressors": None}
"""A shard of so small chunks is smaller than its index, and waits for half a minute for those that come next."""
V2_KEYS = {"image": {"name": "v2", "separator": "."}, "deep/image": {"name": "v2", "separator": "/"}}


@pytest.fixture(params=["default"])
def plain(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A group with an unsharded array, and one in a group below, consolidated."""
    path = tmp_path / "data.zarr"
    for name, v2 in V2_KEYS.items():
        keys = v2 if request.param == "v2" else None
        zarr.create_array(
            str(path),
            name=name,
            data=VALUES,
            attributes={"name": name},
            chunk_key_encoding=keys,  # type: ignore[arg-type]
            **PLAIN,
        )
    (path / "image" / "notes.txt").write_text("plain\n")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata")
        zarr.consolidate_metadata(str(path))
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An empty directory."""
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


def copy_files(source: Path, target: Path, keys: list[str], way: str, workers: int) -> None:
    """Copy files one by one in the order of *keys*, by several workers, as rclone does or as cp."""

    def copy(key: str) -> None:
        path, data = target / key, (source / key).read_bytes()
        path.parent.mkdir(parents=True, exist_ok=True)
        if way == "rename":
            temporary = path.with_name(f"{path.name}.{random.getrandbits(32):08x}.partial")
            temporary.write_bytes(data)
            temporary.rename(path)
        else:
            with open(path, "wb", buffering=0) as file:
                for start in range(0, len(data), 100):
                    file.write(data[start : start + 100])

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(copy, keys))


def assert_native(directory: Path, expected: np.ndarray = VALUES) -> None:
    for read in READERS.values():
        assert_same(read(directory), expected)
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        assert_same(READERS["zarr"](directory), expected)


def assert_group_is_packed(source: Path) -> None:
    """The two arrays of `plain` are in complete shards, with metadata that says so in both places."""
    for name in ("image", "deep/image"):
        assert_native(source / name)
        document = document_of(source / name)
        assert [codec["name"] for codec in document["codecs"]] == ["sharding_indexed"]
        assert document["chunk_grid"]["configuration"]["chunk_shape"] == [4, 4, 4]
        assert document["attributes"] == {"name": name}
        assert document_of(source)["consolidated_metadata"]["metadata"][name] == document
        opened = zarr.open_group(str(source), mode="r", use_consolidated=True)[name]
        assert isinstance(opened, zarr.Array)
        assert (opened.shards, opened.chunks) == ((4, 4, 4), CHUNKS)
        assert_same(np.asarray(opened[...]), VALUES)
    assert_packed(source, 2 * NCHUNKS)
    assert (source / "image" / "notes.txt").read_text() == "plain\n"
    assert_sound(source)


def test_a_copier_packs_and_unpacks(mount: Mounter, tmp_path: Path, plain: Path, source: Path) -> None:
    """Chunks come back byte for byte, and documents say the same: the stored one was rewritten."""
    mounted = mount(source, write=True, shards="2,2,2")
    tool("cp", "-a", plain, mounted.path)
    tool("cp", "-a", mounted.path / plain.name, tmp_path / "before")
    flush(mounted)
    tool("cp", "-a", mounted.path / plain.name, tmp_path / "after")
    mounted.unmount()
    assert_group_is_packed(source / plain.name)
    tool("cp", "-a", mount(source).path / plain.name, tmp_path / "later")
    expected = files_below(plain)
    for copied in (tmp_path / name for name in ("before", "after", "later")):
        found = files_below(copied)
        assert found.keys() == expected.keys()
        for key, data in expected.items():
            if key.endswith("zarr.json"):
                assert document_of((copied / key).parent) == document_of((plain / key).parent), key
            else:
                assert found[key] == data, key


@pytest.mark.parametrize(
    ("plain", "order", "way", "workers"),
    [
        ("default", "shuffled", "in-place", 1),
        ("default", "documents-last", "rename", 1),
        ("default", "children-first", "in-place", 4),
        ("v2", "documents-last", "rename", 3),
    ],
    indirect=["plain"],
)
def test_files_may_come_in_any_order(
    mount: Mounter, plain: Path, source: Path, order: str, way: str, workers: int
) -> None:
    keys = sorted(files_below(plain))
    random.Random(f"{order}{way}{workers}").shuffle(keys)
    if order == "documents-last":
        keys.sort(key=lambda key: key.endswith("zarr.json"))
    elif order == "children-first":
        keys.sort(key=lambda key: -key.count("/"))
    mounted = mount(source, write=True, shards="2,2,2")
    copy_files(plain, mounted.path, keys, way, workers)
    assert files_below(mounted.path).keys() == set(keys)
    mounted.unmount()
    assert_group_is_packed(source)


def move_in(old: Path, new: Path) -> None:
    """Move a copy of *old*."""
    shutil.copytree(old, old.with_name("moved"))
    tool("mv", old.with_name("moved"), new)


COPIERS: dict[str, Callable[[Path, Path], object]] = {
    "cp -r": lambda old, new: tool("cp", "-r", old, new),
    "copytree": shutil.copytree,
    "mv": move_in,
    "rsync": lambda old, new: tool("rsync", "-a", f"{old}/", new),
    "tar": lambda old, new: tool("sh", "-c", f"tar -C {old.parent} -c {old.name} | tar -C {new.parent} -x"),
    "fsspec": lambda old, new: fsspec.filesystem("file").put(f"{old}/", f"{new}/", recursive=True),
}


def test_copiers_that_make_every_directory_fill_a_new_array_and_it_can_be_removed(
    mount: Mounter, plain: Path, source: Path
) -> None:
    """Some give up if a directory exists. The document comes first, the second time where an array was removed."""
    mounted, chunks = mount(source, write=True, shards="2,2,2"), files_below(plain / "image/c")
    for name, copy in COPIERS.items():
        new = mounted.path / name
        for turn in range(2):
            new.mkdir()
            shutil.copy(plain / "image/zarr.json", new)
            copy(plain / "image/c", new / "c")
            assert files_below(new / "c") == chunks
            if not turn:
                shutil.rmtree(new)
    mounted.unmount()
    assert_native(source / "cp -r")
    later = mount(source, write=True, shards="2,2,2")
    for name in COPIERS:
        shutil.rmtree(later.path / name)
    assert not list(later.path.iterdir())
    later.unmount()
    assert not list(source.iterdir())


def test_a_new_array_has_the_directories_that_were_made_and_those_with_chunks(
    mount: Mounter, plain: Path, source: Path
) -> None:
    mounted = mount(source, write=True, shards="2,2,2")
    root = mounted.path / "image"
    root.mkdir()
    shutil.copy(plain / "image/zarr.json", root)
    assert os.listdir(root) == ["zarr.json"]
    for name in ("c/0", "c"):
        with pytest.raises(FileNotFoundError):
            os.listdir(root / name)
    for name in ("c", "c/0", "c/1", "c/1/1", "c/3"):
        (root / name).mkdir()
        with pytest.raises(FileExistsError):
            (root / name).mkdir()
    shutil.copy(plain / "image/c/1/1/0", root / "c/1/1/0")
    flush(mounted)
    assert sorted(os.listdir(root / "c")) == ["0", "1", "3"]  # and not all that the shard covers
    assert os.listdir(root / "c/1") == ["1"]
    assert not (root / "c/1/0").exists()
    with pytest.raises(OSError, match="not empty"):
        (root / "c/1").rmdir()
    (root / "c/1/1/0").unlink()
    for name in ("c/0", "c/1/1"):
        (root / name).rmdir()
        assert not (root / name).exists()
    assert sorted(os.listdir(root / "c")) == ["1", "3"]
    (root / "c").rmdir()  # with empty ones below
    assert os.listdir(root) == ["zarr.json"]
    assert not (root / "c").exists()


def test_what_another_program_has_written_to_the_group_of_a_new_array_stays(
    mount: Mounter, plain: Path, source: Path
) -> None:
    """Its copies of the array are brought up to date when that is created."""
    mounted = mount(source, write=True, shards="2,2,2", metadata_ttl=3600)
    shutil.copyfile(plain / "zarr.json", mounted.path / "zarr.json")
    assert document_of(mounted.path) == document_of(plain)
    (source / "zarr.json").write_text(json.dumps(document_of(source) | {"attributes": {"natively": 1}}))
    shutil.copytree(plain / "image", mounted.path / "image")
    assert document_of(source)["attributes"] == {"natively": 1}
    assert document_of(source)["consolidated_metadata"]["metadata"]["image"] == document_of(source / "image")


def test_a_copy_that_is_out_of_date_keeps_no_other_from_being_brought_up_to_date(
    mount: Mounter, plain: Path, source: Path
) -> None:
    mounted = mount(source, write=True, shards="2,2,2")
    shutil.copyfile(plain / "zarr.json", mounted.path / "zarr.json")
    zarr.create_array(str(mounted.path / "deep" / "image"), data=VALUES[:3], chunks=(1, 1, 1))
    shutil.copytree(plain / "image", mounted.path / "image")
    assert document_of(source)["consolidated_metadata"]["metadata"]["image"] == document_of(source / "image")


def test_a_new_document_hides_no_temporary_file(mount: Mounter, plain: Path, source: Path) -> None:
    """What programs do to one by its name until they rename it: the file is moved below them as its array begins."""
    document, data = (plain / "image/zarr.json").read_bytes(), (plain / "image/c/0/0/0").read_bytes()
    mounted = mount(source, write=True, shards="2,2,2")

    def copy(path: Path) -> None:
        for number in range(5):  # the grid has 5 along this axis
            temporary = path.with_name(f"{number}.{path.name}.partial")
            temporary.write_bytes(data)
            os.utime(temporary, (1e9, 1e9))
            temporary.chmod(0o644)
            os.setxattr(temporary, "user.a", b"b")
            assert os.getxattr(temporary, "user.a") == b"b"
            os.truncate(temporary, len(data))
            assert temporary.read_bytes() == data
            temporary.rename(path.with_name(str(number)))

    with ThreadPoolExecutor(3) as pool:
        for number in (1, 3):
            array = mounted.path / f"array-{number}"
            (array / "c/0/0").mkdir(parents=True)
            copying = [pool.submit(copy, array / "c/0/0" / str(worker)) for worker in range(3)]
            while len(os.listdir(array / "c/0/0")) < number:
                pass
            (array / "zarr.json.tmp").write_bytes(document)
            (array / "zarr.json.tmp").rename(array / "zarr.json")
            for each in copying:
                each.result()
            assert sorted(os.listdir(array / "c/0/0")) == list("01234")
    mounted.unmount()


@pytest.mark.parametrize("options", [[], ["--decode"], ["--shards=2,2"]], ids=["plain", "decoded", "another rank"])
def test_without_shards_of_its_rank_an_array_is_stored_as_written(
    mount: Mounter, plain: Path, source: Path, options: list[str]
) -> None:
    mounted = mount(source, write=True, arguments=options)
    keys = sorted(files_below(plain), key=lambda key: key.endswith("zarr.json"))
    copy_files(plain, mounted.path, keys, "rename", 2)
    (mounted.path / "alone").mkdir()
    for name in ("zarr.json", "c", "notes.txt"):
        tool("cp", "-r", plain / "image" / name, mounted.path / "alone")
    shown = files_below(mounted.path)
    if "--shards=2,2" in options:
        assert any("image" in line and "2" in line and "3" in line for line in mounted.log.splitlines()), mounted.log
    mounted.unmount()
    alone = {f"alone/{key}": data for key, data in files_below(plain / "image").items()}
    assert files_below(source) == shown == files_below(plain) | alone


def test_links_among_the_chunks_of_a_new_array_cost_no_chunk(mount: Mounter, plain: Path, source: Path) -> None:
    """What cannot be read stays aside or beside the chunks, also for the mounts that come next."""
    mounted = mount(source, write=True, shards="2", expect=(r"stays in .*/9/0/0: .* dangling link",))
    shutil.copytree(plain / "image", mounted.path / "image", ignore=shutil.ignore_patterns("zarr.json"))
    chunks = mounted.path / "image/c"
    (chunks / "9/0").mkdir(parents=True)
    for link, target in {"0/0/nothing": "nowhere", "0/0/directory": "../0", "9/0/0": "nowhere"}.items():
        (chunks / link).symlink_to(target)
    shutil.copyfile(plain / "image/zarr.json", mounted.path / "image/zarr.json")
    mounted.unmount()
    again = mount(source, write=True, expect=tuple(mounted.expected))
    assert_same(READERS["zarr"](again.path / "image"), VALUES)
    assert_native(source / "image")
    assert os.readlink(again.path / "image/c/0/0/nothing") == "nowhere"


def test_chunks_that_others_store_in_a_new_array_are_shown(mount: Mounter, source: Path) -> None:
    """Only directories of chunks that were made exist in a new array, and those that others have stored chunks in."""
    mounted = mount(source, write=True, shards="2", metadata_ttl=0.0)
    made = zarr.create_array(str(mounted.path / "a"), shape=SHAPE, dtype="u2", **PLAIN)
    made[:2, :2] = VALUES[:2, :2]
    flush(mounted)
    native = zarr.open_array(str(source / "a"), mode="r+")
    native[2:, 2:] = VALUES[2:, 2:]
    chunks = mounted.path / "a/c"
    directories = {str(path.relative_to(chunks)) for path in chunks.rglob("*") if path.is_dir()}
    assert directories == {"0", "1", "2", "3", "0/0", "1/1", "2/1", "3/1"}
    assert_same(zarr.open_array(str(mounted.path / "a"), mode="r")[:], native[:])
    shutil.rmtree(mounted.path / "a")
    assert os.listdir(mounted.path) == []


def test_chunk_files_that_a_killed_mount_left_aside_are_published_by_one_that_decodes(
    mount: Mounter, source: Path
) -> None:
    """They are encoded: they came before the document, on a mount without `--decode`."""
    made = zarr.create_array(str(source / "a"), shape=(4,), chunks=(2,), shards=(4,), dtype="u2", filters=None)
    aside = aside_of(source, "a", json.loads((source / "a/zarr.json").read_text())) / "c"
    aside.mkdir(parents=True)
    plain = zarr.create_array(str(source / "plain"), shape=(4,), chunks=(2,), dtype="u2", filters=None)
    plain[:2] = made[:2] = 7
    shutil.rmtree(source / "a/c")
    (source / "plain/c/0").rename(aside / "0")
    shutil.rmtree(source / "plain")
    mounted = mount(source, write=True, arguments=["--decode"])
    assert (mounted.path / "a/c/0").read_bytes() == np.array([7, 7], "u2").tobytes()
    mounted.unmount()
    assert made[:2].tolist() == [7, 7]
    assert not (source / ".shardfs").exists()
