"""--write: PUT, DELETE and flush, with conditions, and what survives."""

import json
import os
import re
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import shardfs
from shardfs.serve.options import ClientLimits
from tests.support.corpus import LITTLE, ZSTD
from tests.support.damage import document
from tests.support.datasets import age, store
from tests.support.mounting import PATIENCE, command, environment, eventually
from tests.support.processes import tied
from tests.support.s3_server import Bucket
from tests.support.serving import Client, Served, served

GROUP = b'{"zarr_format": 3, "node_type": "group"}'
CHUNK = np.arange(100, 112, dtype="<i4").tobytes()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "data.zarr"
    store(directory / "image", document(LITTLE))
    (directory / "zarr.json").write_bytes(GROUP)
    (directory / "notes.txt").write_text("notes")
    age(directory)
    return directory


@pytest.fixture
def site(source: Path) -> Iterator[Served]:
    with served(source, write=True) as site:
        yield site


def stored(source: Path | str, coords: tuple[int, ...], array: str = "image") -> bytes | None:
    with shardfs.open(source) as dataset:
        return dataset[array].read_chunk(coords)


def test_a_chunk_that_was_put_is_seen_at_once_in_every_view_and_is_in_its_shard_at_the_end(
    source: Path, tmp_path: Path
) -> None:
    with served(source, write=True) as site:
        before = site.ask("/-/npy/image.npy").body
        reply = site.ask("/image/c/0/0", "PUT", CHUNK)
        assert (reply.status, reply.body) == (204, b"")
        for target in ("/image/c/0/0", "/-/v3/image/c/0/0", "/-/v2/image/0.0", "/-/decoded/v3/image/c/0/0"):
            shown = site.ask(target)
            assert (shown.body, shown["ETag"], shown["Cache-Control"]) == (CHUNK, reply["ETag"], "no-cache")
        after = site.ask("/-/npy/image.npy").body
        assert after != before
        assert CHUNK[:12] in after
        assert site.ask("/-/flush", "POST", b"").status == 204
        assert stored(source, (0, 0)) == CHUNK
        assert site.ask("/image/c/0/0")["ETag"] == reply["ETag"]  # a commit makes no new version
        assert site.ask("/-/v2/image/0.0").body == CHUNK
        site.ask("/-/v3/image/c/0/1", "PUT", CHUNK)
    assert stored(source, (0, 1)) == CHUNK


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_body_whose_length_nobody_says_changes_nothing(source: Path, site: Served, version: str) -> None:
    client = site.connect()
    client.send(f"PUT /notes.txt HTTP/{version}\r\nHost: localhost\r\n\r\nnew content")
    assert client.read().status == 411
    assert (source / "notes.txt").read_text() == "notes"
    assert site.ask("/notes.txt", "PUT", b"").status == 204
    assert (source / "notes.txt").read_bytes() == b""


