"""Metadata documents that programs write through a mount: what they say there, and that they are read back."""

import json
import os
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.clients import ZARR2
from tests.support.corpus import LITTLE, array, sharding
from tests.support.datasets import files_below, store
from tests.support.mounting import Mounter
from tests.support.writers import WRITERS, assert_sound, document_of, tool

VALUES = np.arange(1, 13, dtype="i4")
SHARDED = ("z", "group/z", "group/deep/z")
PLAIN = ("plain", "group/plain")


@pytest.fixture(autouse=True)
def _consolidated() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata")
        yield


def make(path: Path, writer: str = "zarr", *, group: str | None = None) -> None:
    """A group with arrays that are sharded and arrays that are not, consolidated; *group* below it too."""
    root = zarr.create_group(str(path))
    for name in SHARDED + PLAIN:
        shards = (6,) if name in SHARDED else None
        root.create_array(name, shape=VALUES.shape, chunks=(3,), shards=shards, dtype=VALUES.dtype)
        WRITERS[writer](path / name, VALUES)
    zarr.consolidate_metadata(str(path))
    if group is not None:
        zarr.consolidate_metadata(str(path), path=group)


def copies_of(document: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, copy in document.get("consolidated_metadata", {}).get("metadata", {}).items():
        yield prefix + name, {member: value for member, value in copy.items() if member != "consolidated_metadata"}
        yield from copies_of(copy, f"{prefix}{name}/")


def assert_consolidated(path: Path) -> None:
    """What readers of consolidated metadata read is right, and what it says is what the documents say."""
    for group in ("", "group"):
        for relative, copy in copies_of(document_of(path / group)):
            own = document_of(path / group / relative)
            own.pop("consolidated_metadata", None)
            assert copy == own, (group, relative)
        opened = zarr.open_group(str(path / group), mode="r", use_consolidated=True if not group else None)
        for name in SHARDED + PLAIN:
            if name.startswith(group):
                array = opened[name.removeprefix(group).lstrip("/")]
                assert isinstance(array, zarr.Array)
                assert np.array_equal(np.asarray(array[...]), VALUES), name
                assert np.array_equal(np.asarray(array[6:12]), VALUES[6:12]), name


@pytest.mark.parametrize(("writer", "shards"), [("zarr", None), ("tensorstore", "2")])
def test_copies_of_arrays_that_are_shown_as_stored_say_what_their_documents_say(
    mount: Mounter, tmp_path: Path, writer: str, shards: str | None
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    mounted = mount(source, write=True, shards=shards)
    path = mounted.path / "data.zarr"
    make(path, writer, group="group")
    assert_consolidated(path)
    zarr.open_array(str(path / "z"), mode="r+").attrs["edited"] = 1
    zarr.consolidate_metadata(str(path))
    assert_consolidated(path)
    path.rename(mounted.path / "moved.zarr")
    assert_consolidated(mounted.path / "moved.zarr")
    mounted.unmount()
    assert_consolidated(source / "moved.zarr")
    assert_sound(source)
    assert_consolidated(mount(source, write=True, shards=shards).path / "moved.zarr")


V2_NAMES = {".zarray", ".zattrs", ".zgroup", ".zmetadata"}
V2_ARRAY = {
    "zarr_format": 2,
    "shape": [6],
    "chunks": [2],
    "dtype": "<i2",
    "compressor": None,
    "fill_value": 0,
    "order": "C",
    "filters": None,
}


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


@pytest.mark.parametrize(
    ("changes", "is_new"),
    [
        ({"order": "F", "filters": []}, True),
        ({"dtype": "|u1", "compressor": {"id": "zlib"}}, False),
        ({"dtype": "<f4", "fill_value": "NaN"}, True),
        ({"fill_value": None, "dimension_separator": "."}, False),
        ({"shape": [6, 4], "chunks": [2, 2]}, True),
        ({"another": "member"}, False),
    ],
    ids=str,
)
def test_a_zarray_is_read_back_as_it_was_written(
    mount: Mounter, tmp_path: Path, changes: dict[str, Any], is_new: bool
) -> None:
    (tmp_path / "source").mkdir()
    mounted = mount(tmp_path / "source", write=True, shards="2", arguments=["--view=v2"])
    array = mounted.path / "array"
    array.mkdir()
    texts = {".zattrs": "{ }", ".zarray": json.dumps(V2_ARRAY | changes)}
    if not is_new:
        (array / ".zarray").write_text(json.dumps(V2_ARRAY | changes | {"dimension_separator": "."}, indent=9))
    for name, text in texts.items():
        (array / name).write_text(text)
        assert (array / name).read_text() == text
    assert document_of(tmp_path / "source/array")["codecs"][0]["name"] == "sharding_indexed"
    for name, text in texts.items():
        assert (array / name).read_text() == text
        assert (array / name).stat().st_size == len(text)
    assert sorted(os.listdir(array)) == [".zarray", ".zattrs"]
    shutil.rmtree(array)
    assert os.listdir(tmp_path / "source") == [".shardfs"]
    array.mkdir()
    (array / ".zarray").write_text(texts[".zarray"])
    assert os.listdir(array) == [".zarray"]  # nothing comes back


def test_a_text_that_readers_would_take_for_something_else_is_not_shown(mount: Mounter, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    mounted = mount(tmp_path / "source", write=True, shards="2", arguments=["--view=v2", "--dimension-separator=/"])
    array = mounted.path / "array"
    array.mkdir()
    document = V2_ARRAY | {"shape": [6, 4], "chunks": [2, 2], "fill_value": 7, "dimension_separator": "/"}
    (array / ".zarray").write_text(json.dumps(document))
    del document["dimension_separator"]  # which readers take for "."
    (array / ".zarray").write_text(json.dumps(document))
    assert json.loads((array / ".zarray").read_text())["dimension_separator"] == "/"
    (array / ".zarray").write_text(json.dumps(document | {"fill_value": None, "dimension_separator": "/"}))
    assert json.loads((array / ".zarray").read_text())["fill_value"] == 7


@pytest.mark.parametrize(
    ("view", "copier"),
    [
        ("v2", "rsync -a"),
        ("v3", "rsync -a --inplace"),
        ("v3", "rclone copy"),
    ],
)
def test_a_copier_finds_what_it_has_copied(mount: Mounter, tmp_path: Path, view: str, copier: str) -> None:
    """Sizes, times and contents are those of the files that it copied, also of several documents of one node."""
    if not shutil.which(copier.split()[0]):
        pytest.skip(f"{copier.split()[0]} is not installed")
    plain = tmp_path / "plain"
    zarr.create_group(str(plain), zarr_format=int(view[1]))  # type: ignore[arg-type]
    for name, dtype in (("a", "u1"), ("b", "i4")):
        zarr.create_array(str(plain), name=name, data=VALUES.astype(dtype), chunks=(3,), zarr_format=int(view[1]))  # type: ignore[arg-type]
    if view == "v2":
        for name in ("a", "b"):
            document = json.loads((plain / name / ".zarray").read_text())
            del document["dimension_separator"]
            (plain / name / ".zarray").write_text(json.dumps(document | {"order": "F"}))
        (plain / "a/.zattrs").write_text("{}")
        (plain / "b/.zattrs").write_text('{"a": 1}')
    zarr.consolidate_metadata(str(plain))
    if view == "v3":
        (plain / "zarr.json").write_text(json.dumps(respelled(document_of(plain))))
    for age, key in enumerate(sorted(files_below(plain))):
        os.utime(plain / key, ns=(0, 10**18 + age * 10**10))
    (tmp_path / "source").mkdir()
    mounted = mount(tmp_path / "source", write=True, shards="2", arguments=[f"--view={view}"])
    options = ["--config="] if copier.startswith("rclone") else []
    for _ in range(2):
        tool(*copier.split(), *options, f"{plain}/", mounted.path / "copy/")
        assert files_below(mounted.path / "copy") == files_below(plain)
    for key in files_below(plain):
        assert (mounted.path / "copy" / key).stat().st_mtime_ns == (plain / key).stat().st_mtime_ns, key
    if copier.startswith("rsync"):
        again = tool(*copier.split(), "--itemize-changes", "--no-perms", f"{plain}/", mounted.path / "copy/").decode()
        assert [line for line in again.splitlines() if line[1] == "f"] == []
    mounted.unmount()
    opened = zarr.open_group(str(tmp_path / "source/copy"), mode="r", zarr_format=3)
    for name in ("a", "b"):
        array = opened[name]
        assert isinstance(array, zarr.Array)
        assert array.shards == (6,)
        assert np.array_equal(np.asarray(array[...]), VALUES)


EMPTIED = {
    "cp": "cp /dev/null {}",
    "truncate": "truncate -s 0 {}",
    "tee": "tee {} < /dev/null",
    "python": 'python3 -c \'open("{}", "w").close()\'',
    "unlink first": "cp --remove-destination /dev/null {}",
}
LATE = {
    "redirected": "cat {new} > {document}",
    "a group of programs": "{{ true; cd .; sleep 0; env true; cat {new}; }} > {document}",
    "touched first": "touch {document} && cat {new} > {document}",
    "dd": "dd status=none if={new} of={document}",
    "in pieces": "dd status=none bs=7 if={new} of={document}",
    "a parent that lets go": 'python3 -c \'import subprocess as s; f = open("{document}", "w"); '
    'p = s.Popen(["sh", "-c", "read x; cat {new}"], stdin=s.PIPE, stdout=f); f.close(); p.communicate(b"x\\n")\'',
}


@pytest.mark.parametrize(("view", "shell"), [("v2", "bash"), ("v3", "dash")])
def test_who_empties_a_document_is_told_and_it_stays(mount: Mounter, tmp_path: Path, view: str, shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    zarr.create_array(str(tmp_path / "source/array"), shape=(12,), chunks=(3,), shards=(6,), dtype="i4")
    mounted = mount(tmp_path / "source", write=True, arguments=[f"--view={view}"], expect=("document is empty",))
    name = "zarr.json" if view == "v3" else ".zarray"
    (mounted.path / "new").mkdir()

    def runs(command: str) -> str | None:
        done = subprocess.run([shell, "-c", command], cwd=mounted.path, capture_output=True, text=True, check=False)
        return None if done.returncode == 0 and not done.stderr else done.stderr

    before = (mounted.path / "array" / name).read_bytes()
    for what, command in EMPTIED.items():
        for path in (f"array/{name}", f"new/{name}"):
            if what == "unlink first" and path.startswith("array"):
                continue
            assert "Invalid argument" in (runs(command.format(path)) or ""), (what, path)
    runs(f": > array/{name}")  # a shell does not look
    assert (mounted.path / "array" / name).read_bytes() == before
    assert os.listdir(mounted.path / "new") == []
    (tmp_path / "text").write_bytes(before + b" ")
    for number, (what, command) in enumerate(LATE.items()):
        for path in (f"array/{name}", f"new-{number}/{name}"):
            (mounted.path / path).parent.mkdir(exist_ok=True)
            assert runs(command.format(new=tmp_path / "text", document=path)) is None, what
            assert (mounted.path / path).read_bytes() == before + b" ", what
    assert document_of(tmp_path / "source/array")["codecs"][0]["name"] == "sharding_indexed"


@pytest.mark.parametrize("view", ["v2", "v3"])
def test_an_array_without_chunks_stays_sharded_when_it_is_unpacked_again(
    mount: Mounter, tmp_path: Path, view: str
) -> None:
    source = tmp_path / "source"
    attributes = {"a": 1}
    zarr.create_array(str(source / "z"), shape=(12,), chunks=(3,), shards=(6,), dtype="i4", attributes=attributes)
    stored = document_of(source / "z")
    mounted = mount(source, write=True, arguments=[f"--view={view}"])
    tool("tar", "-cf", tmp_path / "all.tar", "z", cwd=mounted.path)
    for _ in range(2):
        tool("tar", "-xf", tmp_path / "all.tar", cwd=mounted.path)
        assert document_of(source / "z") == stored
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


@pytest.mark.parametrize("change", [{"shape": [9]}, {"data_type": "float32"}, {"node_type": "group"}], ids=str)
def test_another_document_makes_another_node_of_an_array_without_chunks(
    mount: Mounter, tmp_path: Path, change: dict[str, Any]
) -> None:
    source = tmp_path / "source"
    zarr.create_array(str(source / "z"), shape=(12,), chunks=(3,), shards=(6,), dtype="i4")[0:3] = 7
    mounted = mount(source, write=True, expect=("is refused",))
    document = document_of(mounted.path / "z") | change
    if "node_type" in change:
        document = {"zarr_format": 3, **change}
    (mounted.path / "z/zarr.json").unlink()
    if "shape" not in change:
        with pytest.raises(OSError, match="Invalid argument"):
            (mounted.path / "z/zarr.json").write_text(json.dumps(document))
    (mounted.path / "z/c/0").unlink()
    with pytest.raises(OSError, match="Invalid argument"):
        (mounted.path / "z/zarr.json").write_text("{}")
    (mounted.path / "z/zarr.json").write_text(json.dumps(document))
    assert document_of(mounted.path / "z") == document_of(source / "z") == document


CONSOLIDATE = "import sys, zarr; zarr.consolidate_metadata(zarr.DirectoryStore(sys.argv[1]))"


@pytest.mark.parametrize("is_consolidated", [False, True], ids=["first", "again"])
def test_consolidated_metadata_of_v2_hides_no_array_from_others(
    mount: Mounter, tmp_path: Path, is_consolidated: bool
) -> None:
    source = tmp_path / "source"
    root = zarr.create_group(str(source))
    for name, order in (("shown", (0, 1, 2)), ("no-v2-form", (1, 0, 2)), ("group/no-v2-form", (1, 0, 2))):
        filters = [zarr.codecs.TransposeCodec(order=order)]
        shape = {"shape": (4, 4, 4), "chunks": (2, 2, 2), "shards": (4, 4, 4)}
        root.create_array(name, dtype="i4", filters=filters, **shape)[...] = 7  # type: ignore[arg-type]
    if is_consolidated:
        zarr.consolidate_metadata(str(source))
    mounted = mount(source, write=True, arguments=["--view=v2"])
    ZARR2.run(CONSOLIDATE, mounted.path)
    mounted.unmount()
    opened = zarr.open_group(str(source), mode="r", use_consolidated=True)
    for name in ("shown", "no-v2-form", "group/no-v2-form"):
        array = opened[name]
        assert isinstance(array, zarr.Array)
        assert np.asarray(array[...]).min() == 7
        assert document_of(source)["consolidated_metadata"]["metadata"][name] == document_of(source / name)


@pytest.mark.parametrize("is_consolidated", [False, True], ids=["first", "again"])
def test_consolidated_metadata_of_v2_that_leaves_an_array_out_is_refused(
    mount: Mounter, tmp_path: Path, is_consolidated: bool
) -> None:
    source = tmp_path / "source"
    root = zarr.create_group(str(source))
    for name in ("a", "group/deep/b"):
        root.create_array(name, shape=(4,), chunks=(2,), shards=(4,), dtype="i4")[...] = 7
    if is_consolidated:
        zarr.consolidate_metadata(str(source))
    mounted = mount(source, write=True, arguments=["--view=v2"], expect=(r"it leaves out \S+, which",))
    seen = {key: data for key, data in files_below(mounted.path).items() if key.rpartition("/")[2] in V2_NAMES}
    whole = {key: json.loads(data) for key, data in seen.items() if key != ".zmetadata"}

    def consolidate(copies: dict[str, Any]) -> str:
        text = json.dumps({"zarr_consolidated_format": 1, "metadata": copies})
        (mounted.path / ".zmetadata").write_text(text)
        return text

    stored = document_of(source)
    for missing in ("a", "group/deep/b", "group/deep", "group"):
        with pytest.raises(OSError, match="Invalid argument"):
            consolidate({key: copy for key, copy in whole.items() if key.rpartition("/")[0] != missing})
        assert document_of(source) == stored
    text = consolidate(whole)
    assert (mounted.path / ".zmetadata").read_text() == text
    shutil.rmtree(mounted.path / "a")
    text = consolidate({key: copy for key, copy in whole.items() if not key.startswith("a/")})
    assert (mounted.path / ".zmetadata").read_text() == text
    assert document_of(source)["consolidated_metadata"]["metadata"].keys() == {"group", "group/deep", "group/deep/b"}


def test_a_shrink_whose_document_could_not_be_stored_is_not_finished_later(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    store(source / "a", array((8, 12), (4, 6), sharding((2, 3), LITTLE)))
    mounted = mount(source, write=True, bound_by_modes=True)
    mounted.expect("permission|Permission|EACCES")
    path = mounted.path / "a/zarr.json"
    document = json.loads(path.read_bytes())
    (source / "a").chmod(0o555)
    with pytest.raises(PermissionError):
        path.write_text(json.dumps(document | {"shape": [4, 6]}))
    (source / "a").chmod(0o755)
    mounted.unmount()
    assert not (source / ".shardfs").exists()


@pytest.mark.parametrize(("view", "name"), [("v3", "c/0"), ("v2", "0")])
def test_a_directory_that_becomes_one_of_chunks_goes_on_for_who_has_it_open(
    mount: Mounter, tmp_path: Path, view: str, name: str
) -> None:
    (tmp_path / "source").mkdir()
    options = ["--view=v2", "--dimension-separator=/"] if view == "v2" else []
    mounted = mount(tmp_path / "source", write=True, shards="2", arguments=options)
    directory = mounted.path / "array" / name
    directory.mkdir(parents=True)
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    (directory / "0").write_bytes(b"abcd")
    if view == "v2":
        document = V2_ARRAY | {"shape": [4, 4], "chunks": [2, 2], "dtype": "|u1", "dimension_separator": "/"}
        (mounted.path / "array/.zarray").write_text(json.dumps(document))
    else:
        document = array((4, 4), (2, 2), {"name": "bytes"}, data_type="uint8")
        (mounted.path / "array/zarr.json").write_text(json.dumps(document))
    with os.fdopen(os.open("1", os.O_CREAT | os.O_WRONLY, dir_fd=opened), "wb") as file:
        file.write(b"efgh")
    assert os.fstat(opened).st_ino == directory.stat().st_ino
    assert sorted(os.listdir(opened)) == ["0", "1"]
    os.close(opened)
    mounted.unmount()
    values = zarr.open_array(tmp_path / "source/array", mode="r")
    assert bytes(values[:2].tobytes()) == b"abefcdgh"  # type: ignore[index,union-attr]
