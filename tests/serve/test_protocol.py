"""HTTP itself: connections, heads, malformed requests, limits, slow clients, and the end of a server."""

import os
import select
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from shardfs.serve.options import ClientLimits
from tests.support.datasets import age
from tests.support.mounting import PATIENCE
from tests.support.serving import Client, Served, served

pytestmark = pytest.mark.slow

NOTES = b"0123456789" * 10
LIMITS = ClientLimits()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "data.zarr"
    directory.mkdir()
    (directory / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    (directory / "notes.txt").write_bytes(NOTES)
    (directory / "large.bin").write_bytes(os.urandom(2**20) * 48)
    age(directory)
    return directory


def test_a_connection_serves_many_requests_also_sent_at_once(site: Served) -> None:
    client = site.connect()
    for _ in range(3):
        assert client.ask("/notes.txt").body == NOTES
    one = "GET /notes.txt HTTP/1.1\r\nHost: localhost\r\n\r\n"
    client.send(one + one.replace("notes.txt", "nowhere") + one.replace("GET", "HEAD") + one)
    assert [client.read(method).status for method in ("GET", "GET", "HEAD", "GET")] == [200, 404, 200, 200]


def test_a_request_may_come_byte_by_byte(site: Served) -> None:
    client = site.connect()
    for byte in b"GET /notes.txt HTTP/1.1\r\nHost: localhost\r\n\r\n":
        client.send(bytes([byte]))
    assert client.read().body == NOTES


def test_http_1_0_and_connection_close_end_the_connection(site: Served) -> None:
    for head in ("GET {} HTTP/1.0\r\n\r\n", "GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"):
        for target in ("/notes.txt", "/"):
            client = site.connect()
            client.send(head.format(target))
            reply = client.read()
            assert reply.status == 200
            assert reply.body == NOTES or b'"notes.txt"' in reply.body
            assert client.is_closed()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        ("GET / HTTP/2.0\r\nHost: localhost\r\n\r\n", 505),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n", 400),
        ("nonsense\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nBad Header: x\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5, 6\r\n\r\nhello", 400),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
        ("PUT /x HTTP/1.1\r\nHost: localhost\r\nExpect: magic\r\nContent-Length: 5\r\n\r\n", 417),
        ("CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (f"GET /{'x' * 9000} HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
        (f"GET / HTTP/1.1\r\nHost: localhost\r\nX: {'x' * 40_000}\r\n\r\n", 431),
        ("GET / HTTP/1.1\r\nHost: localhost\r\n" + "X: y\r\n" * 10_000 + "\r\n", 431),
    ],
)
def test_what_is_no_request_is_refused_and_nothing_behind_it_is_read(site: Served, request_: str, status: int) -> None:
    client = site.connect()
    client.send(request_ + "GET /notes.txt HTTP/1.1\r\nHost: localhost\r\n\r\n")
    reply = client.read()
    assert reply.status == status
    assert reply["Connection"] == "close"
    client.socket.shutdown(socket.SHUT_WR)
    assert client.is_closed()
    assert site.ask("/notes.txt").body == NOTES


@pytest.mark.parametrize(
    ("target", "status"), [("/notes.txtx://y", 404), ("/x://y", 404), ("http://localhost/notes.txt", 200)]
)
def test_only_the_beginning_of_a_target_names_an_origin(site: Served, target: str, status: int) -> None:
    assert site.ask(target).status == status


def test_a_picture_of_nothing_is_no_fault_of_the_server(site: Served) -> None:
    assert site.ask("/-/plane").status < 500


def test_methods_that_do_not_read_are_405_with_those_that_are_allowed(site: Served) -> None:
    for method in ("PUT", "DELETE", "POST", "PATCH", "TRACE", "BREW"):
        reply = site.ask("/notes.txt", method, b"content" if method in ("PUT", "POST") else None)
        assert (reply.status, reply["Allow"]) == (405, "GET, HEAD, OPTIONS")
    assert site.ask("/notes.txt").body == NOTES


def test_a_body_that_nobody_wants_does_not_become_a_request(site: Served) -> None:
    hidden = b"GET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"
    client = site.connect()
    assert client.ask("/notes.txt", "GET", hidden).body == NOTES
    assert client.ask("/notes.txt").body == NOTES
    client = site.connect()
    client.send("PUT /notes.txt HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 99\r\n\r\n")
    reply = client.read()
    assert (reply.status, reply["Connection"]) == (405, "close")
    client.send(hidden)
    client.socket.shutdown(socket.SHUT_WR)
    assert client.is_closed()
    client = site.connect()
    reply = client.ask("/notes.txt", "PUT", bytes(2**20))
    assert (reply.status, reply["Connection"]) == (405, "close")


