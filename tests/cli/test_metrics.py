"""`shardfs mount --metrics`: metrics that a real Prometheus scrapes."""

import json
import os
import random
import re
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
from tests.support.mounting import PATIENCE, Mounter, command, environment, eventually
from tests.support.processes import running


def free_port() -> int:
    """A port that nobody has, nor gets: the kernel gives away higher ones."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


@pytest.fixture
def program() -> str:
    """Where Prometheus is."""
    path = shutil.which("prometheus")
    if path is None:
        pytest.skip("prometheus is not installed")
    return path


@contextmanager
def prometheus(program: str, directory: Path, target: str) -> Iterator[Any]:
    """A Prometheus that scrapes *target* every second; yields what finds the labels and the value of a query."""
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
        running([program, *arguments], stdout=log, stderr=log),
    ):
        yield ask


def test_a_real_prometheus_scrapes_it(program: str, mount: Mounter, source: Path, tmp_path: Path) -> None:
    port = free_port()
    mounted = mount(source, write=True, arguments=[f"--metrics={port}"])
    assert f"metrics are at http://127.0.0.1:{port}/metrics\n" in mounted.log
    (mounted.path / "c/0/0").write_bytes(b"n" * 24)
    assert run("flush", mounted.path).returncode == 0
    with prometheus(program, tmp_path, f"127.0.0.1:{port}") as ask:
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
    text = run("metrics", mounted.path).stdout
    for name in ("EIO", "EACCES", "ENOSPC", "EDQUOT", "EMFILE"):
        assert f'shardfs_errors_total{{errno="{name}",mountpoint="{mounted.path}"}} 0.0\n' in text


def test_one_exporter_has_the_metrics_of_all_mounts_and_dead_ones_are_down(
    program: str, mount: Mounter, source: Path, tmp_path: Path
) -> None:
    first, second = mount(source), mount(source)
    port = free_port()
    line = command("metrics", f"--listen={port}")
    with running(line, env=environment(), stdout=subprocess.PIPE, text=True) as exporter:
        assert exporter.stdout is not None
        assert exporter.stdout.readline() == f"metrics are at http://127.0.0.1:{port}/metrics\n"
        with prometheus(program, tmp_path, f"127.0.0.1:{port}") as ask:
            eventually(lambda: ask(f'shardfs_up{{mountpoint="{first.path}"}}')[1] == 1)
            assert ask(f'shardfs_pending_chunks{{mountpoint="{second.path}"}}')[1] == 0
            second.process.kill()
            eventually(lambda: ask(f'shardfs_up{{mountpoint="{second.path}"}}')[1] == 0)
            assert ask(f'shardfs_mount_info{{mountpoint="{first.path}"}}')[0]["source"] == str(source)
        exporter.terminate()
        assert exporter.wait(PATIENCE) == 0


# Each case: series, and what fires after how many minutes. Samples come each minute: "a+bxn" is n more than a.
UP, PENDING, UPTIME = 'up{job="shardfs"}', "shardfs_pending_age_seconds", "shardfs_uptime_seconds"
Fires = dict[int, set[str]]
ALERTS: dict[str, tuple[dict[str, str], Fires]] = {
    "a healthy mount": (
        {UP: "1x90", PENDING: "30x90", UPTIME: "0+60x90", 'shardfs_errors_total{errno="EIO"}': "0x90"},
        {0: set(), 5: set(), 60: set(), 90: set()},
    ),
    "an old change that is committed at last": (
        {PENDING: "0+60x20 0x20"},
        {5: set(), 6: {"ShardfsPending"}, 20: {"ShardfsPending"}, 22: set()},
    ),
    "a first error of each kind that needs somebody": (
        {
            f'shardfs_errors_total{{errno="{name}"}}': "0x5 1x30"
            for name in ("EIO", "EACCES", "ENOSPC", "EDQUOT", "EMFILE")
        },
        {5: set(), 7: {"ShardfsErrors"}, 30: set()},
    ),
    "errors that are old": ({'shardfs_errors_total{errno="EIO"}': "7x30"}, {0: set(), 15: set(), 30: set()}),
    "errors that programs provoke": (
        {f'shardfs_errors_total{{errno="{name}"}}': "0+9x30" for name in ("ENOENT", "EINVAL", "EROFS", "ENODATA")},
        {7: set(), 30: set()},
    ),
    "a daemon that is gone, and comes back": (
        {UP: "1x5 0x10 1x5"},
        {5: set(), 6: set(), 7: {"ShardfsDown"}, 16: {"ShardfsDown"}, 18: set()},
    ),
    "another job that is gone": ({'up{job="others"}': "0x30"}, {7: set(), 30: set()}),
    "two restarts in an hour": ({UPTIME: "0+60x9 0+60x9 0+60x60"}, {25: set(), 60: set()}),
    "a third restart in an hour": (
        {UPTIME: "0+60x9 0+60x9 0+60x9 0+60x90"},
        {29: set(), 31: {"ShardfsRestarts"}, 100: set()},
    ),
}


def test_the_alerts_of_the_docs_fire_for_what_they_promise_and_for_nothing_else(
    mount: Mounter, source: Path, tmp_path: Path
) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    page = (Path(__file__).parents[2] / "docs/operate.md").read_text()
    (rules,) = re.findall(r"```yaml\n(groups:\n.*?)```", page, re.DOTALL)
    (tmp_path / "rules.yml").write_text(rules)
    summaries = dict(re.findall(r"alert: (\w+)\n.*?summary: (.*?)\n", rules, re.DOTALL))
    assert {name for _, fires in ALERTS.values() for names in fires.values() for name in names} == {*summaries}

    def expected(series: str, name: str) -> dict[str, object]:
        labels = dict(re.findall(r'(\w+)="(\w+)"', series))
        return {"exp_labels": labels, "exp_annotations": {"summary": summaries[name]}}

    tests = [
        {
            "name": case,
            "interval": "1m",
            "input_series": [{"series": one, "values": values} for one, values in series.items()],
            "alert_rule_test": [
                {
                    "eval_time": f"{minute}m",
                    "alertname": name,
                    "exp_alerts": [expected(one, name) for one in series if name in firing],
                }
                for minute, firing in fires.items()
                for name in summaries
            ],
        }
        for case, (series, fires) in ALERTS.items()
    ]
    (tmp_path / "tests.yml").write_text(json.dumps({"rule_files": ["rules.yml"], "tests": tests}))
    for arguments in (["check", "rules", "rules.yml"], ["test", "rules", "tests.yml"]):
        done = subprocess.run([promtool, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    mounted = mount(source, write=True)
    (mounted.path / "c/0/0").write_bytes(b"n" * 24)  # else nothing is pending, and nothing has an age
    exported = run("metrics", mounted.path).stdout
    for name in re.findall(r"shardfs_\w+", " ".join(re.findall("expr: (.*)", rules))):
        assert re.search(rf"^{name}[ {{]", exported, re.MULTILINE), name


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
    line = f"no metrics at 127.0.0.1:{port}: Address already in use"
    assert line in done.stderr
    (log,) = background.logs.glob("*.log")
    assert line in log.read_text()
    assert (place / "c/0/0").stat().st_size == 24
