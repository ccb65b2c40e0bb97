"""A source with one file, and splices in small steps."""

from pathlib import Path

import pytest

from shardfs.stores import base
from shardfs.stores.local import shards
from shardfs.stores.local.syscalls import BLOCK
from tests.stores.local.splices import MIB, make_source


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "source")


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scale the sizes from which on a splice takes more than one step."""
    for module, name, nbytes in [
        (shards, "BATCH_NBYTES", 8 * MIB),
        (shards, "_STEP_NBYTES", 8 * MIB + BLOCK),
        (base, "PIECE_NBYTES", MIB),
    ]:
        assert getattr(module, name) == 2**20 // MIB * (nbytes - nbytes % MIB) + nbytes % MIB
        monkeypatch.setattr(module, name, nbytes)
