"""Several hosts write to one bucket: nothing is lost, one of two wins whole, and what does not fit any more is kept."""

import errno
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.corpus import array, sharding
from tests.support.datasets import store
from tests.support.hosts import PREFIX, Host
from tests.support.mounting import Mount, Mounter, flush, metrics, refuses
from tests.support.readers import READERS, assert_same
from tests.support.s3_faults import Before
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket
from tests.support.writers import assert_sound

SIDE, INNER = 8, 4
"""Inner chunks along each axis, and elements of each; a shard has 4 by 4 of them."""

DOCUMENT = array((SIDE * INNER,) * 2, (4 * INNER,) * 2, sharding((INNER, INNER)))
ALL = [(i, j) for i in range(SIDE) for j in range(SIDE)]
Coords = tuple[int, int]


@pytest.fixture
def hosts(s3_bucket: Bucket, mount: Mounter, tmp_path: Path) -> list[Host]:
    """Four machines that reach a bucket with an array without chunks."""
    s3_bucket.put(f"{PREFIX}/zarr.json", json.dumps(DOCUMENT).encode())
    return [Host(s3_bucket, tmp_path / f"state-{number}", mount) for number in range(4)]


def fill(value: int) -> bytes:
    return np.full((INNER, INNER), value, "<i4").tobytes()


def write(mounted: Mount, at: Coords, value: int) -> None:
    i, j = at
    (mounted.path / f"c/{i}/{j}").write_bytes(fill(value))


