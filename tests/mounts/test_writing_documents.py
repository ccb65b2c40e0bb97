"""Documents that programs write through a mount: what is stored, what is refused, and that they are read back."""

import errno
import json
import os
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.clients import ZARR2
from tests.support.corpus import GZIP, LITTLE, array, extension, sharding
from tests.support.datasets import files_below, store
from tests.support.mounting import Mount, Mounter, flush, refuses
from tests.support.readers import READERS, read_zarr
from tests.support.writers import WRITERS, assert_sound, document_of, tool

DOCUMENT = array((8, 12), (4, 6), sharding((2, 3), LITTLE))
KEY, LAST = "c/0/0", "c/3/3"
NBYTES = 24
VALUES = np.arange(1, 13, dtype="i4")


def edit(root: Path, **members: Any) -> None:
    """Write the document as it is shown, with other members."""
    (root / "zarr.json").write_text(json.dumps(document_of(root) | members))


def test_programs_that_have_a_document_open_publish_it_whole_one_after_another(mounted: Mount, root: Path) -> None:
    document = root / "zarr.json"
    for turn in range(3):
        text = json.dumps(document_of(root) | {"attributes": {"turn": turn, "word": "mine"}})
        one = os.open(document, os.O_RDWR | os.O_TRUNC)
        os.write(one, text.encode())
        os.fsync(one)
        os.stat(document)
        other = os.open(document, os.O_RDWR)
        os.pwrite(other, b"ours", text.index("mine"))
        os.close(other)
        assert document.read_text() == text.replace("mine", "ours")
        os.stat(document)
        os.pwrite(one, b" \n", len(text))
        os.close(one)
        assert document.read_text() == text + " \n"


