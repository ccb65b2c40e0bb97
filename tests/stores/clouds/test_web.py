"""Sources on a web server: found without listings, read by ranges, and refused where it lies or versions may mix."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import numpy as np
import pytest
import trio
import zarr

import shardfs
from shardfs.dataset.hierarchy import Source, open_source
from shardfs.errors import (
    AccessDeniedError,
    ConflictError,
    NotFoundError,
    ShardfsError,
    SourceError,
    StaleError,
    StoreError,
    UnreachableError,
    UnsupportedError,
)
from shardfs.stores.clouds.web import WebClient, WebService
from shardfs.stores.objects.client import Backoff
from shardfs.stores.objects.location import CloudLocation
from shardfs.stores.objects.pace import TIMEOUTS, Timeouts
from shardfs.stores.objects.requests import Counts, Fetched, Range
from shardfs.stores.url import StoreOptions
from shardfs.vfs.options import TreeOptions
from shardfs.vfs.paths import Paths, open_paths
from tests.support.commands import one_line_of, run, run_json
from tests.support.mounting import PATIENCE, Mounter
from tests.support.opened import in_trio
from tests.support.processes import running
from tests.support.serving import served
from tests.support.web_server import MOST_NBYTES, Web, web_server

pytestmark = pytest.mark.slow

VALUES = np.arange(1, 4097, dtype="u2").reshape(64, 64)
OME = {"ome": {"version": "0.5", "multiscales": [{"datasets": [{"path": "0"}, {"path": "s/1"}], "axes": []}]}}


def write_group(path: Path) -> None:
    """An image of two scales and a label, beside an array that nothing names; half of scale 0 is missing."""
    group = zarr.open_group(path, mode="w", zarr_format=3, attributes=OME)
    for name, shape, stored in (("0", 64, 32), ("s/1", 32, 32), ("beside", 32, 32)):
        array = group.create_array(name, shape=(shape, shape), chunks=(8, 8), shards=(16, 16), dtype="u2")
        array[:stored] = VALUES[:stored, :shape]
    labels = group.create_group("labels", attributes={"ome": {"labels": ["cells"]}})
    labels.create_array("cells", shape=(8,), chunks=(2,), shards=(8,), dtype="u1")[...] = 7


def client_of(place: CloudLocation, timeouts: Timeouts = TIMEOUTS) -> WebClient:
    """A client that does not wait between attempts."""
    return WebClient(WebService(place, timeouts), Counts(), backoff=Backoff(pause=lambda seconds: None))


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    write_group(tmp_path / "files/image.zarr")
    with web_server(tmp_path / "files") as server:
        yield server


@asynccontextmanager
async def opened(url: str, options: StoreOptions | None = None) -> AsyncIterator[tuple[Source, Paths]]:
    async with open_source(url, options) as source, open_paths(source, TreeOptions()) as paths:
        yield source, paths


@in_trio
async def test_a_chunk_takes_one_request_once_its_index_is_known(web: Web) -> None:
    async with opened(f"{web.url}/image.zarr/s/1") as (_, paths):
        first = bytes(await paths.read("c/0/0"))
        web.asked()
        second = bytes(await paths.read("c/1/1"))
        (request,) = web.asked()
        assert request[:2] == ("GET", "/image.zarr/s/1/c/0/0")
        assert first != second
        await paths.read("c/1/1")
        await paths.read("zarr.json")
        assert web.asked() == []
        await paths.read("c/2/0")  # in another shard: its index, and the chunk
        assert [request[:2] for request in web.asked()] == [("GET", "/image.zarr/s/1/c/1/0")] * 2


@in_trio
async def test_nodes_are_found_by_what_documents_say(web: Web) -> None:
    async with opened(f"{web.url}/image.zarr") as (_, paths):
        assert {one.name for one in await paths.names("")} == {"zarr.json", "0", "s", "labels"}
        assert {one.name for one in await paths.names("s")} == {"zarr.json", "1"}
        assert {one.name for one in await paths.names("labels")} == {"zarr.json", "cells"}
        assert b"unsigned" not in bytes(await paths.read("beside/zarr.json"))  # by its name alone
        for missing in ("nothing", "nothing/zarr.json", "0/nothing", "0/c/7/7", "0/c/100/0"):
            with pytest.raises(NotFoundError):
                await paths.read(missing)


@in_trio
async def test_consolidated_metadata_names_all_nodes(web: Web) -> None:
    zarr.consolidate_metadata(web.root / "image.zarr")
    async with opened(f"{web.url}/image.zarr") as (_, paths):
        assert {one.name for one in await paths.names("")} == {"zarr.json", "0", "s", "labels", "beside"}


@in_trio
async def test_chunks_are_listed_only_if_each_shard_may_be_asked_for(web: Web) -> None:
    url = f"{web.url}/image.zarr/0"
    async with opened(url) as (_, paths):
        with pytest.raises(UnsupportedError, match="--assume-complete"):
            await paths.names("c")
    async with opened(url, StoreOptions(assume_complete=True)) as (_, paths):
        assert len(await paths.names("c")) == 8
        assert len(await paths.names("c/3")) == 8
        assert list(await paths.names("c/7")) == []  # in shards that are not stored


@pytest.mark.parametrize("etags", [True, False], ids=["ETag", "Last-Modified"])
@pytest.mark.parametrize("conditions", [True, False], ids=["conditions", "no conditions"])
@in_trio
async def test_a_version_that_changes_between_index_and_chunk_is_stale(web: Web, etags: bool, conditions: bool) -> None:
    web.etags, web.conditions = etags, conditions
    shard = web.root / "image.zarr/s/1/c/0/0"
    async with open_source(f"{web.url}/image.zarr/s/1") as source:
        array = await source.hierarchy.array("")
        assert array is not None
        _, extent = await array.find((0, 0))
        assert extent is not None
        stat = shard.stat()
        shard.write_bytes(shard.read_bytes()[::-1])
        os.utime(shard, (stat.st_mtime + 5, stat.st_mtime + 5))
        with pytest.raises(StaleError):
            await extent.read(0, extent.nbytes)


@in_trio
async def test_a_file_replaced_by_a_shorter_one_is_another_version_without_conditions(web: Web) -> None:
    web.conditions = False
    shard = web.root / "image.zarr/s/1/c/0/0"
    async with open_source(f"{web.url}/image.zarr/s/1") as source:
        snapshot = await source.store.open("c/0/0")
        shard.write_bytes(b"short")
        with pytest.raises(StaleError):
            await snapshot.read(100, 10)
        assert source.store.statistics()["conflicts"] == 1


LIES = {
    "whole": "the server gives the whole file",
    "other range": "another range than it was asked for",
    "no range": "does not say which range",
    "huge": "another version|a size that no file has|another range",
    "longer": "more than the range that it states",
    "shorter": "cut short",
    "compressed": "compressed",
    "no version": "neither a strong ETag nor Last-Modified",
}


@pytest.mark.parametrize("fault", LIES)
@in_trio
async def test_a_reply_that_is_not_what_was_asked_for_is_an_error(web: Web, fault: str) -> None:
    async with opened(f"{web.url}/image.zarr/s/1") as (_, paths):
        await paths.read("c/0/0")
        web.faults.add(fault)
        with pytest.raises(StoreError, match=LIES[fault]):
            await paths.read("c/1/1")
        web.faults.clear()
        assert await paths.read("c/1/1")
    web.faults.add(fault)
    with pytest.raises(SourceError, match=LIES[fault]):
        async with opened(f"{web.url}/image.zarr/s/1"):
            pass


@in_trio
async def test_a_reply_that_comes_too_slowly_is_given_up(web: Web) -> None:
    place = CloudLocation.parse(f"{web.url}/image.zarr")
    client = client_of(place, Timeouts(grace=0.0, rate=1e15))
    (web.root / "image.zarr/large").write_bytes(bytes(2**22))  # which comes in several pieces
    with pytest.raises(UnreachableError, match="too slowly"):
        await client.get("large", Range(0, 2**22))
    assert [method for method, _, _ in web.asked()] == ["GET", "GET"]


@pytest.mark.parametrize("status", [200, 302, 403, 404, 500])
@in_trio
async def test_of_the_body_of_an_error_no_more_is_read_than_a_connection_holds(web: Web, status: int) -> None:
    web.endless.add(status)
    web.absent = status
    place = CloudLocation.parse(f"{web.url}/image.zarr")
    client = client_of(place)
    if status == 200:
        web.faults.add("whole")
    with pytest.raises(ShardfsError):
        await client.get("zarr.json" if status == 200 else "nothing", Range(0, 10))
    assert web.nsent < MOST_NBYTES // 4


@in_trio
async def test_requests_one_after_another_use_one_connection_even_after_errors(web: Web) -> None:
    place = CloudLocation.parse(f"{web.url}/image.zarr")
    client = client_of(place)
    for _ in range(3):
        assert (await client.get("zarr.json", Range(0, 10))).data.nbytes == 10
        assert (await client.head("zarr.json")).stat.size > 10
        with pytest.raises(NotFoundError):
            await client.get("nothing", Range(0, 10))
    assert web.nconnections == 1


@in_trio
async def test_a_connection_that_the_server_has_closed_meanwhile_costs_no_failed_attempt(web: Web) -> None:
    web.hangs_up = True
    place = CloudLocation.parse(f"{web.url}/image.zarr")
    client = client_of(place)
    for _ in range(3):
        assert (await client.get("zarr.json", Range(0, 10))).data.nbytes == 10
    assert web.nconnections == 3
    assert client.counts.retries == 0


@in_trio
async def test_a_server_that_does_not_answer_is_given_up(web: Web) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = CloudLocation.parse(f"http://127.0.0.1:{silent.getsockname()[1]}/image.zarr")
        client = client_of(place, Timeouts(silence=0.2))
        with pytest.raises(UnreachableError, match="no answer in time"):
            await client.head("zarr.json")


@in_trio
async def test_requests_go_by_the_proxy_in_the_environment(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", web.url.replace("//", "//me:hunter%402@"))
    monkeypatch.setenv("no_proxy", "localhost")
    place = CloudLocation.parse("http://files.invalid:8080/image.zarr")
    client = client_of(place)
    assert (await client.get("zarr.json", Range(0, 10))).data.nbytes == 10
    assert web.proxy_words == {"Basic bWU6aHVudGVyQDI="}
    assert [path for _, path, _ in web.asked()] == ["/image.zarr/zarr.json"]


@in_trio
async def test_weak_etags_and_servers_that_do_not_count_from_the_end_are_read(web: Web) -> None:
    async with opened(f"{web.url}/image.zarr/s/1") as (_, paths):
        expected = bytes(await paths.read("c/0/0"))
    web.faults |= {"weak", "no suffix"}
    async with opened(f"{web.url}/image.zarr/s/1") as (_, paths):
        assert bytes(await paths.read("c/0/0")) == expected


class Replacing(WebService):
    """A server on which somebody else writes a new version of a file after each of the next *times* requests."""

    times = 0
    path = Path()

    def head(self, key: str, etag: str | None = None) -> Fetched:
        try:
            return super().head(key, etag)
        finally:
            self._replace()

    def get(self, key: str, part: Range, etag: str | None, *, with_properties: bool = False) -> Fetched:
        try:
            return super().get(key, part, etag, with_properties=with_properties)
        finally:
            self._replace()

    def _replace(self) -> None:
        if self.times:
            self.times -= 1
            self.path.write_bytes(b"version %02d" % self.times)


@pytest.mark.parametrize("conditions", [True, False], ids=["conditions", "no conditions"])
@pytest.mark.parametrize("part", [Range(-7, 7), Range(3, 7)], ids=["from the end", "created"])
@in_trio
async def test_a_file_that_is_replaced_between_two_requests_is_read_as_it_is_then(
    web: Web, conditions: bool, part: Range
) -> None:
    web.conditions = conditions
    web.faults.add("no suffix")
    service = Replacing(CloudLocation.parse(web.url))
    service.path = web.root / "key"
    service.path.write_bytes(b"version xx" if part.offset < 0 else b"")
    client = WebClient(service, Counts(), backoff=Backoff(pause=lambda seconds: None))
    service.times = 2
    assert bytes((await client.get("key", part)).data) == b"sion 00"
    service.path.write_bytes(b"version xx")
    service.times = 100
    with pytest.raises(StoreError, match="replaced each of the 4 times") as raised:
        await client.get("key", Range(-7, 7))
    assert not isinstance(raised.value, ConflictError), "no version was asked for"
    assert [method for method, _, _ in web.asked()][-9:] == ["GET", *["HEAD", "GET"] * 4]
    service.times = 1
    with pytest.raises(ConflictError):
        await client.get("key", Range(-7, 7), etag=(await client.head("key")).stat.etag)


@in_trio
async def test_redirects_are_followed_and_transient_failures_tried_again(web: Web) -> None:
    async with opened(f"{web.url}/image.zarr/s/1") as (_, paths):
        expected = bytes(await paths.read("c/0/0"))
    (web.root / "image.zarr/s/1/c/0/0").rename(web.root / "elsewhere")
    web.moved["/image.zarr/s/1/c/0/0"] = "/elsewhere"
    web.failures = 2
    async with opened(f"{web.url}/image.zarr/s/1") as (source, paths):
        assert bytes(await paths.read("c/0/0")) == expected
        assert source.store.statistics()["retries"] == 2


@in_trio
@pytest.mark.parametrize("location", ["http://[x", "http://a:b/", "file:///etc/passwd", "//"])
async def test_a_redirect_to_what_is_no_url_of_a_server_is_an_error(web: Web, location: str) -> None:
    web.moved["/image.zarr/s/1/c/0/0"] = location
    async with opened(f"{web.url}/image.zarr/s/1") as (_, paths):
        with pytest.raises(StoreError):
            await paths.read("c/0/0")


@in_trio
async def test_redirects_to_other_hosts_are_followed_as_the_docs_warn(web: Web, tmp_path: Path) -> None:
    shard = "/image.zarr/s/1/c/0/0"
    (tmp_path / "other").mkdir()
    (web.root / shard.lstrip("/")).rename(tmp_path / "other/shard")
    with web_server(tmp_path / "other") as other:
        web.moved[shard] = f"{other.url}/shard"
        async with opened(f"{web.url}/image.zarr/s/1") as (_, paths):
            assert await paths.read("c/0/0")
        assert {path for _, path, _ in other.asked()} == {"/shard"}


@in_trio
async def test_refused_is_absent_only_where_the_server_refuses_all_that_is_absent(web: Web) -> None:
    url, shard = f"{web.url}/image.zarr/0", "/image.zarr/0/c/3/3"
    web.refused.add(shard)
    async with opened(url) as (_, paths):
        with pytest.raises(AccessDeniedError):  # other names that do not exist are said not to
            await paths.read("c/7/7")
    web.absent = 403
    async with opened(url) as (_, paths):
        with pytest.raises(NotFoundError):
            await paths.read("c/7/7")
        web.refused.add("/image.zarr/0/zarr.json")  # now the server refuses everything
        with pytest.raises(AccessDeniedError):
            await paths.read("c/7/5")


@in_trio
async def test_a_proxy_without_a_server_behind_it_makes_no_chunk_absent(web: Web) -> None:
    async with opened(f"{web.url}/image.zarr/0") as (_, paths):
        with pytest.raises(NotFoundError):
            await paths.read("c/7/7")
        web.faults.add("404 of a proxy")
        with pytest.raises(StoreError, match="says so of the source too"):
            await paths.read("c/0/0")
        web.faults.clear()
        assert await paths.read("c/0/0")
        with pytest.raises(NotFoundError):
            await paths.read("c/7/5")


class Waiting:
    """A lock that is held until it is released, and says when somebody waits for it."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.lock = threading.Lock()
        self.lock.acquire()

    def __enter__(self) -> None:
        self.begun.release()
        self.lock.acquire()

    def __exit__(self, *error: object) -> None:
        self.lock.release()


