"""The corpus on disk, once for all tests that do not change it, and a small group for those that do."""

from pathlib import Path

import pytest

from tests.support.corpus import BASE
from tests.support.datasets import age, store
from tests.support.documents import GROUP, write
from tests.support.opened import StoredCorpus, store_corpus


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredCorpus:
    root = tmp_path_factory.mktemp("stored")
    return StoredCorpus(root, store_corpus(root))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A group with a sharded array `a`, written long ago."""
    store(tmp_path / "a", BASE)
    write(tmp_path, GROUP)
    age(tmp_path)
    return tmp_path
