"""Extended attributes: where a chunk lies, and none of stored files."""

import errno
import os
from pathlib import Path

from tests.support.corpus import CASES
from tests.support.datasets import Corpus, by_key
from tests.support.mounting import Mounter, refuses

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


def test_stored_files_show_no_attributes_and_take_none(mount: Mounter, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/plain").write_text("text")
    path = mount(tmp_path / "source", write=True).path / "plain"
    for call in (lambda: os.setxattr(path, "user.note", b"x"), lambda: os.removexattr(path, "user.note")):
        with refuses(errno.EOPNOTSUPP):
            call()
    assert os.listxattr(path) == []
