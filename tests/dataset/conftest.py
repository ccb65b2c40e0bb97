"""Sources for tests below the mount: the corpus, a small group, and the arrays of the crash tests."""

from collections.abc import Callable
from pathlib import Path

import pytest

from shardfs.dataset.state import holder, slots
from shardfs.stores.local import syscalls
from tests.crash.histories import make_source
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


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    """The arrays of the crash tests, without chunks."""
    make_source(tmp_path / "source")
    return tmp_path / "source"


@pytest.fixture
def file_system(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let all files be on a file system of this type, of which it is known or not whether its locks reach all hosts."""

    def let(number: int | None, *, locks_reach: bool | None = None) -> None:
        monkeypatch.setattr(syscalls, "_file_system_of", lambda _: number)
        for module in (slots, holder):
            monkeypatch.setattr(module, "locks_reach_server", lambda _: locks_reach)

    return let
