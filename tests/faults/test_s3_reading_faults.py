"""Faults between a mount and its S3 server: right bytes after all, or an error, and never a hole."""

import errno
import os
import re
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.corpus import CRC32C, LITTLE, array, sharding
from tests.support.datasets import files_below, store
from tests.support.hasty import hasty
from tests.support.mounting import PATIENCE, Mount, Mounter
from tests.support.s3_faults import Fault, Hang, HangMidBody, LostReply, Reply, Truncated
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import ACCESS_KEY, SECRET_KEY, Bucket

PREFIX = "path/data.zarr"
DOCUMENT = array((4, 6), (2, 6), sharding((2, 3), index_codecs=(LITTLE, CRC32C)))
"""Two shards of two chunks: nothing is believed for long, so that each file takes many requests."""
PLAIN = {"notes.txt": b"some notes", "sub/deep.txt": b"far below"}
GROUP = b'{"zarr_format": 3, "node_type": "group"}'

FAULTS: dict[str, Callable[[], Fault]] = {
    "slow-down": lambda: Reply(503, "SlowDown"),
    "internal-error": lambda: Reply(500, "InternalError"),
    "lost-reply": LostReply,
    "truncated": lambda: Truncated(3),
    "hang": Hang,
    "hang-mid-body": lambda: HangMidBody(3),
    "expired-token": lambda: Reply(403, "ExpiredToken"),
    "denied": lambda: Reply(403, "AccessDenied"),
    "no-such-bucket": lambda: Reply(404, "NoSuchBucket"),
    "other-region": lambda: Reply(301, "PermanentRedirect"),
    "wrong-clock": lambda: Reply(403, "RequestTimeTooSkewed"),
}
DENIED = ("expired-token", "denied")
WAITED_FOR = ("stat of a chunk", "a file")
"""What is tried of a server that hangs: each request of it is waited for, and most uses begin with the same ones."""


def silence_of(name: str) -> float:
    """After how many seconds a server with a fault is given up if it is silent."""
    return 2.0 if name.startswith("hang") else PATIENCE


@dataclass
class Faulty:
    """A mount behind a proxy, and what must be seen there."""

    mounted: Mount
    proxy: S3Proxy
    bucket: Bucket
    expected: dict[str, bytes]

    @property
    def path(self) -> Path:
        return self.mounted.path

    @contextmanager
    def meeting(self, fault: Fault, **options: Any) -> Iterator[None]:
        """Let requests meet *fault* for the length of a `with` block."""
        options.setdefault("times", None)
        self.proxy.fail(options.pop("match", None), fault, **options)
        try:
            yield
        finally:
            if isinstance(fault, Hang | HangMidBody):
                fault.release()
            self.proxy.heal()

    def uses(self) -> dict[str, Callable[[], object]]:
        """Whatever takes requests, if nothing is believed."""
        return {
            "stat of a chunk": lambda: os.stat(self.path / "c/0/0"),
            "stat of an absent chunk": lambda: os.stat(self.path / "c/1/1"),
            "open of a chunk": lambda: (self.path / "c/1/0").read_bytes(),
            "a chunk's attributes": lambda: os.getxattr(self.path / "c/0/1", "user.shardfs.offset"),
            "the root": lambda: os.listdir(self.path),
            "chunks": lambda: os.listdir(self.path / "c/0"),
            "a document": lambda: (self.path / "zarr.json").read_bytes(),
            "stat of a file": lambda: os.stat(self.path / "notes.txt"),
            "a file": lambda: (self.path / "notes.txt").read_bytes(),
            "a directory": lambda: os.listdir(self.path / "sub"),
            "a file below": lambda: (self.path / "sub/deep.txt").read_bytes(),
            "a name that nothing has": lambda: os.stat(self.path / "none"),
        }

    def fail_all(self, names: Collection[str] | None = None) -> dict[str, int | None]:
        """Do all of it, or what has *names*, at the same time; returns the errno of each, None if it did not fail."""

        def errno_of(use: Callable[[], object]) -> int | None:
            try:
                use()
            except OSError as error:
                return error.errno
            return None

        uses = {name: use for name, use in self.uses().items() if names is None or name in names}
        with ThreadPoolExecutor(len(uses)) as threads:
            return dict(zip(uses, threads.map(errno_of, uses.values()), strict=True))

    def check(self) -> None:
        """Everything is as it was stored."""
        assert files_below(self.path) == self.expected
        with pytest.raises(FileNotFoundError):
            os.stat(self.path / "c/1/1")


