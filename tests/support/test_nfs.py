"""Two hosts that share a directory see of each other what hosts see that share one over NFS."""

import errno
import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from shardfs.stores.local.syscalls import is_local, is_ofd_locked, ofd_lock, ofd_unlock
from tests.support.mounting import eventually, refuses, skip_without_fuse
from tests.support.nfs import Locks, client, pair

pytestmark = pytest.mark.mount
Hosts = tuple[Path, Path]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    skip_without_fuse()
    with pair(tmp_path) as places:
        yield places


@contextmanager
def opened(*paths: Path) -> Iterator[Sequence[IO[Any]]]:
    files = [path.open("r+b", buffering=0) for path in paths]
    try:
        yield files
    finally:
        for file in files:
            file.close()


def test_names_and_sizes_are_cached_and_renewed_at_open(hosts: Hosts) -> None:
    alpha, beta = hosts
    (alpha / "a").write_bytes(b"one")
    assert os.stat(beta / "a").st_size == 3
    assert not (beta / "b").exists()
    (alpha / "b").touch()
    with (alpha / "a").open("ab") as file:
        file.write(b" two")
    assert os.stat(beta / "a").st_size == 3
    assert (beta / "a").read_bytes() == b"one two"
    assert os.stat(beta / "a").st_size == 7
    assert not (beta / "b").exists()
    eventually((beta / "b").exists)


def test_a_replaced_file_is_the_new_one_at_open_and_the_old_one_for_stat(hosts: Hosts) -> None:
    alpha, beta = hosts
    (alpha / "a").write_bytes(b"one")
    old = os.stat(beta / "a").st_ino
    (alpha / "b").write_bytes(b"other")
    os.rename(alpha / "b", alpha / "a")
    assert os.stat(beta / "a").st_ino == old
    with (beta / "a").open("rb") as file:
        assert os.fstat(file.fileno()).st_ino != old
        assert file.read() == b"other"


def test_pages_are_cached_while_a_file_is_open(hosts: Hosts) -> None:
    alpha, beta = hosts
    (alpha / "a").write_bytes(b"one")
    with (beta / "a").open("rb", buffering=0) as file:
        assert file.read() == b"one"
        (alpha / "a").write_bytes(b"two")
        assert os.pread(file.fileno(), 3, 0) == b"one"
        assert (beta / "a").read_bytes() == b"two"
        assert os.pread(file.fileno(), 3, 0) == b"two"


def test_what_is_written_is_seen_elsewhere_once_it_is_synced_closed_or_unlocked(hosts: Hosts) -> None:
    alpha, beta = hosts
    (alpha / "a").write_bytes(b"....")
    with opened(alpha / "a") as (file,):
        file.write(b"1")
        assert [(host / "a").read_bytes() for host in hosts] == [b"1...", b"...."]
        os.fsync(file.fileno())
        assert (beta / "a").read_bytes() == b"1..."
        assert ofd_lock(file.fileno())
        file.write(b"2")
        assert (beta / "a").read_bytes() == b"1..."
        ofd_unlock(file.fileno())
        assert (beta / "a").read_bytes() == b"12.."
        file.write(b"3")
        assert (beta / "a").read_bytes() == b"12.."
    assert (beta / "a").read_bytes() == b"123."


def test_what_is_not_written_through_is_lost_with_its_host(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    with client(tmp_path / "shared", tmp_path / "host") as host:
        file = (tmp_path / "host/a").open("wb", buffering=0)
        file.write(b"synced")
        os.fsync(file.fileno())
        file.write(b" and not")
        host.kill()
        host.wait()
        with refuses(errno.ENOTCONN):
            os.fsync(file.fileno())
        with refuses(errno.ENOTCONN):
            file.close()
    assert (tmp_path / "shared/a").read_bytes() == b"synced"


def test_a_granted_lock_renews_the_file_that_is_locked(hosts: Hosts) -> None:
    alpha, beta = hosts
    (alpha / "a").write_bytes(b"one")
    (alpha / "b").write_bytes(b"one")
    with opened(beta / "a", beta / "b") as (locked, other):
        assert locked.read() == other.read() == b"one"
        (alpha / "a").write_bytes(b"twice")
        (alpha / "b").write_bytes(b"twice")
        assert ofd_lock(locked.fileno())
        assert os.pread(locked.fileno(), 9, 0) == b"twice"
        assert os.pread(other.fileno(), 9, 0) == b"one"


def test_locks_reach_the_other_host_and_end_with_their_description(hosts: Hosts) -> None:
    (hosts[0] / "a").touch()
    with opened(*(host / "a" for host in (*hosts, hosts[1]))) as (first, *others):
        assert ofd_lock(first.fileno())
        for other in others:
            assert is_ofd_locked(other.fileno())
            assert not ofd_lock(other.fileno())
        first.close()  # which the kernel reports when it has returned
        eventually(lambda: ofd_lock(others[0].fileno()))
        assert not ofd_lock(others[1].fileno())


def test_locks_of_several_readers_are_shared(hosts: Hosts) -> None:
    (hosts[0] / "a").touch()
    with opened(*(host / "a" for host in hosts)) as files:
        for file in files:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0))
        assert not ofd_lock(files[0].fileno())


