"""A listing of very many names is sent while it is found, and nothing of it stays in memory."""

import json
import socket
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tests.support.corpus import LITTLE, array, sharding
from tests.support.datasets import age
from tests.support.serving import served

COUNT = 40_000


def write_many(directory: Path, count: int) -> None:
    """Write one shard with so many inner chunks of a byte, all of which are in one directory."""
    (directory / "c").mkdir(parents=True)
    document = array((count,), (count,), sharding((1,), LITTLE, index_codecs=[LITTLE]), data_type="uint8")
    (directory / "zarr.json").write_text(json.dumps(document))
    index = np.stack([np.arange(count, dtype="<u8"), np.ones(count, "<u8")], axis=-1)
    (directory / "c/0").write_bytes(bytes(count) + index.tobytes())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_many(tmp_path / "many", COUNT)
    age(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_directory_of_very_many_chunks_is_listed_in_the_memory_of_a_few(source: Path) -> None:
    with served(source) as site:
        assert site.ask("/many/c/7").status == 200  # the index is in memory from now on
        client = site.connect()
        client.send("GET /many/c/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            count = 0
            while piece := client.socket.recv(2**20):
                count += piece.count(b'"name"')
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert COUNT - 100 < count <= COUNT  # a piece may end within a word
    assert peak - before < 3 * 2**20  # all names take 8 MB


def test_a_listing_that_nobody_waits_for_any_more_ends(source: Path) -> None:
    with served(source) as site:
        client = site.connect()
        client.send("GET /many/c/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.socket.recv(100)
        assert len(site.views.main.fs.open_directories) == 1
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        while site.views.main.fs.open_directories:
            assert site.ask("/-/healthy").status == 200
