"""Indexes that inflate to far more than they are: once per version, within a limit, and beside the event loop."""

import gzip
import json
import struct
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
import trio

from shardfs.dataset import hierarchy
from shardfs.dataset.hierarchy import open_source as open_whole
from shardfs.dataset.worker import LARGE_NBYTES
from shardfs.errors import CorruptionError
from shardfs.format.document import parse_json
from shardfs.formats.precomputed.uint64_sharded import MinishardCodecs
from shardfs.formats.precomputed.values import parse_collection
from shardfs.formats.precomputed.volume import parse_volume
from shardfs.vfs.options import TreeOptions
from shardfs.vfs.paths import open_paths
from tests.support.mounting import PATIENCE
from tests.support.opened import in_trio, open_source
from tests.support.precomputed import KEY, info, minishard_index, scale, sharding
from tests.support.serving import served

BOMB_NBYTES = 300 * 10**6


def bomb(nbytes: int = BOMB_NBYTES) -> bytes:
    """Zeros under gzip."""
    encoder = zlib.compressobj(9, wbits=31)
    return b"".join(encoder.compress(bytes(2**20)) for _ in range(-(-nbytes // 2**20))) + encoder.flush()


def write(source: Path, encoded: bytes, edge: int = 2, data: bytes = b"", **members: Any) -> Path:
    """A volume of 64×64×64 voxels, whose one shard has one minishard, with this index behind the *data*."""
    document = info(scale((64, 64, 64), (edge,) * 3, sharding(0, "identity", 0, 0, "gzip")), data_type="uint8")
    (source / KEY).mkdir(parents=True)
    (source / "info").write_text(json.dumps(document | members))
    shard = struct.pack("<QQ", len(data), len(data) + len(encoded)) + data + encoded
    (source / KEY / "0.shard").write_bytes(shard)
    return source


class Decoded:
    """Counts what is decoded, and by which thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.in_loop, loop = 0, 0, threading.get_ident()
        original = MinishardCodecs.decode_listed

        def decode(codecs: MinishardCodecs, encoded: bytes, nbytes: int) -> Any:
            self.count += 1
            self.in_loop += threading.get_ident() == loop
            return original(codecs, encoded, nbytes)

        monkeypatch.setattr(MinishardCodecs, "decode_listed", decode)


@pytest.mark.slow
@in_trio
async def test_a_damaged_index_is_inflated_once_per_version_and_not_by_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "volume", bomb())
    assert (source / KEY / "0.shard").stat().st_size < 2**20
    decoded, opened = Decoded(monkeypatch), open_source(source)
    for _ in range(2):
        array = await opened.hierarchy.array(KEY)
        assert array is not None
        for x in range(5):
            with pytest.raises(CorruptionError):
                await array.find((x, 0, 0, 0))
        with pytest.raises(CorruptionError):
            _ = [run async for run in array.list_scattered(None)]
    assert (decoded.count, decoded.in_loop) == (1, 0)
    whole = minishard_index([(0, 0, 8)])
    mended = gzip.compress(whole)
    shard = struct.pack("<QQ", 8, 8 + len(mended)) + b"12345678" + mended
    (source / KEY / "0.shard").write_bytes(shard)
    opened.clock.now += 100
    assert (await array.find((0, 0, 0, 0)))[1] is not None
    assert decoded.count == 2


@pytest.mark.slow
@in_trio
async def test_sixteen_readers_of_a_heavy_index_keep_no_other_file_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index is not decoded before another file was read, so whoever waited for it would wait for ever."""
    source = write(tmp_path / "volume", bomb())
    (source / "other").write_bytes(b"other")
    was_read, done = threading.Event(), 0
    decode = MinishardCodecs.decode_listed

    def held(codecs: MinishardCodecs, encoded: bytes, nbytes: int) -> Any:
        assert was_read.wait(PATIENCE)
        return decode(codecs, encoded, nbytes)

    monkeypatch.setattr(MinishardCodecs, "decode_listed", held)
    decoded = Decoded(monkeypatch)
    async with open_whole(str(source)) as opened, open_paths(opened, TreeOptions()) as paths:

        async def read(x: int) -> None:
            nonlocal done
            with pytest.raises(CorruptionError):
                await paths.read(f"{KEY}/{x}-{x + 2}_0-2_0-2", 0, 8)
            done += 1

        async with trio.open_nursery() as nursery:
            for number in range(16):
                nursery.start_soon(read, 2 * number)
            while not decoded.count:
                await trio.lowlevel.checkpoint()
            for _ in range(10):
                assert bytes(await paths.read("other", 0, 5)) == b"other"
                assert await paths.names("")
            assert not done
            was_read.set()
    assert (decoded.count, decoded.in_loop, done) == (1, 0, 16)


@pytest.mark.slow
@in_trio
async def test_an_index_lists_no_more_than_its_grid_has(tmp_path: Path) -> None:
    """24 bytes for each of 32,768 chunks, or of 65,536 if there are fewer: more is not inflated."""
    opened = open_source(write(tmp_path / "volume", bomb()))
    array = await opened.hierarchy.array(KEY)
    assert array is not None
    codecs = array.grid.levels[1].index_codecs
    assert isinstance(codecs, MinishardCodecs)
    assert codecs.max_nbytes == 65_536 * 24
    with pytest.raises(CorruptionError, match="decodes to more than"):
        await array.find((0, 0, 0, 0))


@in_trio
async def test_a_large_index_is_decoded_and_put_in_order_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = [(number, number, 1) for number in range(64**3)]
    source = write(tmp_path / "volume", gzip.compress(minishard_index(chunks)), edge=1, data=bytes(64**3))
    decoded, opened = Decoded(monkeypatch), open_source(source)
    array = await opened.hierarchy.array(KEY)
    assert array is not None
    ordered: list[int] = []
    original = type(array.grid).belonging

    def belonging(*arguments: Any) -> Any:
        ordered.append(threading.get_ident())
        return original(*arguments)

    monkeypatch.setattr(type(array.grid), "belonging", belonging)
    counts = [len(run.coords) async for run in array.list_scattered(None)]
    assert sum(counts) == 64**3
    assert (decoded.count, decoded.in_loop) == (1, 0)
    assert ordered
    assert threading.get_ident() not in ordered


@pytest.mark.slow
def test_a_server_answers_while_somebody_asks_for_a_picture_of_it(tmp_path: Path) -> None:
    with served(write(tmp_path / "volume", bomb())) as site:
        client = site.connect()
        client.send(f"GET /-/plane/{KEY}?size=64 HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\n\r\n")
        for _ in range(20):
            assert site.ask("/-/healthy").status == 200
        client.close()
        reply = site.ask(f"/-/plane/{KEY}?size=64")
        assert reply.status == 200, "what is damaged is hatched"
        assert "damaged" in reply["Shardfs-Picture"]


@pytest.mark.slow
def test_the_page_of_a_group_with_very_many_attributes_delays_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its document is parsed in a process beside the server."""
    parsed: list[int] = []
    original = hierarchy.read_document

    def read(document: bytes, *arguments: Any) -> Any:
        parsed.append(len(document))
        return original(document, *arguments)

    monkeypatch.setattr(hierarchy, "read_document", read)
    (tmp_path / "group").mkdir()
    document = {"zarr_format": 3, "node_type": "group", "attributes": {f"a{number}": number for number in range(10**5)}}
    (tmp_path / "group/zarr.json").write_text(json.dumps(document))
    with served(tmp_path / "group") as site:
        assert site.ask("/", Accept="text/html").status == 200
    assert not [nbytes for nbytes in parsed if nbytes > LARGE_NBYTES]


def test_an_info_of_a_million_scales_is_that_of_no_volume() -> None:
    """Each is looked at once: the work is in proportion to the document."""
    specification = sharding(0, "identity", 0, 0)
    many = info(*(scale((4, 4, 4), (2, 2, 2), specification, key=f"{n}") for n in range(1001)), data_type="uint8")
    assert parse_volume(many) is None
    few = info(*(scale((4, 4, 4), (2, 2, 2), specification, key=f"{n % 999}") for n in range(1000)), data_type="uint8")
    volume = parse_volume(few)
    assert volume is not None
    assert len(volume.below) == 999
    assert [key for key, found in volume.below.items() if found.reason is not None] == ["0"]
    spatial = [{"key": f"s{n}", "sharding": specification, "grid_shape": [1, 1, 1]} for n in range(1001)]
    annotations = {"@type": "neuroglancer_annotations_v1", "spatial": spatial}
    assert parse_collection(annotations) is None
    assert parse_collection(annotations | {"spatial": spatial[:1000]}) is not None


@in_trio
async def test_a_large_info_is_parsed_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []

    def parse(text: bytes) -> Any:
        parsed.append(threading.get_ident())
        return parse_json(text)

    monkeypatch.setattr("shardfs.formats.precomputed.parse_json", parse)
    await open_source(write(tmp_path / "volume", b"", note="x" * 2**20)).hierarchy.node("")
    await open_source(write(tmp_path / "small", b"")).hierarchy.node("")
    assert parsed[0] != threading.get_ident()
    assert parsed[1] == threading.get_ident()