@in_trio
async def test_one_look_at_the_document_serves_all_who_were_told_before_that_nothing_is_there(web: Web) -> None:
    client = client_of(CloudLocation.parse(f"{web.url}/image.zarr"))
    client.ask_for("zarr.json")

    async def ask(key: str) -> None:
        with pytest.raises(NotFoundError):
            await client.get(key, Range(0, 10))

    await ask("nothing")
    assert [(method, path.rpartition("/")[2]) for method, path, _ in web.asked()] == [
        ("GET", "nothing"),
        ("HEAD", "zarr.json"),
    ]
    waiting = Waiting()
    client._looking = waiting  # type: ignore[assignment]
    async with trio.open_nursery() as nursery:
        for number in range(16):
            nursery.start_soon(ask, f"nothing/{number}")
        for _ in range(16):
            await trio.to_thread.run_sync(waiting.begun.acquire)
        waiting.lock.release()
    assert [method for method, _, _ in web.asked()] == ["GET"] * 16 + ["HEAD"]


@pytest.mark.parametrize("status", [404, 500])
@in_trio
async def test_one_look_that_does_not_find_the_document_is_told_to_all_who_wait_for_it(web: Web, status: int) -> None:
    client = client_of(CloudLocation.parse(f"{web.url}/image.zarr"))
    client.ask_for("zarr.json")
    waiting, failed = Waiting(), Counter[str]()
    client._looking = waiting  # type: ignore[assignment]
    looks: list[str] = []

    def look(key: str) -> int:
        looks.append(key)
        if status == 500:
            raise StoreError("status 500")
        return status

    client._status_of = look  # type: ignore[method-assign]

    async def ask(key: str) -> None:
        with pytest.raises(StoreError) as raised:
            await client.get(key, Range(0, 10))
        failed[str(raised.value).rpartition(" ")[0]] += 1

    async with trio.open_nursery() as nursery:
        for number in range(16):
            nursery.start_soon(ask, f"nothing/{number}")
        for _ in range(16):
            await trio.to_thread.run_sync(waiting.begun.acquire)
        waiting.lock.release()
    assert failed.total() == 16
    assert looks == ["zarr.json"]