def test_a_large_chunk_has_an_etag_only_where_it_survives_a_restart(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardfs.vfs.versions.MAX_SUMMED_NBYTES", 2)
    with served(source, write=True) as site:
        site.ask("/image/c/0/0", "PUT", CHUNK)
        assert site.ask("/image/c/0/0")["ETag"] is None
        assert site.ask("/-/decoded/v3/image/c/0/1")["ETag"] is None
        stored_before = site.ask("/image/c/0/1")["ETag"]
        assert stored_before is not None
    with served(source) as site:
        assert site.ask("/image/c/0/0")["ETag"] is not None
        assert site.ask("/image/c/0/0").body == CHUNK


def test_put_says_whether_it_created_and_delete_removes(source: Path, site: Served) -> None:
    client = site.connect()
    assert client.ask("/image/c/0/0", "DELETE").status == 204
    assert client.ask("/image/c/0/0").status == 404
    assert client.ask("/-/v2/image/0.0").status == 404
    assert client.ask("/image/c/0/0", "DELETE").status == 404
    assert client.ask("/image/c/0/0", "PUT", CHUNK).status == 201
    assert client.ask("/image/c/0/0", "PUT", CHUNK).status == 204
    assert client.ask("/new/deep/notes.txt", "PUT", b"").status == 201
    assert (source / "new/deep/notes.txt").read_bytes() == b""
    assert client.ask("/notes.txt", "DELETE").status == 204
    assert not (source / "notes.txt").exists()


def test_an_array_is_created_by_its_document_and_chunks(source: Path) -> None:
    unsharded = {
        "zarr_format": 3, "node_type": "array", "shape": [8, 8], "data_type": "int32", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [LITTLE, ZSTD], "attributes": {"made": "over HTTP"},
    }  # fmt: skip
    text = json.dumps(unsharded).encode()
    with served(source, write=True, shards=(2,)) as site:
        reply = site.ask("/new/zarr.json", "PUT", text)
        assert (reply.status, site.ask("/new/zarr.json").body) == (201, text)
        assert reply["ETag"] == site.ask("/new/zarr.json")["ETag"]
        assert json.loads(site.ask("/-/v2/new/.zattrs").body) == {"made": "over HTTP"}
        assert site.ask("/new/zarr.json", "PUT", b"{}").status == 422
        assert site.ask("/new/zarr.json", "PUT", b"").status == 422
        assert site.ask("/new/c/9/9", "PUT", b"x").status == 422
        assert site.ask("/new/zarr.json").body == text
        site.ask("/new/c/0/0", "PUT", b"encoded")
    assert "sharding_indexed" in (source / "new/zarr.json").read_text()
    assert stored(source, (0, 0), "new") == b"encoded"


def test_conditions_keep_two_writers_apart(site: Served) -> None:
    for target in ("/image/c/0/0", "/image/zarr.json", "/notes.txt"):
        first = site.ask(target)
        tag, other = first["ETag"], '"other"'
        body = first.body.replace(b" ", b"  ") if target.endswith("json") else CHUNK
        for method in ("PUT", "DELETE"):
            data = body if method == "PUT" else None
            for headers in (
                {"If_Match": other}, {"If_Match": f"W/{tag}"}, {"If_None_Match": "*"}, {"If_None_Match": tag},
                {"If_Unmodified_Since": first["Last-Modified"]},
            ):  # fmt: skip
                assert site.ask(target, method, data, **headers).status == 412, headers
        assert site.ask(target).body == first.body
        changed = site.ask(target, "PUT", body, If_Match=f"{other}, {tag}")
        assert (changed.status, site.ask(target).body) == (204, body)
        assert site.ask(target, "PUT", first.body, If_Match=tag).status == 412
        assert site.ask(target, "PUT", first.body, If_Match=changed["ETag"]).status == 204
        assert site.ask(target, "PUT", first.body, If_Match="*").status == 204
    for target in ("/image/c/9/8", "/nowhere"):
        assert site.ask(target, "PUT", b"x", If_Match="*").status == 412
        assert site.ask(target, "DELETE", If_Match=tag).status == 412
    assert site.ask("/nowhere", "PUT", b"x", If_None_Match="*").status == 201


def test_of_many_writers_who_saw_the_same_version_or_nothing_one_wins(site: Served) -> None:
    site.ask("/image/c/1/1", "DELETE")
    for target, headers in (
        ("/image/c/0/0", {"If_Match": site.ask("/image/c/0/0")["ETag"]}),
        ("/image/c/1/1", {"If_None_Match": "*"}),
        ("/new.txt", {"If_None_Match": "*"}),
    ):
        clients = [site.connect() for _ in range(12)]
        ask = partial(Client.ask, target=target, method="PUT", **headers)
        with ThreadPoolExecutor(len(clients)) as pool:
            asked = [pool.submit(ask, client, body=bytes([n]) * 48) for n, client in enumerate(clients)]
            replies = [each.result().status for each in asked]
        assert sorted(replies)[0] in (201, 204)
        assert sorted(replies)[1:] == [412] * 11


def test_a_body_that_does_not_come_is_waited_for_no_longer_and_changes_nothing(source: Path) -> None:
    with served(source, write=True, limits=replace(ClientLimits(), body_seconds=0.2)) as site:
        before = site.ask("/image/c/0/0").body
        client = site.connect()
        client.send("PUT /image/c/0/0 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 48\r\n\r\nhalf")
        assert client.read().status == 408
        assert client.is_closed()
        assert site.ask("/image/c/0/0").body == before


def test_a_body_that_comes_byte_by_byte_without_end_is_given_up_and_one_that_takes_its_time_is_not(
    source: Path,
) -> None:
    """Each byte begins a time limit again, so one client could else keep a connection for centuries."""

    def drip(site: Served, client: Client, data: bytes) -> None:
        other = site.connect()
        for number in range(len(data)):
            client.send(data[number : number + 1])
            assert other.ask("/-/healthy").status == 200  # so each byte comes by itself
            if select.select([client.socket], [], [], 0)[0]:
                return

    head = "PUT {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n"
    with served(source, write=True, limits=replace(ClientLimits(), body_seconds=1.0, body_rate=10.0**9)) as site:
        client = site.connect()
        client.send(head.format("/new.bin", 2**20))
        drip(site, client, bytes(2**20))
        reply = client.read()
        assert (reply.status, b"bytes per second" in reply.body) == (408, True)
        assert site.ask("/new.bin").status == 404
    with served(source, write=True) as site:
        client = site.connect()
        client.send(head.format("/image/c/0/0", len(CHUNK)))
        drip(site, client, CHUNK)
        assert client.read().status == 204
        assert site.ask("/image/c/0/0").body == CHUNK


def test_many_slow_bodies_hold_little_memory_and_keep_nobody_from_writing(source: Path) -> None:
    with served(source, write=True) as site:
        slow = [site.connect() for _ in range(200)]
        for number, client in enumerate(slow):
            target = ("/image/c/0/0", "/notes.txt", f"/new-{number}", "/image/zarr.json")[number % 4]
            client.send(f"PUT {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {2**29}\r\n\r\nhalf")
        before = site.ask("/notes.txt").body
        assert site.ask("/image/c/1/1", "PUT", CHUNK).status == 204
        assert site.ask("/other.txt", "PUT", b"other").status == 201
        assert site.ask("/-/flush", "POST", b"").status == 204
        assert stored(source, (1, 1)) == CHUNK
        buffers = site.views.main.fs.writable.buffers  # type: ignore[attr-defined]
        assert buffers._space.memory <= 2**20
        for client in slow:
            client.close()
        eventually(lambda: not buffers._space.memory)
        assert site.ask("/notes.txt").body == before
    assert sorted(os.listdir(source)) == ["image", "notes.txt", "other.txt", "zarr.json"]


def test_a_body_that_breaks_off_or_is_too_large_changes_nothing(source: Path) -> None:
    with served(source, write=True, limits=replace(ClientLimits(), body_nbytes=2**20)) as site:
        for target in ("/image/c/0/0", "/notes.txt", "/image/zarr.json", "/new.bin"):
            before = site.ask(target)
            client = site.connect()
            client.send(f"PUT {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf")
            client.socket.shutdown(socket.SHUT_WR)
            assert client.read().status == 400
            assert site.ask(target, "PUT", bytes(2**20 + 1)).status == 413
            client = site.connect()
            client.send(f"PUT {target} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            client.send(b"10000\r\n" + bytes(65536) + b"\r\n" + b"ffff1\r\n" + bytes(0xFFFF1) + b"\r\n0\r\n\r\n")
            assert client.read().status == 413
            assert site.ask(target, "PUT", b"x", Content_Range="bytes 0-0/5").status == 400
            assert site.ask(target, "PUT", b"x", Content_Encoding="gzip").status == 415
            after = site.ask(target)
            assert (after.status, after.body if after.status == 200 else b"") == (
                before.status,
                before.body if before.status == 200 else b"",
            )


def test_a_body_in_chunks_and_one_that_waits_to_be_asked_for_are_put(site: Served) -> None:
    client = site.connect()
    client.send(
        "PUT /a.bin HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    )
    assert client.read().status == 201
    client.send("PUT /b.bin HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
    assert client.socket.recv(100, socket.MSG_PEEK).startswith(b"HTTP/1.1 100")
    client.send("fgh")
    assert client.read().status == 201
    assert (client.ask("/a.bin").body, client.ask("/b.bin").body) == (b"abcde", b"fgh")


def test_a_large_body_is_put_in_little_memory(source: Path, site: Served) -> None:
    data = os.urandom(2**20) * 24
    assert site.ask("/large.bin", "PUT", data).status == 201
    assert site.views.main.fs.writable.buffers._space.memory <= 4 * 2**20  # type: ignore[attr-defined]
    assert (source / "large.bin").read_bytes() == data


def test_a_file_that_passes_through_is_replaced_as_a_whole_and_keeps_its_permissions(
    source: Path, site: Served
) -> None:
    before = os.urandom(2**20) * 8
    (source / "notes.txt").write_bytes(before)
    (source / "notes.txt").chmod(0o640)
    reader = site.connect()
    reader.send("GET /notes.txt HTTP/1.1\r\nHost: localhost\r\n\r\n")
    reader.socket.recv(1, socket.MSG_PEEK)
    names = set(os.listdir(source))
    assert site.ask("/notes.txt", "PUT", b"after").status == 204
    assert reader.read().body == before
    assert site.ask("/notes.txt").body == b"after"
    assert (source / "notes.txt").stat().st_mode & 0o777 == 0o640
    assert set(os.listdir(source)) == names


def test_only_the_view_of_the_option_is_written_and_others_say_where(site: Served) -> None:
    for target in ("/-/v2/image/0.0", "/-/npy/image.npy", "/-/decoded/v3/image/c/0/0"):
        for method in ("PUT", "DELETE"):
            reply = site.ask(target, method, CHUNK if method == "PUT" else None)
            assert (reply.status, b"/-/v3/" in reply.body) == (405, True)
    for target in ("/image/", "/", "/image", "/image/c"):
        assert site.ask(target, "PUT", b"x").status == 409
        assert site.ask(target, "DELETE").status == 409
    for target in ("/../x", "/a//b", "/a%00"):
        assert site.ask(target, "PUT", b"x").status == 404
    assert site.ask("/.shardfs/x", "PUT", b"x").status in (403, 404, 422)
    assert site.ask("/-/flush").status == 405


@pytest.mark.slow
def test_in_the_decoded_view_plain_bytes_are_put(source: Path) -> None:
    with served(source, write=True, decode=True) as site:
        assert site.ask("/-/decoded/v3/image/c/0/0", "PUT", CHUNK).status == 204
        assert site.ask("/image/c/0/0", "PUT", CHUNK[1:]).status == 422
        assert site.ask("/-/v3/image/c/0/0").body == CHUNK
    assert stored(source, (0, 0)) == CHUNK


def test_nothing_is_written_without_the_option(source: Path) -> None:
    with served(source) as reading:
        assert reading.ask("/notes.txt", "PUT", b"x").status == 405
        assert reading.ask("/-/flush", "POST", b"").status == 405
    assert (source / "notes.txt").read_text() == "notes"
    assert not (source / ".shardfs").exists()


def test_two_servers_write_chunks_of_one_shard_beside_each_other_and_a_flush_of_one_commits_both(
    source: Path, site: Served
) -> None:
    with served(source, write=True) as other:
        assert site.ask("/image/c/0/0", "PUT", CHUNK).status == 204
        assert other.ask("/image/c/0/1", "PUT", CHUNK).status == 204
        assert other.ask("/more.txt", "PUT", b"more").status == 201
        assert site.ask("/-/flush", "POST", b"").status == 204
        assert [stored(source, (0, n)) for n in range(2)] == [CHUNK] * 2
        assert site.ask("/more.txt").body == b"more"
        assert [server.ask(f"/image/c/0/{n}").body for server in (site, other) for n in range(2)] == [CHUNK] * 4


def start(source: Path, *arguments: str) -> tuple["subprocess.Popen[str]", int]:
    line = tied(*command("serve", "--listen", "127.0.0.1:0", *arguments, source))
    process = subprocess.Popen(
        line,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stdout is not None
    found = re.search(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
    assert found, process.communicate()
    return process, int(found[1])


@pytest.mark.slow
def test_a_kill_loses_no_put_that_was_answered(source: Path) -> None:
    process, port = start(source, "--write")
    client = Client(port)
    for n in range(4):
        assert client.ask(f"/image/c/1/{n}", "PUT", CHUNK).status == 204
    assert client.ask("/image/c/0/0", "DELETE").status == 204
    assert client.ask("/more.txt", "PUT", b"more").status == 201
    process.kill()
    process.communicate()
    client.close()
    assert stored(source, (1, 0)) != CHUNK  # it was in the journal alone
    with served(source, write=True) as site:
        assert [site.ask(f"/image/c/1/{n}").body for n in range(4)] == [CHUNK] * 4
        assert site.ask("/image/c/0/0").status == 404
        assert site.ask("/more.txt").body == b"more"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_commits_and_ends_with_success_and_the_log_names_no_token(
    source: Path, tmp_path: Path, number: signal.Signals
) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length")
    token.chmod(0o600)
    process, port = start(source, "--write", "--log-level", "debug", f"--token-file={token}")
    client = Client(port)
    secret = {"Authorization": "Bearer a-token-of-some-length"}
    assert client.ask("/image/c/0/0?key=a-token-of-some-length", "PUT", CHUNK, **secret).status == 204
    assert client.ask("/image/c/0/0", "PUT", b"x", Authorization="Bearer another-token-of-some-length").status == 401
    process.send_signal(number)
    out, log = process.communicate(timeout=PATIENCE)
    client.close()
    assert (process.returncode, out) == (0, "")
    assert "PUT /image/c/0/0 204" in log
    assert "token-of-some-length" not in log
    assert stored(source, (0, 0)) == CHUNK


@pytest.mark.slow
def test_a_bucket_is_written(source: Path, s3_bucket: Bucket, in_bucket: Callable[[Path], str]) -> None:
    url = in_bucket(source)
    with served(url, write=True) as site:
        tag = site.ask("/image/c/0/0")["ETag"]
        assert site.ask("/image/c/0/0", "PUT", CHUNK, If_Match=tag).status == 204
        assert site.ask("/image/c/0/0", "PUT", CHUNK, If_Match=tag).status == 412
        assert site.ask("/-/v2/image/0.0").body == CHUNK
        assert site.ask("/notes.txt", "PUT", b"more").status == 204
        assert site.ask("/-/flush", "POST", b"").status == 204
        assert site.ask("/-/v2/image/0.0").body == site.ask("/image/c/0/0").body == CHUNK
    assert stored(url, (0, 0)) == CHUNK
    assert s3_bucket.get("data.zarr/notes.txt") == b"more"