def test_who_creates_a_document_exclusively_may_write_it_after_others_of_the_same_mount(mounted: Mount) -> None:
    (mounted.path / "exclusive").mkdir()
    document = mounted.path / "exclusive/zarr.json"
    first, second = (json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {"n": n}}) for n in (1, 2))
    one = os.open(document, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    document.write_text(first)
    os.write(one, second.encode())
    os.close(one)
    assert document.read_text() == second


# What is refused

BROKEN = {"empty": b"", "no JSON": b"{", "neither array nor group": b'{"zarr_format": 3}', "no text": b"\xff\xfe"}
OTHERS: dict[str, dict[str, Any]] = {
    "another data type": {"data_type": "float32"},
    "another chunk shape": {"chunk_grid": extension("regular", chunk_shape=[4, 3])},
    "other codecs": {"codecs": [LITTLE, GZIP]},
    "another key encoding": {"chunk_key_encoding": extension("v2", separator=".")},
    "another rank": {"shape": [8], "chunk_grid": extension("regular", chunk_shape=[2])},
    "a group": {"node_type": "group"},
    "another version": {"zarr_format": 4},
    "sharded, on top of chunks": DOCUMENT,
}


@pytest.mark.parametrize("what", [*BROKEN, *OTHERS])
def test_a_document_that_is_broken_or_changes_the_meaning_of_chunks_is_refused(
    mounted: Mount, root: Path, what: str
) -> None:
    text = BROKEN[what] if what in BROKEN else json.dumps(document_of(root) | OTHERS[what]).encode()
    shown, stored, log = files_below(root), files_below(mounted.source / root.name), mounted.log
    fd = os.open(root / "zarr.json", os.O_RDWR | os.O_TRUNC)
    try:
        os.write(fd, text)
        if text:
            with refuses(errno.EINVAL):
                os.fsync(fd)
        assert os.pread(fd, 10**4, 0) == text  # the writer still has it
        assert files_below(root) == shown
    finally:
        with suppress(OSError):
            os.close(fd)
    temporary = root / "zarr.0123.partial"
    temporary.write_bytes(text)
    with refuses(errno.EINVAL):
        os.rename(temporary, root / "zarr.json")
    assert temporary.read_bytes() == text
    temporary.unlink()
    assert files_below(root) == shown
    assert files_below(mounted.source / root.name) == stored
    assert f"{root.name}/zarr.json is refused: " in mounted.log[len(log) :]


EMPTIED = {
    "cp": "cp /dev/null {}",
    "truncate": "truncate -s 0 {}",
    "python": 'python3 -c \'open("{}", "w").close()\'',
}
LATE = {
    "redirected": "cat {new} > {document}",
    "a group of programs": "{{ true; cd .; sleep 0; env true; cat {new}; }} > {document}",
    "touched first": "touch {document} && cat {new} > {document}",
    "in pieces": "dd status=none bs=7 if={new} of={document}",
    "a parent that lets go": 'python3 -c \'import subprocess as s; f = open("{document}", "w"); '
    'p = s.Popen(["sh", "-c", "read x; cat {new}"], stdin=s.PIPE, stdout=f); f.close(); p.communicate(b"x\\n")\'',
}


@pytest.mark.parametrize(("view", "name"), [("v2", ".zarray"), ("v3", "zarr.json")])
def test_a_program_that_empties_a_document_fails_and_the_document_stays(
    mount: Mounter, tmp_path: Path, view: str, name: str
) -> None:
    """Unless it writes it after a while: shells and others close a file before they write it."""
    zarr.create_array(str(tmp_path / "source/array"), shape=(12,), chunks=(3,), shards=(6,), dtype="i4")
    mounted = mount(tmp_path / "source", write=True, arguments=[f"--view={view}"], expect=("document is empty",))
    (mounted.path / "new").mkdir()

    def run(command: str) -> str:
        done = subprocess.run(["sh", "-c", command], cwd=mounted.path, capture_output=True, text=True, check=False)
        return done.stderr

    before = (mounted.path / "array" / name).read_bytes()
    for what, command in EMPTIED.items():
        for path in (f"array/{name}", f"new/{name}"):
            assert "Invalid argument" in run(command.format(path)), (what, path)
    run(f": > array/{name}")  # a shell does not look
    assert (mounted.path / "array" / name).read_bytes() == before
    assert os.listdir(mounted.path / "new") == []
    (tmp_path / "text").write_bytes(before + b" ")
    for number, (what, command) in enumerate(LATE.items()):
        for path in (f"array/{name}", f"new-{number}/{name}"):
            (mounted.path / path).parent.mkdir(exist_ok=True)
            assert run(command.format(new=tmp_path / "text", document=path)) == "", what
            assert (mounted.path / path).read_bytes() == before + b" ", what
    assert document_of(tmp_path / "source/array")["codecs"][0]["name"] == "sharding_indexed"


# What is stored


def test_attributes_and_names_of_axes_are_edited_and_the_document_stays_sharded(mounted: Mount, root: Path) -> None:
    stored, numbers = mounted.source / root.name, [path.stat().st_ino for path in sorted(root.glob("c/*/*"))]
    before = document_of(stored)
    edit(root, attributes={"colour": "blue"}, dimension_names=["y", None])
    assert document_of(stored) == before | {"attributes": {"colour": "blue"}, "dimension_names": ["y", None]}
    assert [path.stat().st_ino for path in sorted(root.glob("c/*/*"))] == numbers


def test_a_shrink_removes_chunks_for_good_and_open_files_keep_their_version(mounted: Mount, root: Path) -> None:
    stored, old = mounted.source / root.name, (root / LAST).read_bytes()
    values = read_zarr(stored)
    inside, outside = (os.open(root / name, os.O_RDONLY) for name in ("c/0", "c/3"))
    with (root / LAST).open("rb", buffering=0) as file:
        (root / LAST).write_bytes(b"\1" * NBYTES)  # pending, and outside
        for name in ("c/0/temporary", "c/3/temporary"):
            (root / name).write_bytes(b"1")
        edit(root, shape=[3, 7])
        with refuses(errno.ESTALE):
            os.listdir(outside)
        assert file.read() == old
    names = [sorted(os.listdir(directory)) for directory in (root / "c", root / "c/0", inside)]
    assert names == [["0", "1"], ["0", "1", "2", "temporary"], ["0", "1", "2", "temporary"]]
    for directory in (inside, outside):
        os.close(directory)
    edit(root, shape=[8, 12])
    expected = np.zeros_like(values)
    expected[:4, :9] = values[:4, :9]
    assert np.array_equal(read_zarr(root), expected)
    flush(root.parent)
    for read in READERS.values():
        assert np.array_equal(read(stored), expected)
    assert not (stored / "c/1/1").exists()
    with refuses(errno.ENOTEMPTY):
        os.rmdir(root / "c/0")
    (root / "zarr.json").unlink()
    subprocess.run(["rm", "-r", root], check=True)
    assert not (mounted.source / ".shardfs/0/scratch" / root.name).exists()
    assert not stored.exists()


def test_a_program_works_on_in_a_directory_of_chunks_when_the_shape_changes(root: Path) -> None:
    directory = os.open(root / "c/1", os.O_RDONLY)
    for number, shape in enumerate([[3, 7], [8, 12], [4, 40]]):
        edit(root, shape=shape)
        content = bytes([number]) * NBYTES
        for name in ("0", "2"):
            with os.fdopen(os.open(name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, dir_fd=directory), "wb") as file:
                file.write(content)
        os.rename("2", "1", src_dir_fd=directory, dst_dir_fd=directory)
        os.unlink("0", dir_fd=directory)
        assert (root / "c/1/1").read_bytes() == content
        assert sorted(os.listdir(directory)) == sorted(os.listdir(root / "c/1"))
        assert not (root / "c/1/0").exists()
    os.close(directory)


def test_a_shrink_whose_document_could_not_be_stored_is_not_finished_later(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    store(source / "a", DOCUMENT)
    mounted = mount(source, write=True, bound_by_modes=True, expect=("permission|Permission|EACCES",))
    (source / "a").chmod(0o555)
    with pytest.raises(PermissionError):
        edit(mounted.path / "a", shape=[4, 6])
    (source / "a").chmod(0o755)
    mounted.unmount()
    assert not (source / ".shardfs").exists()


def test_an_array_whose_sharded_document_could_not_be_stored_is_shown_unsharded_still(
    mount: Mounter, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    zarr.create_array(str(source / "a"), shape=(12,), chunks=(3,), shards=(6,), dtype="i4")
    root = mount(source, write=True, bound_by_modes=True, expect=("permission|Permission|EACCES",)).path / "a"
    shown = document_of(root)
    (source / "a").chmod(0o555)
    with pytest.raises(PermissionError):
        (root / "zarr.json").write_bytes((source / "a/zarr.json").read_bytes())
    (source / "a").chmod(0o755)
    assert document_of(root) == shown
    zarr.open_array(str(root))[:] = VALUES
    flush(root.parent)
    assert np.array_equal(read_zarr(source / "a"), VALUES)


def test_a_directory_without_its_document_stays_that_array_until_it_is_empty(mounted: Mount, root: Path) -> None:
    chunks = files_below(root / "c")
    (root / "zarr.json").unlink()
    assert os.listdir(root) == ["c"]
    assert files_below(root / "c") == chunks
    (root / KEY).write_bytes(b"1" * NBYTES)
    with refuses(errno.ENOTEMPTY):
        os.rmdir(root)
    shutil.rmtree(root / "c")
    assert os.listdir(mounted.source / root.name) == []
    assert os.listdir(root) == []
    (root / "c").mkdir()  # it is a directory like any other
    (root / "c/file").write_bytes(b"1")
    assert (mounted.source / root.name / "c/file").read_bytes() == b"1"


@pytest.mark.parametrize("end", ["flush", "umount", "another document"])
def test_the_removed_document_of_an_array_is_stored_until_all_is_committed(
    mount: Mounter, tmp_path: Path, end: str
) -> None:
    """If the mount is killed before, the array is there: nothing else says how it is sharded."""
    store(tmp_path / "source/a", DOCUMENT)
    mounted = mount(tmp_path / "source", write=True, metadata_ttl=0)
    root, stored = mounted.path / "a", tmp_path / "source/a/zarr.json"
    other = json.loads(stored.read_text()) | {"attributes": {"natively": 1}}
    (root / "zarr.json").unlink()
    assert os.listdir(root) == ["c"]
    for look in (os.stat, Path.unlink):
        with pytest.raises(FileNotFoundError):
            look(root / "zarr.json")
    assert stored.exists()
    if end == "another document":
        stored.write_text(json.dumps(other))
        assert document_of(root)["attributes"] == {"natively": 1}
    elif end == "flush":
        flush(mounted.path)
        assert not stored.exists()
    mounted.unmount()
    assert stored.exists() == (end == "another document")


def test_a_directory_may_replace_an_array_that_has_neither_document_nor_chunks(mounted: Mount, root: Path) -> None:
    document = array((4,), (2,), sharding((1,)), data_type="uint8", chunk_key_encoding=extension("v2", separator="."))
    for name in ("old", "new"):
        store(mounted.source / root.name / name, document)
    for path in sorted((root / "old").iterdir()):
        path.unlink()
    os.rename(root / "new", root / "old")
    assert document_of(mounted.source / root.name / "old") == document
    assert len(files_below(root / "old")) == 5


def test_a_directory_that_cannot_replace_an_array_leaves_it_as_it_is(mounted: Mount, root: Path) -> None:
    """Its document was removed, and is the only one that says how its chunks are sharded."""
    (mounted.path / "new").mkdir()
    (root / "zarr.json").unlink()
    chunks = files_below(root / "c")
    with refuses(errno.ENOTEMPTY):
        os.rename(mounted.path / "new", root)
    assert (mounted.source / root.name / "zarr.json").exists()
    assert files_below(root / "c") == chunks


def test_a_directory_without_its_document_gets_none_that_changes_chunks(mounted: Mount, root: Path) -> None:
    shown, stored = document_of(root), document_of(mounted.source / root.name)
    (root / "zarr.json").unlink()
    for other in (shown | {"data_type": "float64"}, stored):  # a sharded array, on top of chunks
        with refuses(errno.EINVAL):
            (root / "zarr.json").write_text(json.dumps(other))
    (root / "zarr.json").write_text(json.dumps(shown))
    assert document_of(mounted.source / root.name) == stored
    assert len(files_below(root / "c")) == 16


@pytest.mark.parametrize("view", ["v2", "v3"])
def test_an_array_without_chunks_stays_sharded_when_it_is_written_again(
    mount: Mounter, tmp_path: Path, view: str
) -> None:
    source = tmp_path / "source"
    zarr.create_array(str(source / "z"), shape=(12,), chunks=(3,), shards=(6,), dtype="i4", attributes={"a": 1})
    stored = document_of(source / "z")
    mounted = mount(source, write=True, arguments=[f"--view={view}"])
    documents = sorted(files_below(mounted.path / "z").items())
    for order in (documents, documents[::-1]):
        for name, _ in order:
            (mounted.path / "z" / name).unlink()
        for name, data in order:
            (mounted.path / "z" / name).write_bytes(data)
        assert document_of(source / "z") == stored
        assert dict(documents) == files_below(mounted.path / "z")
    mounted.unmount()
    assert document_of(source / "z") == stored


@pytest.mark.parametrize("name", ["a", "empty"])
def test_an_editor_that_renames_a_document_may_change_the_shape(mount: Mounter, tmp_path: Path, name: str) -> None:
    source = tmp_path / "source"
    store(source / "a", DOCUMENT)
    zarr.create_array(str(source / "empty"), shape=(8, 12), chunks=(2, 3), shards=(4, 6), dtype="i4")
    root, stored = mount(source, write=True).path / name, document_of(source / name)
    text = json.dumps(document_of(root) | {"shape": [4, 6]})
    (root / "zarr.json").rename(root / "zarr.json~")
    with (root / "zarr.json").open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    (root / "zarr.json~").unlink()
    assert document_of(source / name) == stored | {"shape": [4, 6]}
    assert (root / "zarr.json").read_text() == text


@pytest.mark.parametrize("change", [{"data_type": "float32"}, {"node_type": "group"}], ids=str)
def test_another_document_makes_another_node_of_an_array_without_chunks(
    mount: Mounter, tmp_path: Path, change: dict[str, Any]
) -> None:
    source = tmp_path / "source"
    zarr.create_array(str(source / "z"), shape=(12,), chunks=(3,), shards=(6,), dtype="i4")[0:3] = 7
    root = mount(source, write=True, expect=("is refused",)).path / "z"
    document = {"zarr_format": 3, **change} if "node_type" in change else document_of(root) | change
    (root / "zarr.json").unlink()
    with refuses(errno.EINVAL):
        (root / "zarr.json").write_text(json.dumps(document))
    (root / "c/0").unlink()
    (root / "zarr.json").write_text(json.dumps(document))
    assert document_of(root) == document_of(source / "z") == document


@pytest.mark.parametrize("writer", ["zarr", "tensorstore"])
def test_a_sharded_array_that_is_created_through_the_mount_is_shown_as_stored(
    mount: Mounter, tmp_path: Path, writer: str
) -> None:
    """Also in consolidated metadata, by which libraries read the same values as by the arrays' own documents."""

    def check(root: Path) -> None:
        group = zarr.open_group(str(root), mode="r", use_consolidated=True)
        for name in ("z", "below/z", "plain"):
            assert document_of(root)["consolidated_metadata"]["metadata"][name] == document_of(root / name)
            opened = group[name]
            assert isinstance(opened, zarr.Array)
            assert np.array_equal(np.asarray(opened[...]), VALUES)

    source = tmp_path / "source"
    source.mkdir()
    mounted = mount(source, write=True)
    group = zarr.create_group(str(mounted.path / "data.zarr"))
    for name in ("z", "below/z", "plain"):
        shards = None if name == "plain" else (6,)
        group.create_array(name, shape=VALUES.shape, chunks=(3,), shards=shards, dtype=VALUES.dtype)
        WRITERS[writer](mounted.path / "data.zarr" / name, VALUES)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata")
        zarr.consolidate_metadata(str(mounted.path / "data.zarr"))
    check(mounted.path / "data.zarr")
    (mounted.path / "data.zarr").rename(mounted.path / "moved.zarr")
    check(mounted.path / "moved.zarr")
    assert files_below(mounted.path / "moved.zarr") == files_below(source / "moved.zarr")
    mounted.unmount()
    check(source / "moved.zarr")
    assert_sound(source)
    again = mount(source, write=True).path / "moved.zarr"
    check(again)
    assert len(files_below(again / "z/c")) == 4


def test_a_directory_that_becomes_one_of_chunks_stays_usable_while_open(mount: Mounter, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    root = mount(tmp_path / "source", write=True, shards="2").path / "array"
    (root / "c/0").mkdir(parents=True)
    directory = os.open(root / "c/0", os.O_RDONLY | os.O_DIRECTORY)
    (root / "c/0/0").write_bytes(b"abcd")
    (root / "zarr.json").write_text(json.dumps(array((4, 4), (2, 2), {"name": "bytes"}, data_type="uint8")))
    with os.fdopen(os.open("1", os.O_CREAT | os.O_WRONLY, dir_fd=directory), "wb") as file:
        file.write(b"efgh")
    assert os.fstat(directory).st_ino == (root / "c/0").stat().st_ino
    assert sorted(os.listdir(directory)) == ["0", "1"]
    os.close(directory)
    flush(root.parent)
    assert read_zarr(tmp_path / "source/array")[:2].tobytes() == b"abefcdgh"


# What is read back


def respelled(document: Any) -> Any:
    """What other libraries, or other versions of one, write of the same array."""
    if isinstance(document, list):
        return [respelled(value) for value in document]
    if not isinstance(document, dict):
        return document
    if document.get("name") == "bytes":
        return {"name": "bytes", "configuration": {"endian": "little"}}
    if document == {"name": "default", "configuration": {"separator": "/"}}:
        return {"name": "default"}
    return {name: respelled(value) for name, value in reversed(document.items())}


@pytest.fixture
def plain(tmp_path: Path, view: str) -> Path:
    """A consolidated group of two arrays that are not sharded, in other spellings than ours."""
    path, version = tmp_path / "plain", int(view[1])
    zarr.create_group(str(path), zarr_format=version)  # type: ignore[arg-type]
    for name, dtype in (("a", "u1"), ("b", "i4")):
        values = VALUES.astype(dtype)
        zarr.create_array(str(path), name=name, data=values, chunks=(3,), zarr_format=version)  # type: ignore[arg-type]
        if version == 2:
            document = json.loads((path / name / ".zarray").read_text())
            del document["dimension_separator"]
            (path / name / ".zarray").write_text(json.dumps(document | {"order": "F"}))
            (path / name / ".zattrs").write_text("{}" if name == "a" else '{"a": 1}')
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata")
        zarr.consolidate_metadata(str(path))
    if version == 3:
        (path / "zarr.json").write_text(json.dumps(respelled(document_of(path))))
    for age, key in enumerate(sorted(files_below(path))):
        os.utime(path / key, ns=(0, 10**18 + age * 10**10))
    return path


@pytest.mark.parametrize(
    ("view", "copier"),
    [("v2", ("rsync", "-a")), ("v3", ("rsync", "-a", "--inplace")), ("v3", ("rclone", "--config=", "copy"))],
)
def test_a_copier_finds_what_it_has_copied(
    mount: Mounter, tmp_path: Path, plain: Path, view: str, copier: tuple[str, ...]
) -> None:
    """Sizes, times and contents are those of the files that it copied, also of several documents of one node."""
    if not shutil.which(copier[0]):
        pytest.skip(f"{copier[0]} is not installed")
    (tmp_path / "source").mkdir()
    mounted = mount(tmp_path / "source", write=True, shards="2", arguments=[f"--view={view}"])
    for _ in range(2):
        tool(*copier, f"{plain}/", mounted.path / "copy/")
        assert files_below(mounted.path / "copy") == files_below(plain)
    for key in files_below(plain):
        assert (mounted.path / "copy" / key).stat().st_mtime_ns == (plain / key).stat().st_mtime_ns, key
    if copier[0] == "rsync":
        again = tool(*copier, "--itemize-changes", "--no-perms", f"{plain}/", mounted.path / "copy/").decode()
        assert [line for line in again.splitlines() if line[1] == "f"] == []
    mounted.unmount()
    for name in ("a", "b"):
        copied = zarr.open_array(str(tmp_path / "source/copy" / name), mode="r", zarr_format=3)
        assert copied.shards == (6,)
        assert np.array_equal(np.asarray(copied[...]), VALUES)


def test_misleading_texts_of_documents_are_not_shown(mount: Mounter, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    mounted = mount(tmp_path / "source", write=True, shards="2", arguments=["--view=v2", "--dimension-separator=/"])
    (mounted.path / "array").mkdir()
    zarray = mounted.path / "array/.zarray"
    document = {"zarr_format": 2, "shape": [6, 4], "chunks": [2, 2], "dtype": "<i2", "compressor": None}
    document |= {"fill_value": 7, "order": "C", "filters": None}  # without a separator it is "." to readers
    for changes in ({"dimension_separator": "/"}, {}, {"fill_value": None, "dimension_separator": "/"}):
        zarray.write_text(json.dumps(document | changes))
        shown = json.loads(zarray.read_text())
        assert (shown["dimension_separator"], shown["fill_value"]) == ("/", 7)


# Programs that have a document open


@pytest.mark.parametrize(("view", "name"), [("v3", "zarr.json"), ("v2", ".zattrs")])
def test_opening_a_document_gives_its_current_version_despite_older_handles(
    mount: Mounter, tmp_path: Path, view: str, name: str
) -> None:
    store(tmp_path / "source", DOCUMENT | {"attributes": {"before": 1}})
    path = mount(tmp_path / "source", write=True, metadata_ttl=0, arguments=[f"--view={view}"]).path / name
    with path.open("r+b"):
        zarr.open_array(tmp_path / "source").update_attributes({"natively": 1})
        with path.open("r+") as other:
            document = json.load(other)
            document.get("attributes", document)["through the mount"] = 1
            other.seek(0)
            json.dump(document, other)
            other.truncate()
    assert document_of(tmp_path / "source")["attributes"].keys() >= {"natively", "through the mount"}


# Consolidated metadata of Zarr v2

CONSOLIDATE = "import sys, zarr; zarr.consolidate_metadata(zarr.DirectoryStore(sys.argv[1]))"


@pytest.fixture(params=[False, True], ids=["first", "again"])
def group(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Arrays with and without a v2 form in a group, which may be consolidated."""
    root = zarr.create_group(str(tmp_path / "source"))
    for name, order in (("a", (0, 1, 2)), ("b/c", (0, 1, 2)), ("odd", (1, 0, 2)), ("b/odd", (1, 0, 2))):
        filters = [zarr.codecs.TransposeCodec(order=order)]
        root.create_array(name, dtype="i4", filters=filters, shape=(4, 4, 4), chunks=(2, 2, 2), shards=(4, 4, 4))[:] = 7
    if request.param:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Consolidated metadata")
            zarr.consolidate_metadata(str(tmp_path / "source"))
    return tmp_path / "source"


@pytest.fixture
def consolidated(group: Path) -> Iterator[dict[str, Any]]:
    """The arrays that readers of consolidated metadata find in the end."""
    found: dict[str, Any] = {}
    yield found
    copies = document_of(group)["consolidated_metadata"]["metadata"]
    assert {name for name, copy in copies.items() if copy["node_type"] == "array"} == set(found)
    for name, value in found.items():
        assert copies[name] == document_of(group / name)
        assert (read_zarr(group / name) == value).all()


def test_consolidated_metadata_of_v2_hides_no_array_from_others(
    mount: Mounter, group: Path, consolidated: dict[str, Any]
) -> None:
    mounted = mount(group, write=True, arguments=["--view=v2"])
    ZARR2.run(CONSOLIDATE, mounted.path)
    mounted.unmount()
    consolidated |= dict.fromkeys(("a", "b/c", "odd", "b/odd"), 7)


def test_consolidated_metadata_of_v2_that_leaves_an_array_out_is_refused(
    mount: Mounter, group: Path, consolidated: dict[str, Any]
) -> None:
    root = mount(group, write=True, arguments=["--view=v2"], expect=(r"it leaves out \S+, which",)).path
    whole = {
        str(path.relative_to(root)): json.loads(path.read_text())
        for path in root.rglob(".z*")
        if path.name != ".zmetadata"
    }

    def consolidate(without: str | None) -> None:
        copies = {key: copy for key, copy in whole.items() if key.rpartition("/")[0] != without}
        (root / ".zmetadata").write_text(json.dumps({"zarr_consolidated_format": 1, "metadata": copies}))

    stored = document_of(group)
    for missing in ("a", "b/c", "b"):
        with refuses(errno.EINVAL):
            consolidate(without=missing)
        assert document_of(group) == stored
    consolidate(without=None)
    shutil.rmtree(root / "a")
    consolidate(without="a")
    consolidated |= dict.fromkeys(("b/c", "odd", "b/odd"), 7)


def test_a_node_with_the_name_of_a_document_is_refused(mounted: Mount) -> None:
    """Zarr forbids it: who lists the parent would take one for the other."""
    for parent in ("", "forbidden/"):
        (mounted.path / parent).mkdir(exist_ok=True)
        with refuses(errno.EINVAL):
            (mounted.path / parent / "zarr.json").mkdir()
        (mounted.path / parent / "other").mkdir()
        with suppress(OSError):  # whatever the reason, it stays where it was
            (mounted.path / parent / "other").rename(mounted.path / parent / "zarr.json")
        assert (mounted.path / parent / "other").is_dir()
        assert not (mounted.path / parent / "zarr.json").exists()
        (mounted.path / parent / "other").rmdir()
    assert "Zarr forbids nodes with this name" in mounted.log


def test_a_new_array_with_chunks_of_length_0_is_refused_and_an_old_one_is_edited(
    mounted: Mount, tmp_path: Path
) -> None:
    plain = array((0, 4), (0, 4), LITTLE)
    for name, document in (("plain", plain), ("sharded", array((0, 4), (0, 4), sharding((2, 2))))):
        (mounted.path / f"empty-{name}").mkdir()
        with refuses(errno.EINVAL):
            (mounted.path / f"empty-{name}/zarr.json").write_text(json.dumps(document))
        assert not (mounted.source / f"empty-{name}/zarr.json").exists()  # type: ignore[operator]
    assert "chunks of length 0" in mounted.log
    old = mounted.source / "empty-old"  # type: ignore[operator]
    old.mkdir()
    (old / "zarr.json").write_text(json.dumps(plain))
    edit(mounted.path / "empty-old", attributes={"kept": True})
    assert document_of(old) == {**plain, "attributes": {"kept": True}}
