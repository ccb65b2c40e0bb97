"""`shardfs mounts`, and mounts of other users: what is mounted, by whom, and how it is."""

import json
import os
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from shardfs.cli import mounts
from shardfs.fuse.control import ListedMount, list_daemons
from tests.cli.conftest import Background
from tests.support.commands import MOUNT_POINT, one_line_of, run, run_json
from tests.support.corpus import array, sharding
from tests.support.daemons import daemon_of, end_mounts_below, has_ended, kill_daemon
from tests.support.datasets import store
from tests.support.locking import kept_busy
from tests.support.mounting import PATIENCE
from tests.support.users import MOUNT_OF_NOBODY, NOBODY, SOMEBODY, User, shared_directory


def rows_below(directory: Path, *, user: User | None = None) -> dict[str, dict[str, Any]]:
    """What is said of the mounts below a directory, by the name of the place: other tests have mounts too."""
    done = run("mounts", "--json", user=user)
    assert done.returncode == 0, str(done)
    found = [row for row in json.loads(done.stdout) if row["mountpoint"].startswith(f"{directory}/")]
    rows = {Path(row["mountpoint"]).name: row for row in found}
    assert len(rows) == len(found), found
    return rows


def test_serving_dead_silent_and_ending_mounts_are_listed(background: Background, source: Path, tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("serving", "dead", "silent", "ending")}
    for name, place in places.items():
        place.mkdir()
        options = ["--write"] if name == "ending" else ["--view", "v2"]
        assert background(*options, source, place).returncode == 0
    daemons = {name: daemon_of(place) for name, place in places.items()}
    ends = os.pidfd_open(daemons["ending"])
    is_read = [each for each in list_daemons() if each.pid == daemons["ending"]]  # who reads its metrics is no daemon
    assert is_read
    kill_daemon(places["dead"])
    (places["ending"] / "c/0/0").write_bytes(b"n" * 24)
    os.kill(daemons["silent"], signal.SIGSTOP)
    try:
        with kept_busy(source / "c/0/0"):
            subprocess.run(["fusermount3", "-u", places["ending"]], check=True)
            rows = rows_below(tmp_path)
    finally:
        os.kill(daemons["silent"], signal.SIGCONT)
    assert has_ended(ends, PATIENCE)
    os.close(ends)
    assert {name: row["state"] for name, row in rows.items()} == {name: name for name in places}
    assert {name: row["pid"] for name, row in rows.items()} == daemons | {"dead": None}
    serving = rows["serving"]
    assert (serving["source"], serving["view"], serving["access"]) == (str(source), "v2", "read-only")
    assert (serving["user"], serving["pending_chunks"], serving["note"]) == ("root", 0, "")
    assert rows["dead"]["note"].endswith(f"run: shardfs umount {places['dead']}")
    assert f"`kill -CONT {daemons['silent']}` wakes it" in rows["silent"]["note"]
    assert rows["ending"]["note"].startswith("1 chunk is pending (24 B, since ")


def test_a_mount_that_ends_while_it_is_looked_at_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mount point is then an ordinary directory, or gone: it is not silent."""
    ended = [
        ListedMount(str(tmp_path / name), "/data.zarr", 0, 0, is_writable=False, is_shared=False)
        for name in ("gone", "left")
    ]
    (tmp_path / "left").mkdir()
    monkeypatch.setattr(mounts, "list_mounts", lambda: ended)
    assert [row for row in mounts.find_rows() if row.mountpoint.startswith(str(tmp_path))] == []


NONSENSE = [
    b"[" * 60_000,
    b'{"pending_chunks": "many", "mountpoint": "x"}',
    b'{"pending_chunks": 2, "pending_age_seconds": 1e999}',
    b'{"pending_chunks": 2, "pending_age_seconds": -Infinity}',
    b'{"pending_chunks": 2, "pending_bytes": 1%s}' % (b"0" * 4000),
    b'{"pid": "../x"}',
    b'{"store": 5}',
]


def test_invalid_metrics_of_other_processes_are_ignored() -> None:
    with ExitStack() as stack:
        for metrics in NONSENSE:
            file = os.memfd_create("shardfs-metrics")
            stack.callback(os.close, file)
            os.pwrite(file, metrics, 0)
        done = run("mounts", "--json")
    assert done.returncode == 0, str(done)
    assert os.getpid() not in [row["pid"] for row in json.loads(done.stdout)]


def test_root_can_use_mounts_of_other_users() -> None:
    with shared_directory() as directory:
        store(directory / "source", array((8, 12), (4, 6), sharding((2, 3))))
        os.chown(directory / "source", NOBODY, NOBODY)
        (directory / "place").mkdir()
        state = {"XDG_STATE_HOME": str(directory / "state")}
        place = directory / "place"
        done = run("mount", "--write", directory / "source", place, prefix=MOUNT_OF_NOBODY, **state)
        assert done.returncode == 0, str(done)
        try:
            metrics = run_json("stats", "--json", place)
            assert metrics["mountpoint"] == str(place)
            row = rows_below(directory)["place"]
            assert (row["state"], row["user"], row["pid"]) == ("serving", "nobody", metrics["pid"])
            assert run("flush", place).returncode == 0
            daemon = os.pidfd_open(metrics["pid"])
            done = run("umount", place)
            assert (done.returncode, done.stderr) == (0, "")
            assert has_ended(daemon)
            os.close(daemon)
        finally:
            end_mounts_below(directory)


def test_another_user_is_told_whose_mount_it_is(background: Background) -> None:
    with shared_directory() as directory:
        store(directory / "source", array((8, 12), (4, 6), sharding((2, 3))))
        (directory / "place").mkdir()
        place = directory / "place"
        assert background("--write", directory / "source", place).returncode == 0
        for name in ("stats", "flush", "umount"):
            done = run(name, place, user=SOMEBODY)
            assert "it belongs to root; only root can use it" in done.stderr, name
            assert done.returncode in (1, MOUNT_POINT)
            assert done.stderr.count("\n") == 1
        row = rows_below(directory, user=SOMEBODY)["place"]
        assert (row["state"], row["user"], row["source"]) == ("private", "root", str(directory / "source"))
        assert run("umount", place).returncode == 0
        assert background("--allow-other", directory / "source", place).returncode == 0
        assert run("stats", "place", cwd=directory, user=SOMEBODY).returncode == 0
        line = one_line_of(run("umount", place, user=SOMEBODY), MOUNT_POINT)
        assert line == f"{place} cannot be unmounted: it belongs to root; only root can use it"
        assert run("umount", place).returncode == 0