@in_trio
async def test_what_a_server_refuses_later_is_an_error_though_it_once_refused_what_is_absent(web: Web) -> None:
    web.absent = 403
    async with opened(f"{web.url}/image.zarr/0") as (_, paths):
        with pytest.raises(NotFoundError):
            await paths.read("c/7/7")
        web.absent = 404
        web.refused.add("/image.zarr/0/c/0/0")
        with pytest.raises(AccessDeniedError):
            await paths.read("c/0/0")


@in_trio
async def test_a_server_that_refuses_names_with_a_dot_does_not_refuse_all_that_is_absent(web: Web) -> None:
    class Dotted(set[str]):
        def __contains__(self, path: object) -> bool:
            return "/." in str(path) or super().__contains__(path)

    web.refused = Dotted({"/image.zarr/0/c/0/0"})
    async with opened(f"{web.url}/image.zarr/0") as (_, paths):
        with pytest.raises(AccessDeniedError):
            await paths.read("c/0/0")


@in_trio
async def test_a_server_that_has_something_under_every_name_is_refused(web: Web) -> None:
    web.absent = 200
    web.etags = False
    (web.root / "page").write_text("<html>")

    class Every(dict[str, str]):
        def __contains__(self, path: object) -> bool:
            return not (web.root / str(path).lstrip("/")).is_file()

        def __getitem__(self, path: str) -> str:
            return "/page"

    web.moved = Every()
    with pytest.raises(SourceError, match="under every name"):
        async with opened(f"{web.url}/image.zarr"):
            pass


