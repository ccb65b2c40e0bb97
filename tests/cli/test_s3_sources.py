"""Commands on s3:// sources: the same answers as on this machine, and one line where there is none."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

import shardfs
from tests.cli.conftest import Background
from tests.support.commands import SOURCE, one_line_of, run, run_json
from tests.support.daemons import daemon_of
from tests.support.datasets import files_below
from tests.support.mounting import Mounter, mount_points
from tests.support.s3_server import SECRET_KEY, Bucket

PREFIX = "some path/data é 100%.zarr"
TOKEN = "secret-session-token"


@dataclass(frozen=True)
class Remote:
    """The same dataset in a bucket and at *local*."""

    bucket: Bucket
    local: Path

    @property
    def url(self) -> str:
        return self.bucket.url(PREFIX)


@pytest.fixture
def remote(s3_bucket: Bucket, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Remote:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_bucket.endpoint_url)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    s3_bucket.upload(source, PREFIX)
    return Remote(s3_bucket, source)


def test_it_is_mounted_in_the_background_and_shown_as_a_directory_would_be(
    background: Background, remote: Remote, place: Path, mount: Mounter
) -> None:
    done = background(remote.url, place, PYTHONHASHSEED="0")  # so that its process is not a prepared one
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{remote.url} is mounted at {place}, read-only (log: ")
    assert files_below(place) == files_below(mount(remote.local).path)
    counts = run_json("stats", "--json", place)["store"]
    assert counts["requests"]["GetObject"] > 0
    assert counts["bytes_received"] > 16 * 24
    assert counts["conflicts"] == counts["retries"] == 0
    assert "GetObject" in run("stats", place).stdout
    (log,) = background.logs.glob("*.log")
    assert "WARNING" not in log.read_text()
    daemon = daemon_of(place)
    command_line = Path(f"/proc/{daemon}/cmdline").read_text().split("\0")
    assert remote.url in command_line
    assert not {SECRET_KEY, TOKEN} & set(command_line)
    assert run("umount", place).returncode == 0


def failed(background: Background, place: Path, words: list[str], source: str, **variables: str) -> str:
    """What a command says that cannot read *source*."""
    if words[0] == "mount":
        done = background(*words[1:], source, place, **variables)
        assert str(place) not in mount_points()
        assert not os.listdir(place)
    else:
        done = run(*words, source, **variables)
    said = one_line_of(done, SOURCE)
    for secret in (SECRET_KEY, TOKEN):
        assert secret not in said
        assert all(secret not in log.read_text() for log in background.logs.glob("*.log"))
    return said


def test_what_is_written_is_in_the_bucket_when_umount_returns(
    background: Background, remote: Remote, place: Path
) -> None:
    assert background("--write", remote.url, place).returncode == 0
    (place / "c/0/0").write_bytes(b"something else, and longer")
    (place / "notes.txt").write_bytes(b"a plain file")
    assert run("flush", place).returncode == 0
    assert run_json("stats", "--json", place)["store"]["conflicts"] == 0, "nobody else wrote"
    done = run("umount", place)
    assert (done.returncode, done.stderr) == (0, "")
    assert shardfs.open(remote.url)[""].read_chunk((0, 0)) == b"something else, and longer"
    assert remote.bucket.get(f"{PREFIX}/notes.txt") == b"a plain file"


def test_a_server_that_cannot_keep_writers_apart_is_written_only_by_a_single_writer(
    background: Background, remote: Remote, unconditional_bucket: Bucket, place: Path
) -> None:
    unconditional_bucket.upload(remote.local, PREFIX)
    url, server = unconditional_bucket.url(PREFIX), {"AWS_ENDPOINT_URL": unconditional_bucket.endpoint_url}
    assert "profile" in failed(background, place, ["mount", "--profile", "nobody"], remote.url)
    for words in (["mount", "--write"], ["compact"], ["recover", "--apply"]):
        assert "--single-writer" in failed(background, place, words, url, **server)
    for words in (["compact"], ["recover", "--apply"]):
        done = run(*words, "--single-writer", url, **server)
        assert (done.returncode, done.stderr) == (0, "")
    assert background("--write", "--single-writer", url, place, **server).returncode == 0
    (place / "c/0/0").write_bytes(b"new")
    assert run("umount", place).returncode == 0
    assert run_json("verify", "--json", url, **server)["sound"]
