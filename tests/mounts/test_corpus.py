"""Every array of the corpus through a real mount: names, sizes and bytes against the encoder."""

import json
import os
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.support.corpus import CASES, Case
from tests.support.datasets import Corpus, by_key, files_below
from tests.support.encoder import SHARDING, chunk_key, named, with_codec
from tests.support.parametrize import every_case
from tests.support.readers import READERS, assert_same
from tests.support.writers import tool


@every_case
def test_the_files_are_exactly_the_inner_chunks_and_the_document(corpus: Corpus, case: Case) -> None:
    found = files_below(corpus.path(case))
    found.pop("zarr.json")
    assert found == by_key(case.document, corpus.encoded[case.name])
    for key, data in found.items():
        status = os.stat(corpus.path(case) / key)
        assert (status.st_size, status.st_blocks) == (len(data), -(-len(data) // 512))


@every_case
def test_an_inner_chunk_that_was_never_written_has_no_file(corpus: Corpus, case: Case) -> None:
    encoded = corpus.encoded[case.name]
    lengths = inner_shape(corpus, case)
    grid = [-(-extent // length) for extent, length in zip(case.document["shape"], lengths, strict=True)]
    missing = set(product(*map(range, grid))) - encoded.inner.keys()
    beyond = {tuple(grid)} if grid else set()
    for coordinates in missing | beyond:
        with pytest.raises(FileNotFoundError):
            os.stat(corpus.path(case) / chunk_key(case.document, coordinates))


@every_case
def test_the_document_is_the_stored_one_but_for_grid_keys_and_codecs(corpus: Corpus, case: Case) -> None:
    shown = json.loads((corpus.path(case) / "zarr.json").read_text())
    assert text(others(shown)) == text(others(with_codec(case.document)))
    assert SHARDING not in [named(codec)[0] for codec in shown["codecs"]]
    for extension in [shown["chunk_grid"], shown["chunk_key_encoding"], *shown["codecs"]]:
        assert isinstance(extension, dict)
        assert "must_understand" not in extension
    assert shown["chunk_grid"]["name"] == "regular"


def others(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in {"chunk_grid", "chunk_key_encoding", "codecs"}}


def text(document: dict[str, Any]) -> str:
    return json.dumps(document, sort_keys=True)  # tells 1 from 1.0 and 0.0 from -0.0


def inner_shape(corpus: Corpus, case: Case) -> list[int]:
    shown = json.loads((corpus.path(case) / "zarr.json").read_text())
    lengths: list[int] = shown["chunk_grid"]["configuration"]["chunk_shape"]
    return lengths


@pytest.mark.parametrize("copy", [("cp", "-a"), ("rsync", "-a")], ids=" ".join)
def test_a_copy_of_the_mount_is_an_ordinary_dataset(corpus: Corpus, copy: tuple[str, str], tmp_path: Path) -> None:
    if not shutil.which(copy[0]):
        pytest.skip(f"{copy[0]} is not installed")
    tool(*copy, f"{corpus.mount.path}/.", tmp_path)
    assert files_below(tmp_path) == files_below(corpus.mount.path)
    for case in (case for case in CASES if case.name in ("3d-ragged", "nested-3-mixed", "transpose-201", "after-gzip")):
        for read in READERS.values():
            assert_same(read(tmp_path / case.name), case.encode().values)