def test_healthy_says_ok(site: Served) -> None:
    assert (site.ask("/-/healthy").status, site.ask("/-/healthy").body) == (200, b"ok\n")


# Slow clients, and many of them.


def test_an_idle_connection_and_an_unfinished_head_are_closed(source: Path) -> None:
    with served(source, limits=replace(LIMITS, idle_seconds=0.2, head_seconds=0.4)) as site:
        assert site.connect().is_closed()
        client = site.connect()
        assert client.ask("/notes.txt").status == 200
        assert client.is_closed()
        client = site.connect()
        client.send("GET /notes.txt HT")
        assert client.read().status == 408
        assert client.is_closed()


def test_a_client_that_takes_nothing_is_dropped_and_one_that_takes_its_time_is_not(source: Path) -> None:
    large, received = (source / "large.bin").read_bytes(), bytearray()
    with served(source, limits=replace(LIMITS, reply_seconds=3.0)) as site:
        stuck, slow = begun(site, "/large.bin"), begun(site, "/large.bin")
        while not is_broken(stuck, 0.05):
            received += slow.socket.recv(2**16)
        with pytest.raises(ConnectionError):
            stuck.read()
        while not received.endswith(large):
            received += slow.socket.recv(2**20)


def test_more_connections_than_allowed_are_turned_away_until_others_end(source: Path) -> None:
    with served(source, limits=replace(LIMITS, connections=3)) as site:
        first = [site.connect() for _ in range(3)]
        assert all(client.ask("/notes.txt").status == 200 for client in first)
        turned_away = site.connect()
        assert turned_away.ask("/notes.txt").status == 503
        assert turned_away.is_closed()
        first[0].send("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        first[0].read()
        assert first[0].is_closed()
        assert site.ask("/notes.txt").status == 200


@pytest.mark.slow
def test_idle_and_slow_clients_and_many_requests_at_once_disturb_nobody(source: Path) -> None:
    with served(source, limits=replace(LIMITS, connections=900)) as site:
        idle = [site.connect() for _ in range(500)]
        slow = site.connect()
        slow.send("GET /large.bin HTTP/1.1\r\nHost: localhost\r\n\r\n")
        busy = [site.connect() for _ in range(200)]
        for client in busy:
            client.send("GET /notes.txt HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert all(client.read().body == NOTES for client in busy)
        assert slow.read().body == (source / "large.bin").read_bytes()
        assert idle[0].ask("/notes.txt").body == idle[-1].ask("/notes.txt").body == NOTES


# Versions that go away, and the end.


def begun(site: Served, target: str) -> Client:
    """A client that has read the beginning of a reply, more of which is under way."""
    client = site.connect()
    client.send(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert client.socket.recv(1, socket.MSG_PEEK)
    return client


def is_broken(client: Client, seconds: float = PATIENCE) -> bool:
    """Whether the server breaks the connection within some seconds, whatever is still to be read."""
    poll = select.poll()
    poll.register(client.socket, 0)
    return bool(poll.poll(1e3 * seconds))


def test_a_file_that_changes_during_a_reply_breaks_the_connection(source: Path, site: Served) -> None:
    client = begun(site, "/large.bin")
    with open(source / "large.bin", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    with pytest.raises(ConnectionError):
        client.read()
    assert site.ask("/large.bin").body[-1:] == b"x"


def test_a_file_that_is_replaced_during_a_reply_is_sent_as_it_was(source: Path, site: Served) -> None:
    before = (source / "large.bin").read_bytes()
    client = begun(site, "/large.bin")
    (source / "new").write_bytes(bytes(len(before)))
    os.replace(source / "new", source / "large.bin")
    assert client.read().body == before


def test_the_end_lets_replies_finish_and_closes_what_is_idle(source: Path) -> None:
    with served(source) as site:
        idle = site.connect()
        assert idle.ask("/notes.txt").status == 200
        client = begun(site, "/large.bin")
        site.end()
        assert idle.is_closed()
        assert client.read().body == (source / "large.bin").read_bytes()
        assert client.is_closed()
        with pytest.raises(ConnectionError):
            site.connect()


def test_the_end_gives_up_replies_that_nobody_takes(source: Path) -> None:
    with served(source, limits=replace(LIMITS, drain_seconds=0.2)) as site:
        client = begun(site, "/large.bin")
        site.end()
        assert is_broken(client)
        with pytest.raises(ConnectionError):
            client.read()
