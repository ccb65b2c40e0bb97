"""Consolidated metadata that says something else than the tree: nobody may take shards for chunks by it."""

import errno
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec

from tests.support.commands import run
from tests.support.datasets import files_below
from tests.support.mounting import Mounter, flush, refuses
from tests.support.s3_server import Bucket

VALUES = np.arange(1, 65, dtype="i4").reshape(8, 8)
GROUP = {"zarr_format": 3, "node_type": "group", "attributes": {}}
ARRAYS = ("a", "g/b")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def document_of(directory: Path) -> Any:
    return json.loads((directory / "zarr.json").read_text())


def copies_of(group: Path) -> Any:
    return document_of(group)["consolidated_metadata"]["metadata"]


def write_document(directory: Path, document: Any) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "zarr.json").write_text(json.dumps(document))


def break_codec(path: Path) -> None:
    document = json.loads(path.read_text())
    document["codecs"][0]["configuration"]["chunk_shape"] = [3, 3]
    path.write_text(json.dumps(document))


FAULTS: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "broken-codec": break_codec,
    "group": lambda path: path.write_text(json.dumps(GROUP)),
    "directory": lambda path: (path.unlink(), path.mkdir()),
}
"""What may become of the document of an array."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Sharded arrays in consolidated groups; a decoder of blosc takes a shard for its first chunk."""
    path = tmp_path / "source"
    for group in (path, path / "g"):
        zarr.create_group(group)
    codec = BloscCodec(cname="lz4", typesize=4)
    for name in (*ARRAYS, "whole"):
        options: Any = {"chunks": (2, 2), "shards": (4, 4), "dtype": "i4", "compressors": codec}
        zarr.create_array(path / name, shape=(8, 8), **options)[...] = VALUES
    for group in (path / "g", path):
        zarr.consolidate_metadata(group)
    return path


def refuses_any() -> Any:
    return pytest.raises(OSError, match="Errno")


def read(path: Path, array: str, zarr_format: Any = 3) -> str:
    """Read an array as programs do that open its group by the copy; an error is as good as the right values."""
    try:
        values: Any = zarr.open_group(path, mode="r", zarr_format=zarr_format, use_consolidated=True)[array]
        values = values[...]
    except Exception as error:
        return type(error).__name__
    return "right" if np.array_equal(values, VALUES) else "wrong"


def require_agreement(shown: Path, group: str = "") -> None:
    """Each copy equals the document of its node, and describes nothing that is not there."""
    for path, copy in copies_of(shown / group).items():
        own = document_of(shown / group / path)
        for document in (own, copy):
            document.pop("consolidated_metadata", None)
        assert copy == own, path


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("view", ["v3", "v2", "v3 --decode"])
def test_by_a_copy_nobody_reads_or_writes_shards_as_chunks(
    mount: Mounter, tmp_path: Path, source: Path, fault: str, view: str
) -> None:
    for name in ARRAYS:
        FAULTS[fault](source / name / "zarr.json")
    stored, zarr_format = files_below(source), int(view[1])
    options = [f"--view={view[:2]}", *view.split()[1:]]
    mounted = mount(source, write=True, arguments=options, expect=("its zarr.json",))
    assert read(mounted.path, "whole", zarr_format) == "right"
    for name in ARRAYS:
        assert read(source, name) == "right", "natively"
        for root, path in ((mounted.path, name), (mounted.path / Path(name).parent, Path(name).name)):
            assert read(root, path, zarr_format) not in ("right", "wrong")
        for chunk in (
            ("c/0/0", "c/0/1") if zarr_format == 3 else ("c/0/0", "0.0")
        ):  # what a program writes that has read the copy
            target = mounted.path / name / chunk
            with refuses_any():
                target.write_bytes(b"chunk")
    if zarr_format == 3:
        require_agreement(mounted.path)
        require_agreement(mounted.path, "g")
    mounted.unmount()
    found = files_below(source)
    assert {key for key in found if found[key] != stored.get(key)} <= {f"{name}/0.0" for name in ARRAYS}
    assert found.keys() >= stored.keys()


