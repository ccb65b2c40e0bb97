"""`shardfs mount --metrics`: figures that a real Prometheus scrapes."""

import json
import os
import random
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Background
from tests.support.commands import run
from tests.support.mounting import PATIENCE, Mounter, eventually
from tests.support.processes import end_with_parent


def free_port() -> int:
    """A port that nobody has, nor gets: the kernel gives away higher ones."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


@contextmanager
def prometheus(directory: Path, target: str) -> Iterator[Any]:
    """A Prometheus that scrapes *target* every second; yields what finds the labels and the value of a query."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed")
    scraped = [{"job_name": "shardfs", "static_configs": [{"targets": [target]}]}]
    (directory / "prometheus.yml").write_text(
        json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": scraped})
    )
    address = f"127.0.0.1:{free_port()}"
    arguments = [f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/tsdb"]
    arguments.append(f"--web.listen-address={address}")

    def ask(query: str) -> tuple[dict[str, str], float | None]:
        asked = f"http://{address}/api/v1/query?" + urllib.parse.urlencode({"query": query})
        with suppress(OSError), urllib.request.urlopen(asked, timeout=PATIENCE) as reply:
            for found in json.load(reply)["data"]["result"]:
                return found["metric"], float(found["value"][1])
        return {}, None

    with (
        open(directory / "prometheus.log", "wb") as log,
        subprocess.Popen([program, *arguments], stdout=log, stderr=log, preexec_fn=end_with_parent) as process,
    ):
        try:
            yield ask
        finally:
            process.terminate()


def test_a_real_prometheus_scrapes_it(mount: Mounter, source: Path, tmp_path: Path) -> None:
    port = free_port()
    mounted = mount(source, write=True, arguments=[f"--metrics={port}"])
    assert f"figures are at http://127.0.0.1:{port}/metrics\n" in mounted.log
    (mounted.path / "c/0/0").write_bytes(b"n" * 24)
    assert run("flush", mounted.path).returncode == 0
    with prometheus(tmp_path, f"127.0.0.1:{port}") as ask:
        eventually(lambda: ask("shardfs_committed_chunks_total")[1] == 1)
        info, _ = ask("shardfs_mount_info")
        assert (info["source"], info["mountpoint"]) == (str(source), str(mounted.path))
        for query, wanted in {
            "up": 1,
            "shardfs_published_total": 1,
            "shardfs_pending_chunks": 0,
            "time() - shardfs_last_commit_timestamp_seconds < bool 60": 1,
            'shardfs_requests_total{request="setxattr"}': 1,
        }.items():
            assert ask(query)[1] == wanted, query


def test_errors_that_an_alert_waits_for_are_counted_from_zero(mount: Mounter, source: Path) -> None:
    """The first one is an increase then."""
    mounted = mount(source)
    text = run("stats", "--prometheus", mounted.path).stdout
    for name in ("EIO", "EACCES", "ENOSPC"):
        assert f'shardfs_errors_total{{errno="{name}"}} 0.0\n' in text


def test_clients_that_stay_silent_hold_no_descriptors_of_the_daemon(mount: Mounter, source: Path) -> None:
    port = free_port()
    mounted = mount(source, arguments=[f"--metrics={port}"])

    def sockets() -> int:
        found = 0
        for path in Path(f"/proc/{mounted.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # a file that was open for a moment
                found += os.readlink(path).startswith("socket:")
        return found

    before = sockets()
    with (
        socket.create_connection(("127.0.0.1", port)),
        socket.create_connection(("127.0.0.1", port)),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as reply,
    ):
        assert b"shardfs_mount_info" in reply.read()
        assert sockets() <= before + 1  # the silent ones came first, and were given up


def test_a_taken_port_is_reported_and_does_not_stop_the_mount(
    background: Background, source: Path, place: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = background(f"--metrics={port}", source, place)
    assert done.returncode == 0
    line = f"no figures at 127.0.0.1:{port}: Address already in use"
    assert line in done.stderr
    (log,) = background.logs.glob("*.log")
    assert line in log.read_text()
    assert (place / "c/0/0").stat().st_size == 24
