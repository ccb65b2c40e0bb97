"""What shardfs does wrong in reading one node, because of what its documents say, is an error of that node alone."""

import json
from pathlib import Path
from typing import NoReturn

import pytest

from shardfs.bulk.nodes import walk
from shardfs.dataset.hierarchy import open_source
from shardfs.errors import InternalError
from shardfs.formats import precomputed
from shardfs.vfs.options import TreeOptions
from shardfs.vfs.paths import open_paths
from tests.support.corpus import array, sharding
from tests.support.datasets import store
from tests.support.opened import in_trio


@in_trio
async def test_a_mistake_in_reading_a_node_stops_no_listing_of_what_is_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(document: object) -> NoReturn:
        raise ZeroDivisionError("boo")

    monkeypatch.setattr(precomputed, "parse_volume", mistaken)
    store(tmp_path / "good", array((8, 6), (4, 6), sharding((2, 3))))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/info").write_text(json.dumps({"@type": "x"}))
    for view in ("v3", "v2", "npy"):
        async with open_source(str(tmp_path)) as source, open_paths(source, TreeOptions(view=view)) as paths:
            async with paths.listing("") as batches:
                names = [entry.name async for batch in batches for entry in batch]
            assert "bad" in names
            assert any(name.startswith("good") for name in names)
            with pytest.raises(
                InternalError, match=r"bad cannot be read.*please report it: ZeroDivisionError\('boo'\)"
            ):
                await paths.read("bad/info", 0, 1)
    async with open_source(str(tmp_path)) as source:
        found = {path: node async for path, _, node in walk(source)}
    assert isinstance(found["bad"], InternalError)
    assert found["good"] is not None
    assert not isinstance(found["good"], Exception)