@pytest.mark.parametrize("fault", FAULTS)
def test_shards_that_only_a_copy_describes_are_listed_and_cannot_be_touched(
    mount: Mounter, source: Path, fault: str
) -> None:
    FAULTS[fault](source / "a/zarr.json")
    stored = sorted(os.listdir(source / "a/c/0"))
    mounted = mount(source, write=True, expect=("its zarr.json",))
    shown = mounted.path / "a/c/0"
    assert sorted(os.listdir(shown)) == stored
    assert "consolidated metadata" in os.getxattr(mounted.path / "a", "user.shardfs.reason").decode()
    for change in (
        lambda: (shown / "0").read_bytes(),
        lambda: (shown / "0").write_bytes(b"x"),
        lambda: (shown / "7").write_bytes(b"x"),
        lambda: os.truncate(shown / "0", 0),
        (shown / "0").unlink,
        lambda: (shown / "0").rename(shown / "1"),
        lambda: (shown / "0").rename(mounted.path / "elsewhere"),
        lambda: os.link(shown / "0", mounted.path / "elsewhere"),
        lambda: (mounted.path / "whole/zarr.json").rename(shown / "0"),
        lambda: (mounted.path / "a").rename(mounted.path / "b"),
        lambda: (shown / "9").mkdir(),
        lambda: (shown / "9").symlink_to("0"),
    ):
        with refuses(errno.EIO):
            change()
    (mounted.path / "a/notes.txt").write_bytes(b"other files are as ever")


@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "directory"])
def test_commands_name_what_only_a_copy_describes(tmp_path: Path, source: Path, fault: str) -> None:
    for name in ARRAYS:
        FAULTS[fault](source / name / "zarr.json")
    for command in (
        ["info", source],
        ["verify", source],
        ["refs", source],
        ["refs", "--view", "v2", source],
        ["unpack", source, tmp_path / "unpacked"],
        ["unpack", "--view", "v2", source, tmp_path / "unpacked-v2"],
        ["pack", "--shards", "2", source, tmp_path / "packed"],
    ):
        done = run(*command)
        assert done.returncode == 1, (command, done)
        for name in ARRAYS:
            assert f"{name}: its zarr.json" in done.stdout + done.stderr or (
                f"{name} cannot be referenced: its zarr.json" in done.stderr
            ), (command, done)
        if command[0] == "refs":
            assert not [key for key in json.loads(done.stdout)["refs"] if key.startswith(("a/", "g/b/"))]
    for made, zarr_format in (("unpacked", 3), ("unpacked-v2", 2), ("packed", 3)):
        assert read(tmp_path / made, "whole", zarr_format) == "right"
        for name in ARRAYS:
            assert read(tmp_path / made, name, zarr_format) not in ("right", "wrong")
            assert not (tmp_path / made / name / "c").exists(), "shards that nothing describes"


def respelled(change: dict[str, Any]) -> Callable[[Any], Any]:
    return lambda document: {**document, **change}


