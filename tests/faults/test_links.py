"""Symbolic links in the source: shown as links, followed inside it, and never a way out of it."""

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.commands import run
from tests.support.corpus import array, sharding
from tests.support.datasets import files_below, store
from tests.support.mounting import Mounter, flush, refuses

DOCUMENT = array((8, 12), (4, 6), sharding((2, 3)))
EXPECTED = ("unreadable shard: ", r"\b(lookup|readdir|open|getattr): ")
IS_LINK = "is a symbolic link, through which nothing is changed"
SECRET = b"nothing of this may be seen through the mount"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "0").write_bytes(SECRET)
    store(tmp_path / "source" / "image", DOCUMENT)
    return tmp_path / "source"


def contents(root: Path) -> bytes:
    """All that can be read below *root* without following links, as far as it can be read."""
    done = subprocess.run(
        ["find", root, "-not", "-type", "l", "-type", "f", "-exec", "cat", "{}", "+"], capture_output=True, check=False
    )
    return done.stdout


@pytest.mark.parametrize("target", ["../../outside", "/etc", "{outside}"])
def test_a_chunk_directory_that_leads_out_is_an_error(mount: Mounter, source: Path, target: str) -> None:
    os.rename(source / "image/c", source / "kept")
    (source / "image/c").symlink_to(target.format(outside=source.parent / "outside"))
    root = mount(source, expect=EXPECTED).path
    assert sorted(os.listdir(root / "image")) == ["c", "zarr.json"]
    with pytest.raises(OSError, match="Input/output error"):
        os.listdir(root / "image/c")
    with pytest.raises(OSError, match="Input/output error"):
        (root / "image/c/0/0").read_bytes()
    done = subprocess.run(["cp", "-r", root / "image", source.parent / "copy"], capture_output=True, check=False)
    assert done.returncode != 0
    assert SECRET not in contents(root)


def test_a_document_that_leads_out_is_no_document(mount: Mounter, source: Path) -> None:
    outside = source.parent / "outside" / "zarr.json"
    os.rename(source / "image/zarr.json", outside)
    (source / "image/zarr.json").symlink_to("../../outside/zarr.json")
    root = mount(source).path
    assert b"out of the dataset" in os.getxattr(root / "image", "user.shardfs.reason")
    assert os.readlink(root / "image/zarr.json") == "../../outside/zarr.json"
    assert os.path.getsize(root / "image/c/0/0") == os.path.getsize(source / "image/c/0/0")


def test_a_shard_that_is_a_link_inside_the_source_is_a_shard(mount: Mounter, source: Path) -> None:
    expected = files_below(mount(source).path / "image")
    os.rename(source / "image/c/0/0", source / "elsewhere")
    (source / "image/c/0/0").symlink_to("../../../elsewhere")
    os.rename(source / "image/c/1", source / "directory")
    (source / "image/c/1").symlink_to("../.././directory/")
    assert files_below(mount(source).path / "image") == expected


def linked(source: Path) -> Path:
    """Store a shard elsewhere in the source, with a link in its place, and a directory of shards likewise."""
    os.rename(source / "image/c/0/0", source / "elsewhere")
    (source / "image/c/0/0").symlink_to("../../../elsewhere")
    os.rename(source / "image/c/1", source / "directory")
    (source / "image/c/1").symlink_to("../../directory")
    return source / "elsewhere"


REFUSED: dict[str, Callable[[Path], object]] = {
    "written": lambda chunk: chunk.write_bytes(b"new"),
    "cut": lambda chunk: os.truncate(chunk, 1),
    "removed": os.unlink,
    "renamed": lambda chunk: os.rename(chunk, chunk.with_name("3")),
    "replaced": lambda chunk: os.rename(chunk.parent.parent / "3/3", chunk),
}