@pytest.fixture
def faulty(s3_bucket: Bucket, s3_proxy: S3Proxy, tmp_path: Path, mount: Mounter) -> Callable[..., Faulty]:
    """`faulty(**options)` mounts through the proxy, and gives a silent server up after *silence* seconds."""

    def make(ttl: float = 0, more: dict[str, str] | None = None, silence: float = PATIENCE, **options: Any) -> Faulty:
        chunks = store(tmp_path / "source", DOCUMENT, absent=[(1, 1)])
        s3_bucket.upload(tmp_path / "source", PREFIX)
        for key, data in (PLAIN | {"sub/zarr.json": GROUP}).items():
            s3_bucket.put(f"{PREFIX}/{key}", data)
        variables = s3_bucket.through(s3_proxy.url).environment | hasty(silence=silence) | (more or {})
        expect = (r"fuse\.operations", r"dataset\.shard_cache")
        options |= {"env": variables, "metadata_ttl": ttl, "expect": expect}
        mounted = mount(s3_bucket.url(PREFIX), **options)
        expected = chunks | PLAIN
        expected |= {key: (mounted.path / key).read_bytes() for key in ("zarr.json", "sub/zarr.json")}
        if ttl:  # nothing is known of what was read so far
            mounted.unmount()
            mounted = mount(s3_bucket.url(PREFIX), **options)
        s3_proxy.log.clear()
        return Faulty(mounted, s3_proxy, s3_bucket, expected)

    return make


@pytest.mark.parametrize(
    ("names", "write"),
    [
        (("slow-down", "truncated", "no-such-bucket"), False),
        (("lost-reply", "expired-token"), True),
        (("hang",), False),
    ],
    ids=str,
)
def test_a_fault_that_stays_is_an_error_and_never_a_hole(
    faulty: Callable[..., Faulty], names: tuple[str, ...], write: bool
) -> None:
    behind = faulty(write=write, silence=silence_of(names[0]))
    uses = WAITED_FOR if names[0].startswith("hang") else tuple(behind.uses())
    named = re.compile(rf"(GetObject|HeadObject|ListObjectsV2|HeadBucket) of |the bucket {behind.bucket.name} ")
    nlogged = 0
    for name in names:
        number = errno.EACCES if name in DENIED else errno.EIO
        with behind.meeting(FAULTS[name]()):
            assert behind.fail_all(uses) == dict.fromkeys(uses, number), name
        behind.check()
        errors = [line for line in behind.mounted.log.splitlines() if " ERROR " in line]
        assert len(errors) > nlogged, name
        assert all(named.search(line) for line in errors), errors
        nlogged = len(errors)


@pytest.mark.parametrize(
    ("names", "write"),
    [
        (("truncated", "internal-error", "lost-reply"), True),
        (("hang-mid-body",), False),
    ],
    ids=str,
)
def test_a_fault_that_passes_is_not_seen(faulty: Callable[..., Faulty], names: tuple[str, ...], write: bool) -> None:
    behind = faulty(write=write, silence=silence_of(names[0]))
    every = 40 if names[0].startswith("hang") else 3  # each of them is waited for
    for name in names:
        turn, before = iter(range(1_000_000)), len(behind.mounted.log)
        with behind.meeting(FAULTS[name](), match=lambda _, turn=turn: next(turn) % every == 0):
            behind.check()
        assert " ERROR " not in behind.mounted.log
        # A reply that is lost on a kept connection is asked for again by libcurl.
        words = "sent again, as its connection was closed" if name == "lost-reply" else "trying again (2 of 6)"
        assert words in behind.mounted.log[before:], name


