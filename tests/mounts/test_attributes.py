"""Extended attributes: where a chunk lies, and those of stored files."""

import errno
import os
from pathlib import Path

import pytest

from tests.support.corpus import CASES, GZIP, LITTLE, array, sharding
from tests.support.datasets import Corpus, by_key, store
from tests.support.mounting import Mounter

PLACE = ["user.shardfs.shard", "user.shardfs.offset", "user.shardfs.nbytes"]
SOME = ["0d", "3d-ragged", "nested-3-mixed", "foreign-prefix-nested", "transpose-two-levels", "keys-v2-dot"]
"""Cases whose shards are encoded in no other codec: there, offsets are in decoded shards."""


def test_a_chunk_tells_its_shard_offset_and_length(corpus: Corpus) -> None:
    for case in (case for case in CASES if case.name in SOME):
        for key, data in by_key(case.document, corpus.encoded[case.name]).items():
            shard, offset, nbytes = (os.getxattr(corpus.path(case) / key, name) for name in PLACE)
            stored = (corpus.mount.source / os.fsdecode(shard)).read_bytes()
            assert int(nbytes) == len(data)
            assert stored[int(offset) : int(offset) + int(nbytes)] == data


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
