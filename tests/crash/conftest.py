"""The source that every history begins with, and where it is stopped."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.crashes import make_template

MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory in memory, where there is one: the disk is simulated, and thousands of sources are made on it."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source where every array has the chunks 0, 1, 2 and 4."""
    root = tmp_path_factory.mktemp("crashes") / "template"
    make_template(root)
    return root