@in_trio
async def test_what_was_fetched_comes_from_the_cache_on_disk_next_time(web: Web, tmp_path: Path) -> None:
    options, url = StoreOptions(cache=str(tmp_path / "cache")), f"{web.url}/image.zarr/s/1"
    async with opened(url, options) as (_, paths):
        expected = bytes(await paths.read("c/0/0"))
    web.asked()
    async with opened(url, options) as (_, paths):
        assert bytes(await paths.read("c/0/0")) == expected
        shard = [request for request in web.asked() if request[1].endswith("c/0/0")]
        assert len(shard) <= 1  # the index, which tells the version


def test_a_file_of_any_name_is_found(web: Web) -> None:
    write_group(web.root / "odd é#?%20 name.zarr")
    url = f"{web.url}/odd%20%C3%A9%23%3F%2520%20name.zarr"
    (web.root / "odd é#?%20 name.zarr/a b%20#?é.txt").write_text("odd")
    with shardfs.open(url) as dataset:
        assert bytes(dataset["s/1"].read_chunk((0, 0)) or b"")

    async def read() -> bytes:
        async with opened(url) as (_, paths):
            return bytes(await paths.read("a b%20#?é.txt"))

    assert trio.run(read) == b"odd"


def test_urls_with_secrets_are_refused_without_repeating_them() -> None:
    for url in (
        "https://me:hunter2@example.org/x.zarr",
        "https://example.org/x.zarr?sig=hunter2",
        "https://example.org/x.zarr#hunter2",
        "https:/me:hunter2@example.org/x.zarr",
        "https://me:hunter2@[/x.zarr",
        "ftp://me:hunter2@example.org/x.zarr?token=hunter2",
        "gs://me:hunter2@bucket/x.zarr",
        "gs://bucket/x.zarr#hunter2",
        "az://container/x.zarr?sv=2024-01-01&sig=hunter2",
        "az://container?sig=hunter2",
        "https://me:hun/ter2@example.org/x.zarr",
        "https://me:hun?ter2@example.org/x.zarr",
        "s3://AKIAKEY:hun/ter2@bucket/x.zarr",
        "s3://bucket/x.zarr?X-Amz-Signature=hunter2",
        "file://me:hunter2@example.org/x.zarr",
        "file:///data/x.zarr?sig=hunter2",
        "file://me:hunter2@\N{FULLWIDTH SOLIDUS}/x.zarr",
    ):
        assert "ter2" not in one_line_of(run("info", url), 3), url
    for url in ("https://me:hunter2@example.org/x.zarr", "https:/me:hunter2@example.org/x.zarr"):
        for words in ([url], ["info", "x.zarr", "0", url], ["info", f"--endpoint-url={url}", f"--unknown={url}", url]):
            done = run(*words)
            assert done.returncode == 2
            assert "ter2" not in done.stdout + done.stderr, words


