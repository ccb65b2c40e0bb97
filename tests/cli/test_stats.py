"""`shardfs stats`: how a mount fares, counted exactly, for people, programs and Prometheus."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import shardfs
from shardfs.dataset.statistics import FIGURES
from shardfs.stores.s3.requests import Counts
from tests.support.commands import run, run_json
from tests.support.corpus import GZIP, LITTLE, array, sharding
from tests.support.datasets import store
from tests.support.locking import kept_busy
from tests.support.mounting import PATIENCE, Mounter
from tests.support.terminal import on_terminal


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


def test_requests_bytes_and_loads_are_counted(mount: Mounter, dataset: Path) -> None:
    root = mount(dataset, metadata_ttl=3600).path
    before = run_json("stats", "--json", root)
    assert before["bytes_read"] == before["index_loads"] == before["replaced_shards"] == 0
    for name in ("image/c/0/0", "image/c/1/1", "image/c/0/0", "image/c/3/3", "whole/c/0/0", "whole/c/0/1"):
        read(root / name)
    counts = run_json("stats", "--json", root)
    assert counts["bytes_read"] == 6 * 24
    assert counts["requests"]["open"] == 6
    assert counts["index_loads"] == 3  # two shards of the image, one that is encoded as a whole
    assert counts["index_bytes"] == 3 * (4 * 16 + 4)
    assert counts["whole_shard_decodes"] == 1
    assert counts["index_hits"] > 0
    assert set(counts["errors"]) <= {"ENOSYS"}  # an answer to the kernel, not to a program
    assert sorted(os.listdir(root)) == ["damaged", "image", "whole"]
    assert not [name for name in os.listxattr(root) if name.startswith("user.shardfs")], "asking shows in no listing"


def test_a_replaced_shard_and_errors_are_counted_and_the_last_error_is_told(mount: Mounter, dataset: Path) -> None:
    root = mount(dataset, expect=("unreadable shard", "lookup: ")).path
    read(root / "image/c/0/0")
    os.utime(dataset / "image/c/0/0")
    read(root / "image/c/0/0")
    assert run_json("stats", "--json", root)["last_error"] is None
    with pytest.raises(OSError, match="Input/output error"):
        read(root / "damaged/c/0/0")
    counts = run_json("stats", "--json", root)
    assert counts["replaced_shards"] == 1
    assert counts["errors"]["EIO"] == 1
    assert "damaged/c/0/0" in counts["last_error"]
    assert 0 <= time.time() - counts["last_error_timestamp_seconds"] < PATIENCE


def test_what_is_pending_is_told_with_its_age_and_why_and_the_last_commit(mount: Mounter, dataset: Path) -> None:
    root = mount(dataset, write=True).path
    with ThreadPoolExecutor(1) as beside:
        with kept_busy(dataset / "image/c/0/0"):
            began = time.monotonic()
            (root / "image/c/0/0").write_bytes(b"1" * 24)
            written = time.monotonic()
            (root / "image/c/0/1").write_bytes(b"2" * 24)
            asked = time.monotonic()
            figures = run_json("stats", "--json", root)
            assert (figures["pending_chunks"], figures["pending_bytes"]) == (2, 48)
            assert asked - written <= figures["pending_age_seconds"] <= time.monotonic() - began
            assert figures["last_commit_timestamp_seconds"] is None
            flushing = beside.submit(run, "flush", root)  # it waits for the lock
            while (figures := run_json("stats", "--json", root))["pending_reason"] is None:
                assert not flushing.done()
            assert figures["pending_reason"] == "image/c/0/0 is locked by another program"
        assert flushing.result().returncode == 0
    figures = run_json("stats", "--json", root)
    assert (figures["pending_chunks"], figures["pending_reason"]) == (0, None)
    assert figures["committed_chunks"] == 2
    assert 0 <= time.time() - figures["last_commit_timestamp_seconds"] < PATIENCE


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


def test_every_figure_has_its_row_and_no_label_is_a_path() -> None:
    names = [figure.name for figure in FIGURES]
    assert len(names) == len(set(names))
    assert {name.removeprefix("store_") for name in names if name.startswith("store_")} == set(Counts().as_dict())
    assert {figure.label for figure in FIGURES} == {"", "request", "errno", "operation"}
    assert all(figure.help.endswith(".") for figure in FIGURES)


def test_watching_goes_on_until_ctrl_c_with_rates(mount: Mounter, dataset: Path) -> None:
    root = mount(dataset).path
    with on_terminal("stats", "--watch", root) as terminal:
        terminal.read_until("uptime")
        read(root / "image/c/0/0")
        shown = terminal.read_until("/s\r\n")
        assert shown.count("\x1b[H\x1b[J") >= 2
        assert all(len(screen.splitlines()) <= 24 for screen in shown.split("\x1b[H\x1b[J"))
        terminal.press("\x03")
        assert terminal.end() == 0
