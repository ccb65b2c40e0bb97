"""Extended attributes: where a chunk lies, why an array is shown as stored, and those of stored files."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.corpus import CASES, GZIP, LITTLE, array, extension, sharding
from tests.support.datasets import Corpus, by_key, store
from tests.support.encoder import SHARDING, named
from tests.support.mounting import Mounter

PLACE = ["user.shardfs.shard", "user.shardfs.offset", "user.shardfs.nbytes"]


def is_wrapped(codecs: list[Any]) -> bool:
    """Whether a shard, at any level, lies inside another codec."""
    names = [named(codec)[0] for codec in codecs]
    if SHARDING not in names:
        return False
    at = names.index(SHARDING)
    return bool(set(names[at + 1 :]) - {"example.hint"}) or is_wrapped(named(codecs[at])[1]["codecs"])


def test_a_chunk_tells_its_shard_offset_and_length(corpus: Corpus) -> None:
    source, names = corpus.mount.source, []
    for case in CASES:
        if is_wrapped(case.document["codecs"]):
            continue  # offsets in a decoded shard are not offsets in a file
        names.append(case.name)
        for key, data in by_key(case.document, corpus.encoded[case.name]).items():
            shard, offset, nbytes = (os.getxattr(corpus.path(case) / key, name) for name in PLACE)
            stored = (source / os.fsdecode(shard)).read_bytes()
            assert int(nbytes) == len(data)
            assert stored[int(offset) : int(offset) + int(nbytes)] == data
    assert len(names) > 140
    assert {"nested-3-mixed", "foreign-prefix-nested", "transpose-two-levels", "keys-v2-dot"} <= set(names)


def test_a_chunk_lists_its_attributes_and_a_directory_of_chunks_has_none(corpus: Corpus) -> None:
    case = next(case for case in CASES if case.name == "2d-ragged")
    assert sorted(os.listxattr(corpus.path(case) / "c/0/0")) == sorted(PLACE)
    assert os.listxattr(corpus.path(case) / "c/0") == []
    for path, name in [("c/0", PLACE[0]), ("c/0/0", "user.other"), ("zarr.json", PLACE[1]), ("", PLACE[2])]:
        with pytest.raises(OSError, match="No data available") as raised:
            os.getxattr(corpus.path(case) / path, name)
        assert raised.value.errno == errno.ENODATA


def test_an_array_that_is_shown_as_stored_says_why(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    opaque = array((8, 12), (4, 6), sharding((2, 3)), extension("example.invert"))
    for name, document in {"sound": array((8, 12), (4, 6), sharding((2, 3))), "unknown": opaque}.items():
        (source / name).mkdir(parents=True)
        (source / name / "zarr.json").write_text(json.dumps(document))
    root = mount(source).path
    assert os.listxattr(root / "unknown") == ["user.shardfs.reason"]
    assert b"example.invert" in os.getxattr(root / "unknown", "user.shardfs.reason")
    for path in (root, root / "sound"):
        assert os.listxattr(path) == []
        with pytest.raises(OSError, match="No data available"):
            os.getxattr(path, "user.shardfs.reason")


def test_attributes_of_stored_files_pass_through(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    store(source / "image", array((8, 12), (4, 6), sharding((2, 3), LITTLE, GZIP)))
    (source / "plain").write_text("text")
    try:
        for path in (source / "plain", source / "image", source / "image/zarr.json"):
            os.setxattr(path, "user.note", b"\0kept")
    except OSError as error:
        pytest.skip(f"the file system below {tmp_path} keeps no attributes: {error}")
    root = mount(source).path
    for name in ("plain", "image", "image/zarr.json"):
        assert os.listxattr(root / name) == ["user.note"]
        assert os.getxattr(root / name, "user.note") == b"\0kept"


def test_no_attribute_outside_the_user_namespace_is_shown(mount: Mounter, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "plain").write_text("text")
    root = mount(tmp_path / "source").path
    for name in ("security.selinux", "trusted.overlay", "system.posix_acl_access"):
        with pytest.raises(OSError) as raised:
            os.getxattr(root / "plain", name)
        assert raised.value.errno in (errno.ENODATA, errno.EOPNOTSUPP)
