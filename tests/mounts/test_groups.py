"""Users of one group write to a directory that they share: each commits, and recovers, what is theirs."""

import json
import os
import stat
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.commands import FAILED, run, run_program
from tests.support.corpus import CRC32C, LITTLE, array, sharding
from tests.support.readers import READERS
from tests.support.users import User, shared_directory

pytestmark = pytest.mark.slow

GROUP = 60100
ALICE, BOB, CAROL = 60001, 60002, 60003
NCHUNKS, LENGTH = 16, 100
DOCUMENT = array(
    (NCHUNKS * LENGTH,), (8 * LENGTH,), sharding((LENGTH,), index_codecs=(LITTLE, CRC32C)), data_type="uint8"
)

WRITE = """
import os, sys, shardfs
from shardfs.dataset.commit import GroupCommit
path, end, value, *numbers = sys.argv[1:]
dataset = shardfs.open(path, write=True)
for number in numbers:
    dataset[""].write_chunk((int(number),), bytes([int(value)]) * 100)
if end == "dies":
    os._exit(9)
if end == "dies after storing":
    GroupCommit._finish = lambda *_: os._exit(9)
if end == "dies before storing":
    GroupCommit._execute = lambda *_: os._exit(9)
dataset.close()
"""


@dataclass(frozen=True)
class Member(User):
    """A user of the group, who lets it write new files."""

    def ends(self, source: Path, value: int, *numbers: int, end: str) -> subprocess.CompletedProcess[str]:
        return run_program(WRITE, str(source), end, str(value), *map(str, numbers), user=self)

    def writes(self, source: Path, value: int, *numbers: int, end: str = "closes") -> None:
        done = self.ends(source, value, *numbers, end=end)
        assert done.returncode == (0 if end == "closes" else 9), done.stderr

    def recovers(self, source: Path, home: Path) -> subprocess.CompletedProcess[str]:
        return run("recover", "--apply", source, user=self, XDG_STATE_HOME=str(home / str(self.number)))


def default_acl(group: int) -> bytes:
    """What lets a group write whatever is made in a directory: the extended attribute as the kernel takes it."""
    nobody = 0xFFFFFFFF
    entries = [(0x01, 7, nobody), (0x04, 5, nobody), (0x08, 7, group), (0x10, 7, nobody), (0x20, 5, nobody)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


@dataclass(frozen=True)
class Shared:
    """What the users write, and who they are."""

    source: Path
    home: Path
    alice: Member
    bob: Member
    carol: Member


@pytest.fixture(params=["setgid", "primary group", "default ACL"])
def shared(request: pytest.FixtureRequest) -> Iterator[Shared]:
    with shared_directory() as top:
        source = top / "data"
        source.mkdir()
        (source / "zarr.json").write_text(json.dumps(DOCUMENT))
        for path in (source, source / "zarr.json"):
            os.chown(path, ALICE, GROUP)
            path.chmod(0o775 if path == source else 0o664)
        if request.param == "setgid":
            source.chmod(0o2775)
        if request.param == "default ACL":
            os.chown(source, ALICE, ALICE)
            try:
                for name in ("default", "access"):
                    os.setxattr(source, f"system.posix_acl_{name}", default_acl(GROUP))
            except OSError:
                pytest.skip("the file system of the test has no access control lists")
        primary = GROUP if request.param == "primary group" else None
        users = [Member(number, primary or number, (GROUP,), 0o002) for number in (ALICE, BOB, CAROL)]
        (top / "home").mkdir()
        (top / "home").chmod(0o777)
        yield Shared(source, top / "home", *users)


def stored(source: Path) -> list[int]:
    """One number of each chunk, as native readers find it."""
    found = [read(source).reshape(NCHUNKS, LENGTH) for read in READERS.values()]
    assert all((one == found[0]).all() for one in found)
    assert (found[0] == found[0][:, :1]).all()
    return [int(value) for value in found[0][:, 0]]


def test_users_of_a_group_write_into_the_same_shard_one_after_the_other(shared: Shared) -> None:
    for turn, user in enumerate((shared.alice, shared.bob, shared.carol, shared.alice)):
        user.writes(shared.source, turn + 1, 0, turn + 1)
    assert stored(shared.source)[:5] == [4, 1, 2, 3, 4]
    assert sorted(os.listdir(shared.source)) == ["c", "zarr.json"]
    for path in (shared.source / "c", shared.source / "c/0"):
        assert path.stat().st_mode & stat.S_IWGRP, "all of them may change it natively, too"


@pytest.mark.parametrize("end", ["dies before storing", "dies after storing"])
def test_who_meets_what_another_user_left_in_a_shard_writes_it_and_the_other_one_recovers_the_rest(
    shared: Shared, end: str
) -> None:
    """Chunk 0 is of both, and of the same size: the last commit counts."""
    shared.alice.writes(shared.source, 9, *range(8))
    shared.alice.writes(shared.source, 1, 0, 8, end=end)
    shared.bob.writes(shared.source, 3, 0)
    assert stored(shared.source)[:9] == [3, *([9] * 7), 0]
    done = shared.alice.recovers(shared.source, shared.home)
    assert stored(shared.source)[8] == 1
    assert stored(shared.source)[1:8] == [9] * 7
    kept = "applied: the new bytes of chunk 0 of the array" in done.stdout
    assert stored(shared.source)[0] == (1 if kept else 3), "what is in conflict is only applied by name"
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (shared.source / ".shardfs").exists()


def test_a_third_user_recovers_what_is_his_and_names_what_is_not(shared: Shared) -> None:
    shared.alice.writes(shared.source, 1, 1, end="dies")
    shared.bob.writes(shared.source, 2, 2, 9, end="dies before storing")
    shared.carol.writes(shared.source, 3, 3, end="dies")
    done = shared.carol.recovers(shared.source, shared.home)
    assert done.returncode == FAILED
    assert stored(shared.source)[:4] == [0, 0, 0, 3]
    for user in (ALICE, BOB):
        assert f"chunks that may not be committed yet, of user {user}; " in done.stdout, done.stdout
        assert f"as user {user} or root" in done.stdout
    for user in (shared.bob, shared.alice):
        last = user.recovers(shared.source, shared.home)
    assert last.returncode == 0, last.stdout + last.stderr
    assert stored(shared.source)[:10] == [0, 1, 2, 3, 0, 0, 0, 0, 0, 2]
    assert not list(shared.source.glob(".shardfs*"))
    assert not list(shared.source.rglob("*.__lock"))


@pytest.mark.parametrize("number", [0, 9], ids=["a shard", "a shard that is not there yet"])
def test_who_may_write_shards_but_make_no_files_beside_them_is_refused_before_publishing(
    shared: Shared, number: int
) -> None:
    """Nothing would tell others that a commit had begun: what they store then would be taken for a part of it."""
    shared.alice.writes(shared.source, 9, *range(8))
    (shared.source / "c").chmod(0o755)
    done = shared.bob.ends(shared.source, 1, number, end="dies before storing")
    shared.alice.writes(shared.source, 3, 0)
    assert shared.bob.recovers(shared.source, shared.home).returncode == 0
    assert stored(shared.source) == [3, *([9] * 7), *([0] * 8)]
    assert f"c/{number // 8} is not changed: this user has no permission to make a lock file beside it" in done.stderr