@pytest.mark.parametrize("name", ["expired-token", "no-such-bucket"])
def test_no_failure_is_remembered_and_shards_are_never_shown_for_chunks(
    faulty: Callable[..., Faulty], name: str
) -> None:
    behind = faulty(ttl=60)
    with behind.meeting(FAULTS[name]()):
        assert set(behind.fail_all().values()) <= {errno.EACCES, errno.EIO}
    with behind.meeting(FAULTS[name](), match="GetObject", key="zarr.json"):
        for use in (lambda: (behind.path / "c/0/0").read_bytes(), lambda: os.listdir(behind.path)):
            with pytest.raises(OSError, match=r"Permission denied|Input/output error"):
                use()
    assert "shown as stored" not in behind.mounted.log
    behind.check()


def test_an_open_file_fails_and_goes_on(faulty: Callable[..., Faulty]) -> None:
    behind = faulty()
    for name in ("truncated", "expired-token"):
        with open(behind.path / "c/0/0", "rb", buffering=0) as chunk, open(behind.path / "notes.txt", "rb", 0) as plain:
            with behind.meeting(FAULTS[name](), match="GetObject"):
                for file in (chunk, plain):
                    with pytest.raises(OSError, match=r"Permission denied|Input/output error"):
                        os.pread(file.fileno(), 1000, 0)
            assert os.pread(chunk.fileno(), 1000, 0) == behind.expected["c/0/0"]
            assert os.pread(plain.fileno(), 1000, 0) == PLAIN["notes.txt"]


def test_a_server_that_is_down_fails_every_use_and_is_found_again(faulty: Callable[..., Faulty]) -> None:
    behind = faulty()
    with behind.proxy.down():
        assert behind.fail_all() == dict.fromkeys(behind.uses(), errno.EIO)
    behind.check()
    assert "cannot be reached: the connection is refused" in behind.mounted.log


def test_one_fault_at_every_request_of_a_scenario_changes_nothing(faulty: Callable[..., Faulty]) -> None:
    behind = faulty()

    def scenario() -> None:
        assert (behind.path / "c/0/0").read_bytes() == behind.expected["c/0/0"]
        assert sorted(os.listdir(behind.path / "c/0")) == ["0", "1"]
        assert (behind.path / "sub/deep.txt").read_bytes() == PLAIN["sub/deep.txt"]

    scenario()
    kinds = [(one.operation, one.key, one.query.get("prefix"), one.range) for one in behind.proxy.log.of()]
    assert len({*kinds}) > 7
    for number in map(kinds.index, dict.fromkeys(kinds)):
        with behind.meeting(FAULTS["lost-reply"](), times=1, after=number):
            scenario()
    assert " ERROR " not in behind.mounted.log


def test_a_key_that_is_gone_is_absent_and_a_bucket_that_is_gone_is_not(faulty: Callable[..., Faulty]) -> None:
    behind = faulty()
    with behind.meeting(Reply(404, "NoSuchKey"), match="GetObject", key="c/0/0"), pytest.raises(FileNotFoundError):
        os.stat(behind.path / "c/0/0")
    gone = Reply(404, "NoSuchBucket")
    with behind.meeting(gone, match="GetObject", key="c/0/0"), pytest.raises(OSError, match="Input/output error"):
        os.stat(behind.path / "c/0/0")
    behind.check()


def test_no_credential_is_logged_however_much_is_logged(faulty: Callable[..., Faulty]) -> None:
    token = "session-token-of-the-test"
    behind = faulty(arguments=["--log-level=debug"], more={"AWS_SESSION_TOKEN": token})
    for name in ("internal-error", "lost-reply", "denied", "other-region", "wrong-clock"):
        with behind.meeting(FAULTS[name]()):
            assert set(behind.fail_all().values()) <= {errno.EACCES, errno.EIO}
    for secret in (ACCESS_KEY, SECRET_KEY, token, "Signature", "Authorization", "X-Amz", "made by the test"):
        assert secret.lower() not in behind.mounted.log.lower()
