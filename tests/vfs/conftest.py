"""The corpus on disk, once for all tests that do not change it, and arrays without chunks for those that write."""

from pathlib import Path

import pytest

from tests.crash.histories import make_source
from tests.support.opened import StoredCorpus, store_corpus


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredCorpus:
    root = tmp_path_factory.mktemp("stored")
    return StoredCorpus(root, store_corpus(root))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_source(tmp_path / "source")
    return tmp_path / "source"
