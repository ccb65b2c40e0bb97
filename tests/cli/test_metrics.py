"""`shardfs stats` and `mount --metrics`: the figures of a mount, for people, programs and a real Prometheus."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import shardfs
from tests.cli.conftest import Background
from tests.support.commands import run, run_json
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


def test_the_text_and_prometheus_have_the_same_figures(mount: Mounter, source: Path, tmp_path: Path) -> None:
    source = source.rename(tmp_path / os.fsdecode(b"latin-\xe9\n"))
    mounted = mount(source, write=True, arguments=["--view", "v2", "--decode"])
    root = mounted.path
    assert len((root / "0.0").read_bytes()) == 24
    (root / "0.0").write_bytes(b"1" * 24)
    assert run("flush", root).returncode == 0
    with open(root / ".zarray", "rb"):
        as_json = run_json("stats", "--json", root)
    assert (as_json["version"], as_json["source"]) == (shardfs.__version__, str(source))
    assert (as_json["mountpoint"], as_json["log"]) == (str(root), str(mounted.log_file))
    assert (as_json["view"], as_json["access"]) == ("v2, decoded", "read-write")
    assert as_json["pid"] == mounted.process.pid == int(os.getxattr(root, "user.shardfs.pid"))
    assert (as_json["open_files"], as_json["pending_chunks"], as_json["committed_chunks"]) == (1, 0, 1)
    lines = (line for line in run("stats", root).stdout.splitlines() if line[0] != " ")
    as_text = {line[:26].strip(): line[26:].strip() for line in lines}
    for name in ("mountpoint", "view", "access", "pid", "log", "index_loads", "index_hits", "commits"):
        assert as_text[name.replace("_", " ")] == str(as_json[name])
    assert as_text["source"].endswith("/latin-\\udce9\\n")
    assert as_text["bytes read"] == "24 B"
    assert as_text["last commit at"].startswith(time.strftime("%Y-"))
    text = run("stats", "--prometheus", root).stdout
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    (info,) = [labels for name, *labels in samples if name == "shardfs_mount_info"]  # in the order of their names
    assert info == ["read-write", str(root), f"{tmp_path}/latin-\\udce9\\n", shardfs.__version__, "v2, decoded"]
    assert samples["shardfs_bytes_read_total",] == as_json["bytes_read"] == 24
    assert samples["shardfs_requests_total", "setxattr"] == as_json["requests"]["setxattr"] == 1
    assert samples["shardfs_pending_chunks",] == 0
    if shutil.which("promtool") is not None:
        line = ["promtool", "check", "metrics"]
        done = subprocess.run(line, input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
