"""Buckets through a real mount: what a directory of the same files shows through one, to the byte."""

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.commands import run_json
from tests.support.corpus import LITTLE, array, sharding
from tests.support.datasets import files_below
from tests.support.mounting import Mounter, metrics
from tests.support.s3_faults import Hang
from tests.support.s3_mounts import PREFIX, Remote, bytes_of, fill
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import S3Server

ODD = [
    "with space",
    "100%",
    "%41",
    "é",
    "日本",
    "a+b",
    "a&b?c=d#e",
    "back\\slash",
    "'quoted\"",
    "~tilde",
    "-dash",
    "x" * 200,
]
"""Names that are something else in a URL, in XML, or in a shell."""


def test_references_are_those_on_disk_but_for_the_urls_of_shards(mixed: Remote) -> None:
    here = run_json("refs", mixed.local)["refs"]
    there = run_json("refs", mixed.url, **mixed.bucket.environment)["refs"]
    assert there.keys() == here.keys()
    prefix = (mixed.local.as_uri(), mixed.bucket.url(PREFIX))
    for key, reference in here.items():
        if isinstance(reference, list):
            reference[0] = reference[0].replace(*prefix, 1)
            assert reference[0].startswith("s3://")
        assert there[key] == reference


@pytest.fixture(scope="module")
def mixed(s3_server: S3Server, module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    """Groups, sharded and unsharded arrays and plain files, on disk and in a bucket, both mounted."""
    with S3Proxy(s3_server.endpoint_url) as proxy:
        remote = Remote(s3_server.make_bucket(), proxy, module_mount, tmp_path_factory.mktemp("mixed"))
        sharded, plain = array((50, 70), (16, 32), sharding((8, 4))), array((4, 4), (2, 2), LITTLE)
        remote.store("group/sharded", sharded, absent=[(0, 0), (6, 17)])
        remote.store("group/deep/er/sharded", array((40,), (8,), sharding((4,))))
        for row, column in ((0, 0), (0, 1), (1, 1)):
            remote.put(f"group/plain/c/{row}/{column}", bytes([row, column] * 8))
        remote.put("group/plain/zarr.json", json.dumps(plain).encode())
        members = {"group/sharded": sharded, "group/plain": plain}
        consolidated = {"kind": "inline", "must_understand": False, "metadata": members}
        root = {"zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": consolidated}
        remote.put("zarr.json", json.dumps(root).encode())
        remote.put("group/zarr.json", b'{"zarr_format": 3, "node_type": "group"}')
        for name, data in {
            "README.txt": b"plain\n",
            "empty": b"",
            "group/sharded/notes.bin": bytes(range(256)) * 5000,
            "group/deep/notes": b"notes",
        }.items():
            remote.put(name, data)
        module_mount(remote.local)
        remote.mount()
        yield remote


@pytest.fixture(scope="module")
def local(mixed: Remote, module_mount: Mounter) -> Path:
    """The same from disk."""
    return module_mount(mixed.local).path


def test_the_same_files_are_shown_as_from_disk(mixed: Remote, local: Path) -> None:
    root = mixed.mounts[0].path
    assert files_below(root) == files_below(local)
    shown = json.loads((root / "zarr.json").read_text())["consolidated_metadata"]["metadata"]
    assert shown["group/sharded"] == json.loads((root / "group/sharded/zarr.json").read_text())
    assert shown["group/sharded"]["chunk_grid"]["configuration"]["chunk_shape"] == [8, 4]


def test_keys_with_odd_characters_are_names_like_any_other(remote: Remote) -> None:
    stored = {name: remote.store(name, array((4,), (4,), sharding((2,)))) for name in ODD}
    for name in ODD:
        remote.put(f"{name}.txt", name.encode())
    root = remote.mount()
    for name, chunks in stored.items():
        assert (root / f"{name}.txt").read_text() == name
        assert os.getxattr(root / name / "c/0", "user.shardfs.shard") == f"{name}/c/0".encode()
        found = files_below(root / name)
        assert found.keys() == {"zarr.json", *chunks}
        assert all(found[key] == data for key, data in chunks.items())
    assert sorted(os.listdir(root)) == sorted([*ODD, *(f"{name}.txt" for name in ODD)])


def test_markers_of_directories_are_directories_which_may_be_empty(remote: Remote) -> None:
    remote.put("ok", b"ok")
    for key in ("empty/", "full/", "full/inner/", "full/file"):
        remote.bucket.put(remote.key(key), b"")
    root = remote.mount()
    assert sorted(os.listdir(root)) == ["empty", "full", "ok"]
    assert os.listdir(root / "empty") == []
    assert sorted(os.listdir(root / "full")) == ["file", "inner"]
    assert os.path.isdir(root / "full/inner")
    assert os.path.isfile(root / "full/file")


def test_a_name_that_is_an_object_and_has_others_below_it_is_a_directory(remote: Remote) -> None:
    remote.bucket.put(remote.key("both"), b"hidden")
    remote.bucket.put(remote.key("both/below"), b"below")
    remote.bucket.put(remote.key("both-1"), b"a name that sorts between them")
    root = remote.mount()
    assert os.path.isdir(root / "both")  # with no listing of the root
    assert sorted(os.listdir(root)) == ["both", "both-1"]
    assert files_below(root) == {"both/below": b"below", "both-1": b"a name that sorts between them"}


def test_the_whole_bucket_is_a_source_too(remote: Remote) -> None:
    remote.store("image", array((4,), (4,), sharding((2,))))
    mounted = remote.mounter(remote.bucket.url(), env=remote.bucket.environment)
    assert files_below(mounted.path / PREFIX) == files_below(remote.mount())


def test_cached_data_is_read_while_120_reads_wait_for_the_store(remote: Remote, tmp_path: Path) -> None:
    chunks = fill(remote, "image", bytes_of(1, nshards=121))
    root = remote.mount(arguments=[f"--cache={tmp_path}/cache"])
    first, *others = (root / "image" / key for key in chunks)
    stalled = Hang()
    with ExitStack() as stack:
        files = [stack.enter_context(open(path, "rb", buffering=0)) for path in others]
        readers = stack.enter_context(ThreadPoolExecutor(len(files)))
        before = first.read_bytes()
        remote.proxy.fail("GetObject", stalled, key="image/c", times=None)
        stack.callback(stalled.release)
        waiting = [readers.submit(file.read) for file in files]
        while metrics(root)["requests"].get("read", 0) < len(files):
            time.sleep(0.01)
        assert first.read_bytes() == before
        assert not any(read.done() for read in waiting)
        stalled.release()
        assert [read.result() for read in waiting] == [chunks[key] for key in list(chunks)[1:]]
