"""Mounts of a bucket that are killed, and the next mount of the same host: nothing that was published is lost."""

import errno
from functools import partial
from threading import Event

import pytest

from tests.support.commands import FAILED
from tests.support.hosts import NEW, OTHER, PREFIX, Host, kill, publish
from tests.support.mounting import PATIENCE, Mount, flush
from tests.support.s3_faults import Before, Then
from tests.support.s3_proxy import S3Proxy

SHARD = f"{PREFIX}/c/0/0"


def commit(mounted: Mount) -> None:
    """Ask for a commit, over which the daemon dies."""
    with pytest.raises(OSError) as caught:
        flush(mounted.path)
    assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)


def test_the_next_mount_takes_over_all_journals(host: Host) -> None:
    first, second = host.mount(), host.mount()
    publish(first, _0=NEW)
    publish(second, _1=OTHER)
    (second.path / "notes.txt").write_text("closed")
    kill(first, second)
    mounted = host.mount()
    assert (mounted.path / "c/0/0").read_bytes() == NEW
    assert (mounted.path / "notes.txt").read_bytes() == b"closed"
    assert (host.chunk(0, 0), host.chunk(0, 1)) == (NEW, OTHER)
    mounted.unmount()
    assert host.recover() == []


def test_a_file_that_a_killed_mount_could_not_store_is_named_by_the_next_one(host: Host) -> None:
    name = f"{PREFIX}/notes.txt"
    host.bucket.put(name, b"first")
    first, second = host.mount(), host.mount(expect=("is kept in",))
    publish(first, _0=NEW)
    (second.path / "notes.txt").read_bytes()
    host.bucket.put(name, b"of another host")
    with pytest.raises(OSError):
        (second.path / "notes.txt").write_bytes(b"ours")
    kill(first, second)
    host.mount(expect=("has notes.txt, which is not stored, of a mount that was killed, which this mount",)).unmount()
    host.recover("--apply", host.url)
    assert (host.bucket.get(name), host.recover()) == (b"ours", [])
    assert not [*host.state.glob("shardfs/remote/*/.shardfs*")], "slots in which nothing is left are removed"


def test_changes_of_another_host_to_the_same_shard_are_kept(host: Host) -> None:
    host.leave(_0=NEW)
    host.elsewhere().commit("c/0/1", OTHER)
    host.mount().unmount()
    assert (host.chunk(0, 0), host.chunk(0, 1)) == (NEW, OTHER)


def test_a_journal_is_not_brought_to_another_prefix_of_the_same_bucket(host: Host) -> None:
    host.leave(_0=NEW)
    host.bucket.put("other/zarr.json", host.bucket.get(f"{PREFIX}/zarr.json"))
    other = host.mounter(host.bucket.url("other"), write=True, state=host.state, env=host.bucket.environment)
    assert not (other.path / "c/0/0").exists()
    other.unmount()
    assert host.bucket.keys("other") == ["other/zarr.json"]
    assert [found["message"].split()[0] for found in host.recover(status=FAILED)] == [host.url]


def test_a_commit_that_was_made_before_its_mount_was_killed_is_not_made_again(host: Host, s3_proxy: S3Proxy) -> None:
    host = host.behind(s3_proxy.url)
    mounted = host.mount()
    publish(mounted, _0=NEW, _1=NEW)
    s3_proxy.fail("PutObject", Then(lambda: kill(mounted)), key=SHARD)
    commit(mounted)
    s3_proxy.log.clear()
    again = host.mount()
    assert s3_proxy.log.keys("GetObject").count(SHARD) == 3  # its index, and the two chunks
    assert (again.path / "c/0/0").read_bytes() == NEW
    again.unmount()
    assert SHARD not in s3_proxy.log.keys("PutObject")
    assert host.recover() == []


def test_a_finished_commit_is_recognized_under_that_of_another_host(host: Host, s3_proxy: S3Proxy) -> None:
    direct, host = host.elsewhere(), host.behind(s3_proxy.url)
    mounted = host.mount()
    publish(mounted, _0=NEW, _1=NEW)

    is_committed = Event()

    def meanwhile() -> None:
        kill(mounted)
        direct.commit("c/1/0", OTHER)
        is_committed.set()

    s3_proxy.fail("PutObject", Then(meanwhile), key=SHARD)
    commit(mounted)
    assert is_committed.wait(PATIENCE)
    s3_proxy.log.clear()
    host.mount().unmount()
    assert SHARD not in s3_proxy.log.keys("PutObject")
    assert [host.chunk(0, 0), host.chunk(0, 1), host.chunk(1, 0)] == [NEW, NEW, OTHER]
    assert host.recover() == []


def test_a_shard_that_is_replaced_during_recovery_is_looked_at_again(host: Host, s3_proxy: S3Proxy) -> None:
    direct, host = host.elsewhere(), host.behind(s3_proxy.url)
    mounted = host.mount()
    publish(mounted, _0=NEW, _1=NEW)
    s3_proxy.fail("PutObject", Then(lambda: kill(mounted)), key=SHARD)
    commit(mounted)
    others = [OTHER, NEW, OTHER]
    # Before each of the first reads, of the index and of what was appended.
    rules = [s3_proxy.fail("GetObject", Before(partial(direct.commit, "c/1/0", other)), key=SHARD) for other in others]
    host.mount().unmount()
    assert all(rule.hits for rule in rules)
    assert [host.chunk(0, 0), host.chunk(0, 1), host.chunk(1, 0)] == [NEW, NEW, OTHER]
    assert host.recover() == []
