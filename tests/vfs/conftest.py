"""The corpus on disk, once for all tests that do not change it."""

import pytest

from tests.support.opened import StoredCorpus, store_corpus


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredCorpus:
    root = tmp_path_factory.mktemp("stored")
    return StoredCorpus(root, store_corpus(root))
