"""`shardfs recover` of remote sources: what killed mounts left on this machine, and how it gets home."""

import shlex
import socket
from pathlib import Path

import pytest

from tests.support.commands import FAILED, WRONG_USAGE, one_line_of
from tests.support.hosts import NEW, OTHER, PREFIX, Host, kill, make_host, publish
from tests.support.mounting import Mounter
from tests.support.s3_server import Bucket


@pytest.fixture
def host(s3_bucket: Bucket, tmp_path: Path, mount: Mounter) -> Host:
    return make_host(s3_bucket, tmp_path, mount)


def test_journals_of_this_machine_are_listed_with_the_command_that_recovers_them(host: Host) -> None:
    host.leave(_0=NEW, _1=OTHER)
    (found,) = host.recover(status=FAILED)
    said = host.run("recover")
    assert said.returncode == FAILED
    assert f"{host.url} at {host.bucket.endpoint_url}, slot 0; chunks that may not be committed yet; " in said.stdout
    assert said.stdout.endswith(found["command"] + "\n")
    command = shlex.split(found["command"])
    assert command[0] == "shardfs"
    assert host.run(*command[1:]).returncode == 0
    assert (host.chunk(0, 0), host.chunk(0, 1)) == (NEW, OTHER)
    assert host.run("recover").stdout == "nothing to recover\n"
    assert "needs a SOURCE" in one_line_of(host.run("recover", "--apply"), WRONG_USAGE)
    mounted = host.mount()
    publish(mounted, _0=OTHER)
    for arguments in ([], ["--apply", host.url]):  # what a mount uses is its own business
        (found,) = host.recover(*arguments)
        assert f"in use by process {mounted.process.pid} on {socket.gethostname()}" in found["message"]


def test_conflicts_and_refused_files_of_a_running_mount_have_to_wait(host: Host) -> None:
    host.leave(_0=NEW)
    host.elsewhere().commit("c/0/0", OTHER)
    host.bucket.put(f"{PREFIX}/notes.txt", b"first")
    mounted = host.mount(expect=("another program", "is kept in"))
    (mounted.path / "notes.txt").read_bytes()
    host.bucket.put(f"{PREFIX}/notes.txt", b"of another host")
    with pytest.raises(OSError):
        (mounted.path / "notes.txt").write_bytes(b"ours")
    for arguments in ([], ["--apply"]):
        found = {item["kind"]: item for item in host.recover(*arguments, host.url, status=FAILED)}
        assert sorted(found) == ["conflict", "file", "slot"]
        assert all(item["left"] for item in found.values())
        assert found["slot"]["message"].endswith("unmount first, then run `shardfs recover --apply`")
        assert f"to discard it, remove {found['file']['path']}" in found["file"]["message"]
    (listed,) = host.recover(status=FAILED)
    assert listed["message"].endswith("unmount first, then run `shardfs recover --apply`")
    assert (host.chunk(0, 0), host.bucket.get(f"{PREFIX}/notes.txt")) == (OTHER, b"of another host")
    mounted.unmount()
    host.recover("--apply", host.url)
    assert (host.chunk(0, 0), host.bucket.get(f"{PREFIX}/notes.txt")) == (NEW, b"ours")


def test_a_source_is_repaired_only_with_apply(host: Host) -> None:
    shard = f"{PREFIX}/c/1/1"
    whole = host.bucket.get(shard)
    host.bucket.put(shard, whole + b"torn")
    first, second = host.mount(), host.mount()
    publish(first, _0=NEW)
    publish(second, _1=OTHER)
    kill(first, second)
    for _ in range(2):
        kinds = [found["kind"] for found in host.recover(host.url, status=FAILED)]
        assert sorted(kinds) == ["pending", "pending", "torn"]
    applied = host.recover("--apply", host.url)
    assert [found["left"] for found in applied] == [False] * 3
    (tail,) = [Path(found["path"]) for found in applied if found["kind"] == "torn"]
    assert tail.is_relative_to(host.state)
    assert (tail.read_bytes(), host.bucket.get(shard)) == (b"torn", whole)
    assert (host.chunk(0, 0), host.chunk(0, 1)) == (NEW, OTHER)
    assert host.recover(host.url) == []


def test_a_change_of_another_host_makes_a_conflict_until_it_is_applied(host: Host) -> None:
    host.leave(_0=NEW, _1=NEW)
    host.elsewhere().commit("c/0/0", OTHER)
    mounted = host.mount(expect=("another program has changed the chunk",))
    assert (mounted.path / "c/0/0").read_bytes() == OTHER
    assert (mounted.path / "c/0/1").read_bytes() == NEW
    mounted.unmount()
    (found,) = host.recover(host.url, status=FAILED)
    assert found["kind"] == "conflict"
    assert "0/0" in found["message"]
    (listed,) = host.recover(status=FAILED)
    assert "slot 0; conflicts; " in listed["message"]
    host.recover("--apply", host.url)
    assert (host.chunk(0, 0), host.chunk(0, 1)) == (NEW, NEW)
    assert host.recover() == []
