"""Splices in small steps."""

from __future__ import annotations

import pytest

from shardfs.stores.local import shards
from shardfs.stores.local.syscalls import BLOCK
from tests.stores.local.splices import MIB


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scale the sizes from which on a splice takes more than one step."""
    for name, nbytes in {"BATCH_NBYTES": 8 * MIB, "_STEP_NBYTES": 8 * MIB + BLOCK, "_READ_NBYTES": MIB}.items():
        assert getattr(shards, name) == 2**20 // MIB * (nbytes - nbytes % MIB) + nbytes % MIB
        monkeypatch.setattr(shards, name, nbytes)