def together(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """Do all at the same time, and return their results, or the errors that they ended with."""
    barrier = Barrier(len(tasks))

    def run(task: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return task()
        except OSError as error:
            return error

    with ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(run, tasks))


def values(chunks: dict[Coords, int]) -> np.ndarray:
    found = np.zeros((SIDE * INNER,) * 2, "i4")
    for (i, j), value in chunks.items():
        found[i * INNER : (i + 1) * INNER, j * INNER : (j + 1) * INNER] = value
    return found


def native(host: Host, directory: Path) -> np.ndarray:
    """What the bucket holds, as other programs read it."""
    downloaded = host.bucket.download(directory, PREFIX)
    assert_sound(downloaded)
    found = READERS["zarr"](downloaded)
    assert_same(READERS["tensorstore"](downloaded), found)
    return found


@pytest.mark.parametrize(("places", "count"), [("machines", 4), ("slots", 2)])
def test_mounts_that_write_different_chunks_of_the_same_shards_lose_nothing(
    hosts: list[Host], tmp_path: Path, places: str, count: int
) -> None:
    mounts = [(host if places == "machines" else hosts[0]).mount() for host in hosts[:count]]
    for mounted in mounts:
        assert os.listdir(mounted.path) == ["zarr.json"]  # they all know that nothing else is there

    def work(number: int) -> Callable[[], None]:
        def run() -> None:
            for turn in (1, 2):
                for at in ALL[number::count]:
                    write(mounts[number], at, 100 * turn + number)
                flush(mounts[number].path)

        return run

    assert together([work(number) for number in range(count)]) == [None] * count
    conflicts = [metrics(mounted.path)["store"]["conflicts"] for mounted in mounts]
    for mounted in mounts:
        mounted.unmount()
    assert_same(native(hosts[0], tmp_path / "native"), values({at: 200 + n % count for n, at in enumerate(ALL)}))
    assert any(conflicts), "the hosts never met"
    for host in hosts:
        assert host.recover() == []
    assert not hosts[0].bucket.uploads()


def test_a_host_that_creates_an_array_reads_what_another_writes(
    s3_bucket: Bucket, mount: Mounter, tmp_path: Path
) -> None:
    s3_bucket.put(f"{PREFIX}/zarr.json", b'{"zarr_format": 3, "node_type": "group"}')
    hosts = [
        mount(s3_bucket.url(PREFIX), write=True, shards="2", metadata_ttl=0.0, state=tmp_path / str(number), env=env)
        for number, env in enumerate([s3_bucket.environment] * 2)
    ]
    made = zarr.create_array(str(hosts[0].path / "a"), shape=(8, 8), chunks=(2, 2), dtype="i4", compressors=None)
    made[:2] = 1
    flush(hosts[0].path)
    zarr.open_array(str(hosts[1].path / "a"), mode="r+")[2:6] = 2
    flush(hosts[1].path)
    expected = np.repeat(np.array([1, 2, 2, 0], "i4"), 2)[:, None] * np.ones((1, 8), "i4")
    for mounted in hosts:
        assert_same(zarr.open_array(str(mounted.path / "a"), mode="r")[:], expected)


def test_of_two_that_write_the_same_chunk_one_wins_whole(hosts: list[Host], tmp_path: Path) -> None:
    mounts = [host.mount() for host in hosts[:2]]
    for mounted in mounts:
        mounted.expect("another program")

    def work(number: int) -> Callable[[], None]:
        def run() -> None:
            for turn in range(1, 6):
                for at in ALL[:8]:
                    write(mounts[number], at, 10 * turn + number)
                flush(mounts[number].path)

        return run

    together([work(number) for number in range(2)])
    for mounted in mounts:
        mounted.unmount()
    found = native(hosts[0], tmp_path / "native")
    for i, j in ALL[:8]:
        chunk = found[i * INNER : (i + 1) * INNER, j * INNER : (j + 1) * INNER]
        assert len(np.unique(chunk)) == 1
        assert chunk[0, 0] % 10 in (0, 1)
        assert chunk[0, 0] // 10 in range(1, 6)


def create_exclusively(path: Path, document: bytes) -> None:
    with path.open("xb") as file:
        file.write(document)


def create_by_link(path: Path, document: bytes) -> None:
    temporary = path.with_name(f"zarr.{os.getpid()}.{id(document)}.partial")
    temporary.write_bytes(document)
    try:
        os.link(temporary, path)
    finally:
        temporary.unlink()


@pytest.mark.parametrize("way", [create_exclusively, create_by_link], ids=["open", "link"])
def test_of_many_that_create_a_document_exactly_one_succeeds(
    hosts: list[Host], way: Callable[[Path, bytes], None]
) -> None:
    mounts = [host.mount(expect=("exists",)) for host in [*hosts[:3], hosts[0]]]
    for turn in range(3):
        name = f"node-{turn}"
        documents = []
        for number, mounted in enumerate(mounts):
            (mounted.path / name).mkdir()
            group = {"zarr_format": 3, "node_type": "group", "attributes": {"host": number}}
            documents.append(json.dumps(group).encode())
        tasks = [
            partial(way, mounted.path / name / "zarr.json", document)
            for mounted, document in zip(mounts, documents, strict=True)
        ]
        results = together(tasks)
        winners = [number for number, result in enumerate(results) if result is None]
        assert len(winners) == 1, results
        assert {result.errno for result in results if result is not None} == {errno.EEXIST}, results
        assert hosts[0].bucket.get(f"{PREFIX}/{name}/zarr.json") == documents[winners[0]]
        for mounted in mounts:
            assert (mounted.path / name / "zarr.json").read_bytes() == documents[winners[0]]
    for mounted in mounts:
        mounted.unmount()
    assert [host.recover() for host in hosts[:3]] == [[]] * 3  # of those who lost, nothing is kept


def test_a_host_that_missed_the_growth_of_an_array_removes_no_chunks(hosts: list[Host], tmp_path: Path) -> None:
    one, other = hosts[0].mount(), hosts[1].mount(expect=("another program has changed the shape",))
    seen = json.loads((other.path / "zarr.json").read_text())
    (one.path / "zarr.json").write_text(json.dumps(seen | {"shape": [2 * SIDE * INNER, SIDE * INNER]}))
    (one.path / f"c/{SIDE}/0").write_bytes(fill(7))
    flush(one.path)

    def annotate(document: dict[str, Any]) -> None:
        (other.path / ".zarr.json.new").write_text(json.dumps(document | {"attributes": {"a": 1}}))
        (other.path / ".zarr.json.new").replace(other.path / "zarr.json")

    with refuses(errno.EINVAL):
        annotate(seen)
    now = json.loads((other.path / "zarr.json").read_text())
    assert now["shape"] == [2 * SIDE * INNER, SIDE * INNER]
    annotate(now)
    assert (other.path / f"c/{SIDE}/0").read_bytes() == fill(7)


def test_a_rename_onto_a_name_that_becomes_a_shard_of_a_new_array_replaces_no_shard(
    hosts: list[Host], s3_proxy: S3Proxy, tmp_path: Path
) -> None:
    """The kernel looks the name up again, and then it is that of a chunk."""
    store(tmp_path / "new", DOCUMENT)
    shard = (tmp_path / "new/c/0/0").read_bytes()
    host = hosts[0].behind(s3_proxy.url)
    mounted = host.mount()
    (mounted.path / "new/c/0").mkdir(parents=True)
    for name in ("one", "other"):
        (mounted.path / "new" / name).write_bytes(name.encode())

    def store_shard() -> None:
        hosts[0].bucket.put(f"{PREFIX}/new/zarr.json", json.dumps(DOCUMENT).encode())
        hosts[0].bucket.put(f"{PREFIX}/new/c/0/0", shard)

    s3_proxy.fail("PutObject", Before(store_shard), key=f"{PREFIX}/new/c/0/0")
    (mounted.path / "new/one").rename(mounted.path / "new/c/0/0")
    assert (mounted.path / "new/c/0/0").read_bytes() == b"one"
    assert host.bucket.get(f"{PREFIX}/new/c/0/0") == shard
    put = partial(hosts[0].bucket.put, f"{PREFIX}/new/name", b"of another host")
    s3_proxy.fail("PutObject", Before(put), key=f"{PREFIX}/new/name")
    (mounted.path / "new/other").rename(mounted.path / "new/name")
    assert host.bucket.get(f"{PREFIX}/new/name") == b"other"
    mounted.unmount()
