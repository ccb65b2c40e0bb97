"""A server that is used for long, or sends very much, needs no more memory than one that was used a little."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.serve.test_listing import write_many
from tests.serve.test_writing import source, start
from tests.support.mounting import PATIENCE
from tests.support.serving import Client

__all__ = ["source"]
_ROOM = 24 * 2**20


def resident_nbytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


@pytest.mark.slow
def test_memory_stays_flat_over_ten_thousand_requests(source: Path) -> None:
    process, port = start(source)
    targets = [
        *(f"/-/{view}/image/c/{i}/{j}" for view in ("v3", "decoded/v3") for i in range(2) for j in range(4)),
        "/", "/-/v2/image/.zarray", "/-/npy/image.npy", "/notes.txt", "/nowhere", "/image/c/9/9", "/-/metrics",
    ]  # fmt: skip

    def use(number: int) -> None:
        order, client = random.Random(number), Client(port)
        for _ in range(250):
            reply = client.ask(order.choice(targets), Range=order.choice(["bytes=0-9", "items=1"]))
            assert reply.status in (200, 206, 404)
        client.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(8)))
        before = resident_nbytes(process.pid)
        list(pool.map(use, range(8, 48)))
    after = resident_nbytes(process.pid)
    process.terminate()
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert after < before + _ROOM


@pytest.mark.slow
def test_a_million_names_are_listed_in_the_memory_of_a_few(tmp_path: Path) -> None:
    write_many(tmp_path / "data.zarr/many", 10**6)
    process, port = start(tmp_path / "data.zarr")
    client = Client(port)
    assert client.ask("/many/c/7").status == 200  # the index is in memory from now on
    before = resident_nbytes(process.pid)
    client.send("GET /many/c/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    count, most = 0, before
    while piece := client.socket.recv(2**20):
        count += piece.count(b'"name"')
        most = max(most, resident_nbytes(process.pid))
    process.terminate()
    process.communicate(timeout=PATIENCE)
    assert 10**6 - 1000 < count <= 10**6  # a piece may end within a word
    assert most < before + _ROOM  # all names take 200 MB
