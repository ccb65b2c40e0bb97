"""`shardfs doctor --shared`: two hosts try a directory together."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shardfs.cli import sharing
from shardfs.errors import SourceError
from tests.support.commands import FAILED, WRONG_USAGE, one_line_of, run
from tests.support.nfs import Locks, pair, skip_without_hosts


def tried(*places: Path, status: int = 0) -> list[list[dict[str, str]]]:
    """What each of two hosts finds that try these directories at the same time."""

    def try_it(name: str, place: Path) -> Any:
        done = run("doctor", "--shared", place, "--json", TEST_HOST=name)
        assert done.returncode == status, str(done)
        assert "waiting for the other host" in done.stderr
        return json.loads(done.stdout)

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(try_it, ("alpha", "beta"), places))


def problems(found: list[dict[str, str]]) -> list[str]:
    return [each["what"] for each in found if each["kind"] == "problem"]


@contextmanager
def hosts(directory: Path, locks: Locks) -> Iterator[tuple[Path, Path]]:
    skip_without_hosts()
    with pair(directory, locks=locks) as places:
        yield places


def test_hosts_whose_locks_reach_each_other_may_write_at_once(tmp_path: Path) -> None:
    with hosts(tmp_path, "forwarded") as places:
        for found in tried(*places):
            assert problems(found) == []
            assert len(found) == 8
            (note,) = (each for each in found if each["kind"] == "note")
            assert "a new file of the other host was seen after" in note["what"]
    assert list((tmp_path / "shared").iterdir()) == []


@pytest.mark.parametrize(
    ("locks", "problem"), [("local", "does not keep the other away"), ("none", "cannot be locked: No locks available")]
)
def test_hosts_whose_locks_do_not_reach_each_other_may_not(tmp_path: Path, locks: Locks, problem: str) -> None:
    with hosts(tmp_path, locks) as places:
        for found in tried(*places, status=FAILED):
            (what,) = problems(found)
            assert problem in what


def test_locks_that_end_when_any_descriptor_is_closed_are_found(tmp_path: Path) -> None:
    """So they do on bindfs, which locks as one process."""
    skip_without_hosts()
    if shutil.which("bindfs") is None:
        pytest.skip("no bindfs here")
    places = [tmp_path / "a", tmp_path / "b"]
    (tmp_path / "shared").mkdir()
    try:
        for place in places:
            place.mkdir()
            options = ("--multithreaded", "--enable-lock-forwarding")
            subprocess.run(["bindfs", *options, tmp_path / "shared", place], check=True)
        for found in tried(*places, status=FAILED):
            assert ["does not keep the other away" in what for what in problems(found)] == [True]
    finally:
        for place in places:
            subprocess.run(["fusermount3", "-u", "-z", place], check=False)


def test_what_one_host_says_is_said_to_be_of_one_host(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: run("doctor", "--shared", tmp_path), range(2))
    for done in (first, second):
        assert done.returncode == 0, str(done)
        assert "says nothing about other hosts" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_of_one_host_that_two_have_is_a_problem(tmp_path: Path) -> None:
    skip_without_hosts()
    for found in tried(tmp_path, tmp_path, status=FAILED):
        (what,) = problems(found)
        assert "is on a file system of one host" in what


def test_who_is_alone_is_told_so_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "_WAITS", 0.1)
    with pytest.raises(SourceError, match="run the same command on another host"):
        sharing.try_sharing(str(tmp_path), lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_it_takes_a_directory_alone(tmp_path: Path) -> None:
    assert "neither SOURCE nor --write" in one_line_of(run("doctor", "--shared", tmp_path, tmp_path), WRONG_USAGE)
    assert "is not a directory" in one_line_of(run("doctor", "--shared", tmp_path / "missing"), WRONG_USAGE)