@contextmanager
def program(*words: str | Path, port: int) -> Iterator[None]:
    """Run a server until the end of the block."""
    with running(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < end
        yield


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_server_without_ranges_is_refused_with_the_reason(tmp_path: Path) -> None:
    write_group(tmp_path / "image.zarr")
    port = free_port()
    with program(sys.executable, "-m", "http.server", "-b", "127.0.0.1", "-d", tmp_path, str(port), port=port):
        done = run("info", f"http://127.0.0.1:{port}/image.zarr")
        assert "the server gives the whole file" in one_line_of(done, 3)


@pytest.mark.slow
def test_commands_and_mounts_read_what_rclone_serves(tmp_path: Path, mount: Mounter) -> None:
    files, port = tmp_path / "files", free_port()
    write_group(files / "image.zarr")
    rclone = Path(sys.executable).with_name("rclone")
    with program(rclone, "--config=", "serve", "http", files, "--addr", f"127.0.0.1:{port}", port=port):
        url = f"http://127.0.0.1:{port}/image.zarr"
        described = {one["path"]: one for one in run_json("info", "--json", url)["arrays"]}
        assert "stored_shards" not in described["0"]
        described = {one["path"]: one for one in run_json("info", "--json", "--assume-complete", url)["arrays"]}
        assert (described["0"]["stored_shards"], described["0"]["shards"]) == (8, 16)
        assert "--assume-complete" in one_line_of(run("verify", url), 1)
        assert run("verify", "--data", "--jobs=1", "--assume-complete", url).returncode == 0
        done = run("unpack", "--jobs=1", "--assume-complete", url, tmp_path / "chunks.zarr")
        assert done.returncode == 0
        assert "only nodes that documents name are copied" in done.stderr
        chunks = zarr.open_group(tmp_path / "chunks.zarr", mode="r")
        np.testing.assert_array_equal(chunks["s/1"][...], VALUES[:32, :32])
        for words in (["compact", url], ["pack", files / "image.zarr", url], ["recover", "--apply", url]):
            assert f"{url} can only be read" in one_line_of(run(*words), 3)
        mounted = mount(url)
        group = zarr.open_group(mounted.path, mode="r")
        np.testing.assert_array_equal(group["0"][:32], VALUES[:32])
        assert not group["0"][32:].any()


@pytest.mark.slow
def test_what_is_not_named_any_more_stays_in_a_copy(web: Web, tmp_path: Path) -> None:
    zarr.consolidate_metadata(web.root / "image.zarr")
    words = ["unpack", "--sync", "--jobs=1", "--assume-complete", f"{web.url}/image.zarr", str(tmp_path / "copy.zarr")]
    assert run(*words).returncode == 0
    assert (tmp_path / "copy.zarr/beside/c/0/0").exists()
    document = web.root / "image.zarr/zarr.json"
    unconsolidated = json.loads(document.read_text())
    del unconsolidated["consolidated_metadata"]
    document.write_text(json.dumps(unconsolidated))
    done = run(*words)
    assert done.returncode == 1
    assert "stay because SOURCE does not list what it has" in done.stderr + done.stdout
    assert (tmp_path / "copy.zarr/beside/c/0/0").exists()


@pytest.mark.slow
def test_a_certificate_that_is_not_trusted_is_named_as_the_reason(tmp_path: Path) -> None:
    files, port = tmp_path / "files", free_port()
    write_group(files / "image.zarr")
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    names += ["-addext", "basicConstraints=critical,CA:FALSE"]
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, *names]
    subprocess.run(words, check=True, capture_output=True)
    tls = ["--cert", certificate, "--key", key]
    rclone = Path(sys.executable).with_name("rclone")
    with program(rclone, "--config=", "serve", "http", files, "--addr", f"127.0.0.1:{port}", *tls, port=port):
        url = f"https://localhost:{port}/image.zarr"
        assert "SSL_CERT_FILE" in one_line_of(run("info", url), 3)
        assert run("info", url, SSL_CERT_FILE=str(certificate)).returncode == 0
        with web_server(files) as proxy:
            by_proxy = {"https_proxy": proxy.url, "no_proxy": "", "SSL_CERT_FILE": str(certificate)}
            assert run("info", url, **by_proxy).returncode == 0
            assert {request[:2] for request in proxy.asked()} == {("CONNECT", f"localhost:{port}")}


def test_what_shardfs_serves_is_a_source_again(tmp_path: Path) -> None:
    write_group(tmp_path / "image.zarr")
    with served(tmp_path / "image.zarr") as first, served(f"{first.url}/-/v3") as second:
        reply = second.ask("/-/v3/s/1/c/1/1")
        assert reply.status == 200
        assert reply.body == first.ask("/-/v3/s/1/c/1/1").body
        assert second.ask("/-/v3/s/1/c/").status == 501
