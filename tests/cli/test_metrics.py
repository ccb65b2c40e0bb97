"""`shardfs mount --metrics`: figures that a real Prometheus scrapes."""

from __future__ import annotations

import json
import random
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Background
from tests.support.commands import WRONG_USAGE, run, run_json
from tests.support.mounting import PATIENCE, Mounter
from tests.support.processes import end_with_parent


def free_port() -> int:
    """A port that nobody has, nor gets: the kernel gives away higher ones."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def scraped(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as reply:
        assert reply.headers["Content-Type"].startswith("text/plain; version=")
        text: str = reply.read().decode()
    return text


def url_in(log: str) -> str:
    found = re.search(r"figures are at (http://\S+/metrics)", log)
    assert found, log
    return found[1]


@contextmanager
def prometheus(directory: Path, target: str) -> Iterator[Any]:
    """A Prometheus that scrapes *target* every second; yields what asks it."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed")
    (directory / "prometheus.yml").write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s"},
                "scrape_configs": [{"job_name": "shardfs", "static_configs": [{"targets": [target]}]}],
            }
        )
    )
    address = f"127.0.0.1:{free_port()}"
    arguments = [f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/tsdb"]
    with (
        open(directory / "prometheus.log", "wb") as log,
        subprocess.Popen(
            [program, *arguments, f"--web.listen-address={address}"], stdout=log, stderr=log, preexec_fn=end_with_parent
        ) as process,
    ):

        def ask(query: str, wanted: float) -> dict[str, str]:
            """Return the labels of what *query* finds, when its value is the one that is *wanted*."""
            deadline = time.monotonic() + 2 * PATIENCE
            found: Any = None
            while time.monotonic() < deadline:
                try:
                    asked = f"http://{address}/api/v1/query?" + urllib.parse.urlencode({"query": query})
                    with urllib.request.urlopen(asked, timeout=PATIENCE) as reply:
                        found = json.load(reply)["data"]["result"]
                except OSError:  # it begins
                    found = None
                if found and float(found[0]["value"][1]) == wanted:
                    return dict(found[0]["metric"])
                time.sleep(0.2)
            raise AssertionError(f"{query}: {found}\n" + (directory / "prometheus.log").read_text())

        try:
            yield ask
        finally:
            process.terminate()


def test_a_real_prometheus_scrapes_it(mount: Mounter, source: Path, tmp_path: Path) -> None:
    port = free_port()
    mounted = mount(source, write=True, arguments=[f"--metrics={port}"])
    assert url_in(mounted.log) == f"http://127.0.0.1:{port}/metrics"
    with prometheus(tmp_path, f"127.0.0.1:{port}") as ask:
        ask("up", 1)
        info = ask("shardfs_mount_info", 1)
        assert (info["source"], info["mountpoint"]) == (str(source), str(mounted.path))
        (mounted.path / "c/0/0").write_bytes(b"n" * 24)
        ask("shardfs_published_total", 1)
        assert run("flush", mounted.path).returncode == 0
        ask("shardfs_committed_chunks_total", 1)
        ask("shardfs_pending_chunks", 0)
        ask("time() - shardfs_last_commit_timestamp_seconds < bool 60", 1)
        ask('shardfs_requests_total{request="setxattr"}', 1)


def test_it_is_the_same_as_stats_says_for_this_machine_alone_whoever_connects_and_says_nothing(
    mount: Mounter, source: Path
) -> None:
    mounted = mount(source, arguments=["--metrics=0"])
    url = url_in(mounted.log)
    host, port = urllib.parse.urlsplit(url).hostname, urllib.parse.urlsplit(url).port or 0
    (mounted.path / "c/0/0").read_bytes()
    assert run_json("stats", "--json", mounted.path)["bytes_read"] == 24
    deadline = time.monotonic() + PATIENCE
    while "\nshardfs_bytes_read_total 24.0\n" not in scraped(url):
        assert time.monotonic() < deadline, "a snapshot is made every second"
    assert host == "127.0.0.1"
    others = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.split()
    for other in others[:1]:
        with pytest.raises(OSError, match="refused"), socket.create_connection((other, port), timeout=5):
            pass
    descriptors = Path(f"/proc/{mounted.process.pid}/fd")
    before = len(list(descriptors.iterdir()))
    with ExitStack() as silent:
        for _ in range(3):
            silent.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE))
        assert "shardfs_uptime_seconds" in scraped(url)  # it came to them before
        assert len(list(descriptors.iterdir())) <= before + 1


@pytest.mark.parametrize("address", ["[::1]:0", "0.0.0.0:0"])
def test_another_address_may_be_said(mount: Mounter, source: Path, address: str) -> None:
    if address.startswith("[") and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    url = url_in(mount(source, arguments=[f"--metrics={address}"]).log)
    assert urllib.parse.urlsplit(url).hostname == urllib.parse.urlsplit(f"http://{address}").hostname
    assert "shardfs_uptime_seconds" in scraped(url.replace("0.0.0.0", "127.0.0.1"))


def test_a_taken_port_is_said_and_does_not_stop_the_mount(background: Background, source: Path, place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = background(f"--metrics={port}", source, place)
    assert done.returncode == 0
    line = f"no figures at 127.0.0.1:{port}: Address already in use"
    assert line in done.stderr
    (log,) = background.logs.glob("*.log")
    assert line in log.read_text()
    assert (place / "c/0/0").stat().st_size == 24


def test_what_is_no_address_is_wrong_usage(source: Path, place: Path) -> None:
    for address in ("", "x", "127.0.0.1", "127.0.0.1:", ":70000", "a:b:c", "-1"):
        done = run("mount", f"--metrics={address}", source, place)
        assert done.returncode == WRONG_USAGE
        assert "ADDRESS:PORT" in done.stderr