@pytest.mark.parametrize("change", REFUSED)
def test_a_shard_that_is_a_link_is_not_changed(mount: Mounter, source: Path, change: str) -> None:
    kept = linked(source)
    before = files_below(mount(source).path)
    stored = kept.read_bytes()
    mounted = mount(source, write=True, expect=[IS_LINK])
    with refuses(errno.EPERM):
        REFUSED[change](mounted.path / "image/c/0/0")
    assert IS_LINK in mounted.log
    assert files_below(mounted.path) == before
    mounted.unmount()
    assert os.readlink(source / "image/c/0/0") == "../../../elsewhere"
    assert kept.read_bytes() == stored


def test_shards_beside_a_link_and_in_a_directory_that_is_one_are_changed(mount: Mounter, source: Path) -> None:
    linked(source)
    (source / "image/linked.json").symlink_to("zarr.json")
    mounted = mount(source, write=True)
    for key in ("c/0/3", "c/3/3"):
        (mounted.path / "image" / key).write_bytes(bytes(12))
    flush(mounted.path)
    mounted.unmount()
    again = mount(source).path
    assert (again / "image/c/0/3").read_bytes() == (again / "image/c/3/3").read_bytes() == bytes(12)
    assert (source / "image/c/1").is_symlink()
    assert sorted(os.listdir(source / "directory")) == ["0", "1"]


def test_a_document_that_is_a_link_is_not_changed(mount: Mounter, source: Path) -> None:
    os.rename(source / "image/zarr.json", source / "image/kept.json")
    (source / "image/zarr.json").symlink_to("kept.json")
    before = (source / "image/kept.json").read_bytes()
    shown = mount(source, write=True, expect=[IS_LINK]).path / "image/zarr.json"
    with refuses(errno.EPERM):
        shown.write_bytes(shown.read_bytes().replace(b'"attributes": {}', b'"attributes": {"a": 1}') + b" ")
    assert os.readlink(source / "image/zarr.json") == "kept.json"
    assert (source / "image/kept.json").read_bytes() == before


def test_info_and_mv_say_that_a_shard_is_a_link(mount: Mounter, source: Path) -> None:
    linked(source)
    done = run("info", source)
    assert "image: shards that are symbolic links are read, and never changed through a mount" in done.stdout
    chunk = mount(source, write=True, expect=[IS_LINK]).path / "image/c/0/0"
    done = subprocess.run(["mv", chunk, chunk.with_name("kept")], capture_output=True, check=False, text=True)
    assert done.returncode != 0
    assert "Operation not permitted" in done.stderr
    assert chunk.exists()


def test_links_are_shown_as_they_are_stored(mount: Mounter, source: Path) -> None:
    targets = {"relative": "image/zarr.json", "absolute": "/etc/hostname", "dangling": "nothing", "loop": "loop"}
    targets |= {"long": "x" * 4000, b"bytes-\xff".decode(errors="surrogateescape"): "\udcfe"}
    for name, target in targets.items():
        os.symlink(target, source / name)
    root = mount(source).path
    for name, target in targets.items():
        shown, stored = os.lstat(root / name), os.lstat(source / name)
        assert os.readlink(root / name) == target
        assert (shown.st_mode, shown.st_size, shown.st_mtime_ns) == (stored.st_mode, stored.st_size, stored.st_mtime_ns)
    assert (root / "relative").read_bytes() == (root / "image/zarr.json").read_bytes()
    for name in ("dangling", "loop"):
        with pytest.raises(OSError, match=r"No such file|Too many levels"):
            os.stat(root / name)


def test_links_that_go_round_in_circles_end(mount: Mounter, source: Path) -> None:
    os.rename(source / "image/c/0/0", source / "kept")
    (source / "image/c/0/0").symlink_to("../../../a/b")
    (source / "a").symlink_to("b")
    (source / "b").symlink_to("a")
    for number in range(60):
        (source / f"chain-{number}").symlink_to(f"chain-{number + 1}")
    (source / "chain-60").symlink_to("kept")
    os.unlink(source / "image/c/1/1")
    (source / "image/c/1/1").symlink_to("../../../chain-0")
    root = mount(source, expect=EXPECTED).path
    for key in ("c/0/0", "c/2/2"):
        with pytest.raises(OSError, match="Input/output error"):
            os.stat(root / "image" / key)
    assert os.path.getsize(root / "image/c/0/2") > 0
