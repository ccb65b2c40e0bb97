"""Metrics, reports to systemd, and reverse proxies."""

import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from shardfs.errors import SourceError
from shardfs.serve.server import listen
from tests.serve.test_writing import CHUNK, source, start
from tests.support.mounting import PATIENCE, command, environment, eventually
from tests.support.processes import running
from tests.support.serving import Client, Served, served

__all__ = ["source"]
TOP = Path(__file__).parents[2]


def metrics(site: Served) -> dict[tuple[str, ...], float]:
    reply = site.ask("/-/metrics")
    assert reply["Content-Type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, *(value for label, value in sample.labels.items() if label != "url")): sample.value
        for family in text_string_to_metric_families(reply.body.decode())
        for sample in family.samples
    }


def test_metrics_count_replies_and_what_is_pending(source: Path) -> None:
    with served(source, write=True) as site:
        client = site.connect()
        for method, target, body in (
            ("GET", "/notes.txt", None), ("GET", "/nowhere", None), ("HEAD", "/notes.txt", None),
            ("PUT", "/image/c/0/0", CHUNK), ("BREW", "/", None), ("X" * 50, "/", None),
        ):  # fmt: skip
            client.ask(target, method, body)
        found = metrics(site)
        assert found["shardfs_http_replies_total", "GET", "200"] == 1
        assert found["shardfs_http_replies_total", "GET", "404"] == 1
        assert found["shardfs_http_replies_total", "HEAD", "200"] == 1
        assert found["shardfs_http_replies_total", "PUT", "204"] == 1
        assert found["shardfs_http_replies_total", "other", "405"] == 2
        assert found["shardfs_http_sent_bytes_total",] >= 5
        assert found["shardfs_http_connections",] >= 2
        assert found["shardfs_pending_chunks",] == 1
        site.ask("/-/flush", "POST", b"")
        after = metrics(site)
        assert after["shardfs_pending_chunks",] == 0
        assert after["shardfs_committed_chunks_total",] == 1
        about = next(key for key in after if key[0] == "shardfs_server_info")
        assert {str(source), "read-write", "v3"} <= set(about)
        assert f'shardfs_up{{url="{site.url}/"}} 1.0'.encode() in site.ask("/-/metrics").body


def test_our_own_commits_are_not_taken_for_those_of_another_program_in_any_view(source: Path) -> None:
    views = ("/image/c/0/{}", "/-/v3/image/c/0/{}", "/-/v2/image/0.{}", "/-/decoded/v3/image/c/0/{}")
    with served(source, write=True) as site:
        old = {site.ask(view.format(chunk))["Last-Modified"] for view in views for chunk in (0, 1)}
        assert len(old) == 1
        for _ in range(2):
            assert site.ask("/image/c/0/0", "PUT", CHUNK).status == 204
            assert site.ask("/-/flush", "POST", b"").status == 204
            assert {site.ask(view.format(1))["Last-Modified"] for view in views} == old
            assert not {site.ask(view.format(0))["Last-Modified"] for view in views} & old
        assert metrics(site)["shardfs_replaced_shards_total",] == 0
        shard = next(path for path in (source / "image/c").rglob("*") if path.is_file())
        (shard.parent / "copy").write_bytes(shard.read_bytes())
        (shard.parent / "copy").rename(shard)
        eventually(lambda: old.isdisjoint(site.ask(view.format(1))["Last-Modified"] for view in views))
        assert metrics(site)["shardfs_replaced_shards_total",] == 1


@pytest.mark.slow
def test_serve_says_what_is_pending_elsewhere(source: Path) -> None:
    """As a mount does."""
    with served(source, write=True) as site:
        site.ask("/image/c/0/0", "PUT", CHUNK)
        process, _ = start(source)
        process.send_signal(signal.SIGTERM)
        note = process.communicate()[1]
    assert "a journal of chunks that may not be committed yet, and that is not shown here" in note


@pytest.mark.slow
def test_an_address_that_cannot_be_had_is_named_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        expected = f"at 127.0.0.1 port {port}: Address already in use; choose another address or port with --listen"
        with pytest.raises(SourceError, match=expected):
            trio.run(listen, "127.0.0.1", port)


