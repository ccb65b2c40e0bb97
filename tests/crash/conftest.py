"""The source that every history begins with, and where it is stopped."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.crash.crashes import make_template
from tests.crash.harness import small_log

MEMORY = Path("/dev/shm")


@pytest.fixture(autouse=True)
def _small_log() -> Iterator[None]:
    with small_log():
        yield


@pytest.fixture(autouse=True)
def calls_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that block, of which none really waits, are made where they are awaited, and not in threads."""

    async def run_sync(call: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return call(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


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