def test_who_waits_for_a_lock_gets_it(hosts: Hosts) -> None:
    (hosts[0] / "a").touch()
    waiting = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+b'); print(1, flush=True); fcntl.lockf(file, fcntl.LOCK_EX)"
    )
    with opened(hosts[0] / "a") as (file,):
        assert ofd_lock(file.fileno())
        with subprocess.Popen([sys.executable, "-c", waiting, str(hosts[1] / "a")], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.read(1) == b"1"
            assert process.poll() is None
            ofd_unlock(file.fileno())
            assert process.wait(60) == 0


@pytest.mark.parametrize(("locks", "seen"), [("local", True), ("none", None)])
def test_locks_may_stay_on_a_host_or_be_missing(tmp_path: Path, locks: Locks, *, seen: bool | None) -> None:
    skip_without_fuse()
    with pair(tmp_path, locks=locks) as hosts:
        (hosts[0] / "a").touch()
        with opened(*(host / "a" for host in hosts)) as (first, second):
            if seen is None:
                with refuses(errno.ENOLCK):
                    ofd_lock(first.fileno())
            else:
                assert ofd_lock(first.fileno())
                assert ofd_lock(second.fileno())


def test_one_host_alone_creates_a_name(hosts: Hosts) -> None:
    alpha, beta = hosts
    assert not (beta / "a").exists()
    (alpha / "a").touch()
    assert not (beta / "a").exists()
    with pytest.raises(FileExistsError):
        (beta / "a").open("xb")


def test_a_file_that_is_open_where_it_is_removed_has_a_name_until_it_is_closed(hosts: Hosts) -> None:
    alpha, beta = hosts
    (alpha / "a").write_bytes(b"one")
    with (alpha / "a").open("rb") as file:
        os.unlink(alpha / "a")
        (hidden,) = os.listdir(beta)
        assert hidden.startswith(".nfs")
        assert file.read() == b"one"
    eventually(lambda: not os.listdir(beta))


def test_a_file_that_another_host_removed_is_read_by_who_has_it_open(hosts: Hosts) -> None:
    alpha, beta = hosts
    (alpha / "a").write_bytes(b"one")
    with opened(beta / "a") as (file,):
        os.unlink(alpha / "a")
        assert file.read() == b"one"
        with refuses(errno.ESTALE):
            os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY)
        with pytest.raises(FileNotFoundError):
            (beta / "a").open("rb")


def test_directories_are_listed_as_they_are(hosts: Hosts) -> None:
    alpha, beta = hosts
    (alpha / "d").mkdir()
    assert os.listdir(beta / "d") == []
    names = {f"{number:04}" for number in range(3000)}
    for name in names:
        (alpha / "d" / name).touch()
    assert {*os.listdir(beta / "d")} == names


def test_a_directory_that_another_host_removed_is_gone_for_who_opens_it(hosts: Hosts) -> None:
    alpha, beta = hosts
    (alpha / "d").mkdir()
    assert os.stat(beta / "d")
    (alpha / "d").rmdir()
    assert os.stat(beta / "d")
    with pytest.raises(FileNotFoundError):
        os.listdir(beta / "d")


def test_it_is_no_file_system_of_a_single_host(hosts: Hosts) -> None:
    fd = os.open(hosts[0], os.O_RDONLY)
    assert not is_local(fd)
    os.close(fd)


def test_data_modes_links_and_attributes_pass_through(hosts: Hosts, tmp_path: Path) -> None:
    alpha, stored = hosts[0], tmp_path / "shared"
    data = os.urandom(3_000_000)
    (alpha / "d").mkdir(mode=0o750)
    (alpha / "d/a").write_bytes(data)
    os.truncate(alpha / "d/a", 2_500_000)
    os.chmod(alpha / "d/a", 0o640)
    os.utime(alpha / "d/a", ns=(1, 10**18 + 7))
    os.link(alpha / "d/a", alpha / "linked")
    os.symlink("d/a", alpha / "symbolic")
    os.setxattr(alpha / "linked", "user.a", b"value")
    assert (stored / "linked").read_bytes() == (alpha / "symbolic").read_bytes() == data[:2_500_000]
    status = os.stat(stored / "d/a")
    assert (status.st_mode & 0o777, status.st_mtime_ns, status.st_nlink) == (0o640, 10**18 + 7, 2)
    assert os.getxattr(stored / "d/a", "user.a") == b"value"
    assert os.listxattr(alpha / "linked") == ["user.a"]
    assert os.readlink(alpha / "symbolic") == "d/a"
