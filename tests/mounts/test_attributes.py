"""Extended attributes: where a chunk lies, and why an array is shown as stored."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.corpus import CASES
from tests.support.datasets import Corpus, by_key
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
    source = corpus.mount.source
    some = {"nested-3-mixed", "foreign-prefix-nested", "transpose-two-levels", "keys-v2-dot"}
    cases = [case for case in CASES if not is_wrapped(case.document["codecs"])]  # there, offsets are in decoded shards
    assert some <= {case.name for case in cases}
    for case in [*cases[::5], *(case for case in cases if case.name in some)]:
        for key, data in by_key(case.document, corpus.encoded[case.name]).items():
            shard, offset, nbytes = (os.getxattr(corpus.path(case) / key, name) for name in PLACE)
            stored = (source / os.fsdecode(shard)).read_bytes()
            assert int(nbytes) == len(data)
            assert stored[int(offset) : int(offset) + int(nbytes)] == data


def test_stored_files_show_no_attributes_and_take_none(mount: Mounter, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/plain").write_text("text")
    path = mount(tmp_path / "source", write=True).path / "plain"
    for call in (lambda: os.setxattr(path, "user.note", b"x"), lambda: os.removexattr(path, "user.note")):
        with pytest.raises(OSError, match="not supported"):
            call()
    assert os.listxattr(path) == []