def test_a_view_that_shows_nothing_of_a_foreign_source_is_refused(tmp_path: Path) -> None:
    """As a mount does."""
    (tmp_path / "attributes.json").write_text("{}")
    line = command("serve", "--listen=0", "--decode", tmp_path)
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 3
    assert "it is N5" in done.stderr


@pytest.mark.slow
def test_systemd_is_told_that_the_server_is_ready_and_that_it_ends(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(tmp_path / "notify"))
        notified.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        process, _ = start(source, "--write")
        told = ""
        while "READY=1" not in told:
            told += notified.recv(4096).decode() + "\n"
        process.send_signal(signal.SIGTERM)
        while "STOPPING=1" not in told:
            told += notified.recv(4096).decode() + "\n"
        assert process.wait(PATIENCE) == 0
        process.communicate()
    assert re.search(r"READY=1.*STATUS=0 clients.*STOPPING=1\nEXTEND_TIMEOUT_USEC=\d+", told, re.DOTALL)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_is_one_that_systemd_understands(tmp_path: Path) -> None:
    text = (TOP / "docs/shardfs-serve@.service").read_text().replace("/opt/shardfs/bin/shardfs", "/bin/true")
    (tmp_path / "shardfs-serve@.service").write_text(text.replace("User=shardfs\n", ""))
    line = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "shardfs-serve@x.service")]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, "shardfs-serve" in done.stdout + done.stderr) == (0, False), str(done)


def block(language: str, beginning: str) -> str:
    """The example in docs/serve.md that begins in this way."""
    text = (TOP / "docs/serve.md").read_text()
    blocks: list[str] = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return next(found for found in blocks if found.startswith(beginning))


@pytest.fixture(params=["nginx", "caddy"])
def proxied(request: pytest.FixtureRequest, source: Path, tmp_path: Path) -> Iterator[int]:
    """The port of a proxy, configured as the docs say, before a server that writes."""
    program = shutil.which(request.param) or shutil.which(request.param, path="/usr/sbin")
    if program is None:
        pytest.skip(f"{request.param} is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with served(source, write=True) as site:
        if request.param == "nginx":
            location = block("nginx", "location").replace(":8000", f":{site.port}")
            log = f"error_log {tmp_path}/error.log; pid {tmp_path}/pid; daemon off; master_process off; events {{}}"
            places = " ".join(
                f"{name}_temp_path {tmp_path}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
            )
            server = f"server {{ listen 127.0.0.1:{port}; {location} }}"
            (tmp_path / "conf").write_text(f"{log} http {{ access_log off; {places} {server} }}")
            line = [program, "-p", str(tmp_path), "-c", str(tmp_path / "conf")]
        else:
            site_block = block("caddyfile", "data.example.org").replace(":8000", f":{site.port}")
            site_block = site_block.replace("data.example.org", f"http://:{port}")
            (tmp_path / "Caddyfile").write_text(f"{{\nadmin off\n}}\n{site_block}")
            line = [program, "run", "--config", str(tmp_path / "Caddyfile"), "--adapter", "caddyfile"]
        with running(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            eventually(lambda: is_listening(port))
            yield port


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def test_a_proxy_as_in_the_docs_passes_everything_on(proxied: int, source: Path) -> None:
    client = Client(proxied)
    reply = client.ask("/notes.txt", Host="data.example.org")
    tag = reply["ETag"]
    assert (reply.status, reply.body) == (200, b"notes")
    part = client.ask("/notes.txt", Range="bytes=1-2", If_Range=tag)
    assert (part.status, part.body, part["Content-Range"]) == (206, b"ot", "bytes 1-2/5")
    assert client.ask("/notes.txt", If_None_Match=tag).status == 304
    assert b'"image"' in client.ask("/").body
    assert client.ask("/notes.txt", "PUT", b"x", If_Match='"other"').status == 412
    assert client.ask("/image/c/0/0", "PUT", CHUNK).status == 204
    assert client.ask("/image/c/0/0").body == CHUNK
    assert client.ask("/nowhere").status == 404
    client.close()
