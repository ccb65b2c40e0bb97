"""`shardfs stats`: how a mount fares, counted exactly, for people, programs and Prometheus."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import shardfs
from tests.support.commands import run, run_json
from tests.support.corpus import GZIP, LITTLE, array, sharding
from tests.support.datasets import store
from tests.support.mounting import PATIENCE, Mounter


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    store(tmp_path / "source/image", array((8, 12), (4, 6), sharding((2, 3))))
    store(tmp_path / "source/whole", array((8, 12), (4, 6), sharding((2, 3), LITTLE), GZIP))
    store(tmp_path / "source/damaged", array((4, 6), (4, 6), sharding((2, 3))))
    (tmp_path / "source/damaged/c/0/0").write_bytes(b"")
    return tmp_path / "source"


def read(path: Path) -> None:
    with open(path, "rb", buffering=0) as file:
        assert len(file.read(1000)) == 24


def numbers(text: str) -> dict[str, Any]:
    """The figures in the text for people, by their names; those of requests and errors under theirs."""
    found: dict[str, Any] = {}
    group = ""
    for line in text.splitlines():
        if line.endswith(":"):
            group = line[:-1]
            found[group] = {}
        else:
            place = found[group] if line[0] == " " else found
            place[line[:26].strip()] = line[26:].strip()
    return found


def test_the_text_and_prometheus_have_the_same_figures(mount: Mounter, dataset: Path, tmp_path: Path) -> None:
    source = tmp_path / os.fsdecode(b"latin-\xe9\n")
    dataset.rename(source)
    mounted = mount(source, write=True, arguments=["--view", "v2", "--decode"])
    root = mounted.path
    read(root / "image/0.0")
    (root / "image/0.0").write_bytes(b"1" * 24)
    assert run("flush", root).returncode == 0
    with open(root / "image/.zarray", "rb"):
        as_json = run_json("stats", "--json", root)
    assert (as_json["version"], as_json["source"]) == (shardfs.__version__, str(source))
    assert (as_json["mountpoint"], as_json["log"]) == (str(root), str(mounted.log_file))
    assert (as_json["view"], as_json["access"]) == ("v2, decoded", "read-write")
    assert as_json["pid"] == mounted.process.pid == int(os.getxattr(root, "user.shardfs.pid"))
    assert as_json["open_files"] == 1
    assert 0 < as_json["uptime_seconds"] < PATIENCE
    status = Path(f"/proc/{mounted.process.pid}/status").read_text()
    resident = 1024 * int(status.partition("VmRSS:")[2].split()[0])
    assert as_json["memory_bytes"] == pytest.approx(resident, rel=0.2)
    assert as_json["pending_chunks"] == as_json["pending_bytes"] == 0
    assert as_json["pending_age_seconds"] is None
    as_text = numbers(run("stats", root).stdout)
    for name in ("mountpoint", "view", "access", "pid", "log", "index_loads", "index_hits", "commits"):
        assert as_text[name.replace("_", " ")] == str(as_json[name])
    assert as_text["source"].endswith("/latin-\\udce9\\n")
    assert as_text["bytes read"] == "24 B"
    assert as_text["last commit at"].startswith(time.strftime("%Y-"))
    assert as_text["memory bytes"].endswith(" MiB")
    assert "replaced shards" not in as_text  # there were none
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
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