COPIES: dict[str, Callable[[Any], Any]] = {
    "other-attributes": respelled({"attributes": {"old": 1}}),
    "other-fill-value": respelled({"fill_value": 5}),
    "other-shape": respelled({"shape": [4, 8]}),
    "other-shards": respelled({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}}}),
    "unsharded": respelled({"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}),
    "group": lambda document: GROUP,
    "broken": respelled({"shape": [-1]}),
    "text": lambda document: "text",
}
"""What a copy may say of an array, instead of what its document says."""


@pytest.mark.parametrize("copy", COPIES)
def test_a_copy_that_differs_is_shown_as_the_document_says(
    mount: Mounter, tmp_path: Path, source: Path, copy: str
) -> None:
    for group, name in (("", "a"), ("", "g/b"), ("g", "b")):
        document = document_of(source / group)
        copies = document["consolidated_metadata"]["metadata"]
        copies[name] = COPIES[copy](copies[name])
        write_document(source / group, document)
    shown = mount(source).path
    require_agreement(shown)
    require_agreement(shown, "g")
    second = mount(source, arguments=["--view=v2"]).path
    for root, zarr_format in ((shown, 3), (second, 2)):
        for path, name in ((root, "a"), (root, "g/b"), (root / "g", "b")):
            assert read(path, name, zarr_format) == "right"
    for command in ("pack", "unpack"):
        assert run(command, source, tmp_path / command).returncode == 0
        assert (read(tmp_path / command, "a"), read(tmp_path / command, "g/b")) == ("right", "right")


def test_copies_of_nodes_that_are_not_there_are_skipped(mount: Mounter, source: Path) -> None:
    document = document_of(source)
    copies = document["consolidated_metadata"]["metadata"]
    for path in ("gone", "g/gone", "../out", "a//b", "/", "a/../whole", "x" * 5000):
        copies[path] = copies["a"]
    write_document(source, document)
    shutil.rmtree(source / "whole")
    shown = mount(source).path
    assert sorted(copies_of(shown)) == ["a", "g", "g/b"]
    zmetadata = json.loads((mount(source, arguments=["--view=v2"]).path / ".zmetadata").read_text())["metadata"]
    assert {key.rpartition("/")[0] for key in zmetadata} == {"", "a", "g", "g/b"}


def with_long_paths(group: dict[str, Any]) -> dict[str, Any]:
    """A group that has one more copy, of a group whose copies have paths of 40 MB."""
    copies = group["consolidated_metadata"]["metadata"]
    within = {"consolidated_metadata": {"metadata": {f"{number:05}": 0 for number in range(10_000)}}}
    return {**group, "consolidated_metadata": {"kind": "inline", "metadata": {**copies, "n" * 4000: within}}}


BROKEN_GROUPS: dict[str, Callable[[bytes], bytes]] = {
    "unknown-member": lambda text: json.dumps({**json.loads(text), "unknown": 1}).encode(),
    "other-format": lambda text: json.dumps({**json.loads(text), "zarr_format": 4}).encode(),
    "two-documents": lambda text: text * 2,
    "cut-off": lambda text: text[:-2],
    "not-utf-8": lambda text: text.replace(b"{", b'{"name": "\xe9",', 1),
    "too-large": lambda text: text + b" " * 2**25,
    "long-paths": lambda text: json.dumps(with_long_paths(json.loads(text))).encode(),
}


@pytest.mark.parametrize("by", ["another program", "the mount"])
def test_a_group_opens_by_its_copies_though_a_group_below_has_no_document(
    mount: Mounter, source: Path, tmp_path: Path, by: str
) -> None:
    """zarr-python opens no group that has a copy of a node and none of the node above that."""
    if by == "another program":
        (source / "g/zarr.json").unlink()
    mounted = mount(source, write=by == "the mount")
    if by == "the mount":
        (mounted.path / "g/zarr.json").unlink()
        flush(mounted.path)
    assert copies_of(mounted.path).keys() == {"a", "whole"}
    seen = [mounted.path] if by == "another program" else [mounted.path, source]
    for place in seen:
        assert (zarr.open_group(place, mode="r")["a"][...] == VALUES).all()
    done = run("unpack", source, tmp_path / "unpacked")
    assert (zarr.open_group(tmp_path / "unpacked", mode="r")["a"][...] == VALUES).all(), str(done)


@pytest.mark.parametrize("skipped", ["a", "g"])
@pytest.mark.parametrize("command", ["pack --shards 2,2", "unpack", "unpack --view v2"])
def test_a_copy_of_a_dataset_describes_no_node_that_was_skipped(
    source: Path, tmp_path: Path, skipped: str, command: str
) -> None:
    """It would read as fill values. A link to a directory is not copied, though a mount follows it."""
    (source / skipped).rename(source / "real")
    (source / skipped).symlink_to("real")
    made = tmp_path / "made"
    done = run(*command.split(), source, made)
    assert done.returncode == 1
    assert f"skipped: {skipped} is a link to a directory" in done.stderr
    assert not (made / skipped).exists()
    version = 2 if "v2" in command else 3
    group = zarr.open_consolidated(made, mode="r", zarr_format=version)
    assert not [name for name in group if name == skipped]
    kept = "g/b" if skipped == "a" else "a"
    assert (group[kept][...] == VALUES).all()
    with pytest.raises(KeyError):
        group["a" if skipped == "a" else "g/b"]


@pytest.mark.parametrize("fault", BROKEN_GROUPS)
@pytest.mark.parametrize("group", ["", "g"])
def test_a_group_whose_document_is_broken_describes_nothing(
    mount: Mounter, source: Path, fault: str, group: str
) -> None:
    path = source / group / "zarr.json"
    path.write_bytes(BROKEN_GROUPS[fault](path.read_bytes()))
    shown = mount(source, expect=("cannot",)).path
    if fault in ("unknown-member", "other-format", "long-paths"):
        text = (shown / group / "zarr.json").read_bytes()
        assert json.loads(text)["node_type"] == "group"
        assert b"consolidated_metadata" not in text
    else:
        with refuses(errno.EIO):
            (shown / group / "zarr.json").read_bytes()
    name = "b" if group else "a"
    assert document_of(shown / group / name)["chunk_grid"]["configuration"]["chunk_shape"] == [2, 2]


def test_what_is_restored_is_read_again(mount: Mounter, source: Path) -> None:
    document = (source / "a/zarr.json").read_bytes()
    (source / "a/zarr.json").unlink()
    mounted = mount(source, write=True, metadata_ttl=0)
    assert read(mounted.path, "a") not in ("right", "wrong")
    (source / "a/zarr.json").write_bytes(document)
    assert read(mounted.path, "a") == "right"


def test_on_a_mount_shards_that_only_a_copy_describes_get_no_other_document(mount: Mounter, source: Path) -> None:
    stored = (source / "a/zarr.json").read_bytes()
    (source / "a/zarr.json").unlink()
    shown = mount(source, write=True, expect=("its zarr.json",)).path
    with refuses(errno.EINVAL):
        write_document(shown / "a", document_of(shown / "whole"))
    unsharded = document_of(shown)
    unsharded["consolidated_metadata"]["metadata"]["a"] = document_of(shown / "whole")
    with refuses(errno.EINVAL):
        write_document(shown, unsharded)
    unsharded["consolidated_metadata"]["metadata"].pop("a")
    write_document(shown, {**unsharded, "attributes": {"edited": 1}})
    assert document_of(source)["attributes"] == {"edited": 1}
    assert copies_of(source)["a"] == json.loads(stored), "the only description of the array stays"
    (shown / "a/zarr.json").write_bytes(stored)
    assert (source / "a/zarr.json").read_bytes() == stored


def edit(root: Path, how: str) -> None:
    if how == "rm":
        for name in ARRAYS:
            for document in ("zarr.json", ".zarray"):
                (root / name / document).unlink(missing_ok=True)
    elif how == "rm -r":
        for name in ARRAYS:
            shutil.rmtree(root / name)
    elif how == "mv":
        (root / "g").rename(root / "moved")
    elif how == "replaced":
        shutil.rmtree(root / "a")
        options: Any = {"shape": (6,), "chunks": (3,), "dtype": "i2", "fill_value": 7}
        zarr.create_array(root / "a", zarr_format=2 if (root / ".zgroup").exists() else 3, **options)[...] = 4


@pytest.mark.parametrize("how", ["rm", "rm -r", "mv", "replaced"])
@pytest.mark.parametrize("view", ["v3", "v2"])
@pytest.mark.parametrize("shards", [None, "2"])
def test_after_a_removal_on_a_mount_copies_and_directories_agree(
    mount: Mounter, source: Path, how: str, view: str, shards: str | None
) -> None:
    mounted = mount(source, write=True, shards=shards, arguments=[f"--view={view}"])
    edit(mounted.path, how)
    if view == "v3":
        for name, copy in copies_of(mounted.path).items():
            if (mounted.path / name / "zarr.json").exists():
                assert copy["node_type"] == document_of(mounted.path / name)["node_type"]
    mounted.unmount()
    copies = copies_of(source)
    assert ("g/b" in copies) == (how == "replaced")
    if how != "replaced":
        assert "a" not in copies or how == "mv"
    elif (source / "a/zarr.json").exists():
        assert copies["a"] == document_of(source / "a")
        assert np.array_equal(np.asarray(zarr.open_group(source, mode="r")["a"]), np.full(6, 4, "i2"))
    for name, copy in copies.items():
        own = document_of(source / name)
        for document in (own, copy):
            document.pop("consolidated_metadata", None)
        assert copy == own, name


@pytest.mark.parametrize("shards", [None, "2"])
def test_an_edit_of_attributes_in_v2_brings_no_copy_of_a_removed_array_back(
    mount: Mounter, source: Path, shards: str | None
) -> None:
    """The stored document of the group still has the copy, but no program has written it anew."""
    root = mount(source, write=True, shards=shards, arguments=["--view=v2"]).path
    shutil.rmtree(root / "a")
    (root / ".zattrs").write_text('{"title": "edited"}')
    assert "a/.zarray" not in json.loads((root / ".zmetadata").read_text())["metadata"]
    options: Any = {"shape": (6,), "chunks": (3,), "dtype": "i2", "zarr_format": 2, "compressors": None}
    zarr.create_array(root / "a", **options)[...] = 4
    copy = json.loads((root / ".zmetadata").read_text())["metadata"].get("a/.zarray")
    assert (copy and copy["chunks"]) == (None if shards is None else [3])


def test_a_group_is_consolidated_in_v2_though_a_group_below_has_outdated_copies(mount: Mounter, source: Path) -> None:
    zarr.create_array(source / "other", shape=(8, 8), chunks=(4, 4), shards=(8, 8), dtype="i4")[...] = VALUES
    root = mount(source, write=True, arguments=["--view=v2"]).path
    shutil.rmtree(root / "g/b")
    (root / "other").rename(root / "g/b")
    zarr.consolidate_metadata(root)
    flush(root)
    assert copies_of(source)["g/b"] == document_of(source / "g/b")
    assert read(root, "g/b", 2) == "right"


def test_a_directory_that_is_made_where_a_copy_describes_nothing_is_free(mount: Mounter, source: Path) -> None:
    """`cp -r` may deliver chunks before the document; what was described there is gone."""
    shutil.rmtree(source / "a")
    root = mount(source, write=True, shards="2").path
    plain = zarr.open_group(root, mode="r", use_consolidated=False)["whole"].metadata.to_dict()
    (root / "a/c/0").mkdir(parents=True)
    chunk = (root / "whole/c/0/0").read_bytes()
    (root / "a/c/0/0").write_bytes(chunk)
    write_document(root / "a", plain)
    assert (root / "a/c/0/0").read_bytes() == chunk
    flush(root)
    assert copies_of(source)["a"] == document_of(source / "a")


def test_what_a_program_describes_before_it_creates_it_is_read_back(mount: Mounter, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    root = mount(tmp_path / "source", write=True).path
    group = zarr.create_group(tmp_path / "other")
    group.create_array("a", shape=(4,), chunks=(2,), dtype="i4")[...] = 1
    with warnings.catch_warnings():
        zarr.consolidate_metadata(tmp_path / "other")
    text = (tmp_path / "other/zarr.json").read_bytes()
    (root / "zarr.json").write_bytes(text)
    assert (root / "zarr.json").read_bytes() == text
    shutil.copytree(tmp_path / "other/a", root / "a")
    assert (root / "zarr.json").read_bytes() == text
    shutil.rmtree(root / "a")
    assert copies_of(root) == {}


def test_in_a_bucket_the_same_is_shown_and_corrected(s3_bucket: Bucket, mount: Mounter, source: Path) -> None:
    for key, data in files_below(source).items():
        s3_bucket.put(f"data/{key}", data)
    s3_bucket.delete("data/a/zarr.json")
    options: Any = {"write": True, "env": s3_bucket.environment, "expect": ("its zarr.json",)}
    mounted = mount(s3_bucket.url("data"), **options)
    assert (read(mounted.path, "a"), read(mounted.path, "g/b")) == ("KeyError", "right")
    for change in ((mounted.path / "a/c/0/0").read_bytes, (mounted.path / "a/c/0/0").unlink):
        with refuses(errno.EIO):
            change()
    (mounted.path / "g/b/zarr.json").unlink()
    mounted.unmount()
    stored = json.loads(s3_bucket.get("data/zarr.json"))["consolidated_metadata"]["metadata"]
    assert sorted(stored) == ["a", "g", "whole"]
    assert "b" not in json.loads(s3_bucket.get("data/g/zarr.json"))["consolidated_metadata"]["metadata"]
    assert "data/g/b/zarr.json" not in s3_bucket.keys("data/g/b")


def nodes_of(path: Path) -> set[str]:
    """The nodes that zarr-python shows, by consolidated metadata and without it."""
    found: set[str] = set()
    for by_copies in (None, False):
        group = zarr.open_group(path, mode="r", use_consolidated=by_copies)
        found.update(name for name, _ in group.members(max_depth=None))
    return found


def named_in(lines: str) -> set[str]:
    return set(
        re.findall(r"(?:^|: )([\w/]+)(?=: only consolidated|: it is a sym|: its zarr| is a )", lines, re.MULTILINE)
    )


@pytest.fixture(params=[3, 2], ids=["v3", "v2"])
def described(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, set[str]]:
    """A consolidated group, and the nodes of it that have lost their documents, or their directories."""
    path, zarr_format = tmp_path / "source", request.param
    group = zarr.create_group(path, zarr_format=zarr_format)
    for name in ("plain", "gone", "empty", "below/a", "below/gone", "linked"):
        array = group.create_array(name, shape=(8,), chunks=(2,), dtype="i4")
        if name != "empty":
            array[:] = np.arange(8)
    if zarr_format == 3:
        group.create_array("sharded", shape=(8,), chunks=(2,), shards=(4,), dtype="i4")[:] = np.arange(8)
    zarr.consolidate_metadata(path)
    gone = ("zarr.json",) if zarr_format == 3 else (".zarray", ".zgroup", ".zattrs")
    lost = ["gone", "below", "below/gone", *(["sharded"] if zarr_format == 3 else [])]
    for name in lost:
        for document in gone:
            (path / name / document).unlink(missing_ok=True)
    shutil.rmtree(path / "empty")
    (path / "linked").rename(path / "real")
    (path / "linked").symlink_to("real")
    return path, {*lost, "empty", "linked"}


def test_every_node_that_programs_see_is_packed_or_named(described: tuple[Path, set[str]], tmp_path: Path) -> None:
    source, lost = described
    seen = nodes_of(source)
    assert seen > lost
    done = run("pack", source, tmp_path / "packed")
    assert done.returncode == 1
    assert named_in(done.stderr) == lost
    packed = {path.parent for path in (tmp_path / "packed").rglob("zarr.json")}
    assert {tmp_path / "packed" / name for name in seen - lost} <= packed
    assert nodes_of(tmp_path / "packed") == seen - lost - {"below/a"}, "a group without a document has no members"
    done = run("verify", source, tmp_path / "packed")
    assert done.returncode == 1
    assert named_in(done.stdout) == lost


@pytest.mark.parametrize("described", [3], indirect=True)
def test_every_command_names_what_only_consolidated_metadata_describes(
    described: tuple[Path, set[str]], tmp_path: Path
) -> None:
    source, lost = described
    for command in (["unpack", source, tmp_path / "unpacked"], ["verify", source], ["info", source], ["map", source]):
        done = run(*command)
        assert done.returncode == 1, str(done)
        assert named_in(done.stdout.replace("damaged: ", "") + done.stderr) >= lost, command[0]
    done = run("info", source, "empty")
    assert done.returncode == 1
    assert "only consolidated metadata describes it" in done.stderr


def test_a_link_that_nothing_describes_is_named_and_no_fault(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "source/real", shape=(8,), chunks=(2,), shards=(4,), dtype="i4")[:] = np.arange(8)
    (tmp_path / "source/link").symlink_to("real")
    for command in ("verify", "info", "map"):
        done = run(command, tmp_path / "source")
        assert done.returncode == 0, str(done)
        assert "link: it is a symbolic link" in done.stdout, command
