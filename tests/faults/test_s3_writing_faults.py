"""Faults between a writing mount and its S3 server: what was written is in the bucket, or in the journal."""

import errno
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import shardfs
from tests.support.commands import FAILED, UNFINISHED, run
from tests.support.corpus import CRC32C, LITTLE, array, sharding
from tests.support.datasets import store
from tests.support.hasty import hasty
from tests.support.mounting import PATIENCE, Mount, Mounter
from tests.support.s3_faults import Before, Fault, Hang, HangMidBody, LostReply, LostRequest, Reply, Then
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket

PREFIX = "path/data.zarr"
SHARD = f"{PREFIX}/c/0/0"
SMALL = array((8, 12), (4, 6), sharding((2, 3), index_codecs=(LITTLE, CRC32C)))
"""Shards of four chunks; chunks are opaque, and may be of any size: see `large`."""
MIB = 2**20
SILENCE = 2.0
"""Seconds after which a server that hangs is given up."""

FAULTS: dict[str, Callable[[], Fault]] = {
    "lost-request": LostRequest,
    "lost-reply": LostReply,
    "carried-out-and-500": lambda: Reply(500, "InternalError", forwarded=True),
    "hang": Hang,
    "expired-token": lambda: Reply(403, "ExpiredToken"),
    "no-such-bucket": lambda: Reply(404, "NoSuchBucket"),
}


@dataclass
class Writer:
    """A writing mount behind a proxy, and what a dictionary says that its array holds."""

    bucket: Bucket
    proxy: S3Proxy
    mounted: Mount
    directory: Path
    remount: Callable[[], Mount]
    model: dict[str, bytes]
    plain: dict[str, bytes] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.mounted.path

    def write(self, name: str, data: bytes) -> None:
        (self.path / name).write_bytes(data)
        (self.model if name.startswith("c/") else self.plain)[name] = data

    def remove(self, name: str) -> None:
        os.unlink(self.path / name)
        del self.model[name]

    def flush(self) -> None:
        os.setxattr(self.path, "user.shardfs.flush", b"")

    def flush_fails(self) -> None:
        with pytest.raises(OSError) as caught:
            self.flush()
        assert caught.value.errno in (errno.EIO, errno.EACCES), caught.value

    @contextmanager
    def meeting(self, fault: Fault, **options: Any) -> Iterator[None]:
        """Let requests meet *fault* for the length of a `with` block."""
        options.setdefault("times", 1)
        self.proxy.fail(options.pop("match", None), fault, **options)
        try:
            yield
        finally:
            if isinstance(fault, Hang | HangMidBody):
                fault.release()
            self.proxy.heal()

    def check_mount(self) -> None:
        for name, data in (self.model | self.plain).items():
            assert (self.path / name).read_bytes() == data, name

    def check_bucket(self) -> None:
        """The bucket, read natively, is what was written, and nothing else is left in it."""
        with tempfile.TemporaryDirectory() as place:
            native = self.bucket.download(Path(place), PREFIX)
            opened = shardfs.open(native)[""]
            for i in range(4):
                for j in range(4):
                    assert opened.read_chunk((i, j)) == self.model.get(f"c/{i}/{j}"), (i, j)
            for name, data in self.plain.items():
                assert (native / name).read_bytes() == data
        stored = {key.removeprefix(f"{PREFIX}/") for key in self.bucket.keys("")}
        assert {name for name in stored if not name.startswith("c/")} == {"zarr.json", *self.plain}
        assert self.bucket.sent_uploads() == []  # one that began without a reply is empty, and stays

    def commit_elsewhere(self, name: str, data: bytes) -> None:
        """Let another host write a chunk and bring it into its shard."""
        state = self.directory / "elsewhere"
        other = self.mount_elsewhere(state)
        (other.path / name).write_bytes(data)
        other.unmount()
        self.model[name] = data

    mount_elsewhere: Callable[[Path], Mount] = field(default=lambda _: pytest.fail("not set"))


@pytest.fixture
def writer(s3_bucket: Bucket, s3_proxy: S3Proxy, tmp_path: Path, mount: Mounter) -> Callable[..., Writer]:
    """`writer(large)` mounts; with *large* a shard has more than 5 MiB, of which S3 copies what stays.

    It gives a silent server up after *silence* seconds.
    """

    def make(*, large: bool = False, silence: float = PATIENCE) -> Writer:
        model = store(tmp_path / "source", SMALL)
        s3_bucket.upload(tmp_path / "source", PREFIX)
        url = s3_bucket.url(PREFIX)
        if large:
            mounted = mount(url, write=True, env=s3_bucket.environment, state=tmp_path / "maker")
            model["c/0/0"] = os.urandom(6 * MIB)
            (mounted.path / "c/0/0").write_bytes(model["c/0/0"])
            mounted.unmount()
        variables = s3_bucket.through(s3_proxy.url).environment | hasty(silence=silence)

        def again() -> Mount:
            expected = (r"dataset\.commit", r"fuse\.operations", r"vfs\.session", r"stores\.kept_files")
            return mount(url, write=True, env=variables, state=tmp_path / "state", expect=expected)

        def elsewhere(state: Path) -> Mount:
            return mount(url, write=True, env=s3_bucket.environment, state=state)

        made = Writer(s3_bucket, s3_proxy, again(), tmp_path, again, model)
        made.mount_elsewhere = elsewhere
        s3_proxy.log.clear()
        return made

    return make


def scenario(here: Writer, turn: int) -> None:
    """Write to two shards, one of them with 5 MiB if it is large, and a file that passes through."""
    here.write("c/0/1", b"%23d!" % turn)
    here.write("c/1/1", b"%23d?" % turn)
    here.write("c/2/2", b"%23d." % turn)
    here.write("notes.txt", b"%d" % turn)


def ensure_committed(here: Writer) -> None:
    """Flush, once more if the first time fails: an error that is reported loses nothing."""
    try:
        here.flush()
    except OSError as error:
        assert error.errno == errno.EIO  # noqa: PT017
        here.check_mount()
        here.flush()


@pytest.mark.parametrize(("large", "name"), [(False, "carried-out-and-500"), (True, "lost-reply")])
def test_one_fault_at_every_request_of_a_commit_loses_nothing(
    writer: Callable[..., Writer], large: bool, name: str
) -> None:
    here = writer(large=large)
    scenario(here, 0)
    here.flush()
    here.proxy.log.clear()
    scenario(here, 1)
    here.flush()
    count = len(here.proxy.log)
    assert 5 < count < 30
    for number in range(count):
        with here.meeting(FAULTS[name](), after=number):
            scenario(here, number + 2)
            ensure_committed(here)
        here.check_bucket()
    here.check_mount()


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        ("PutObject", "expired-token"),
        ("UploadPartCopy", "no-such-bucket"),
        ("CompleteMultipartUpload", "lost-request"),
    ],
)
def test_a_fault_that_stays_is_told_and_everything_waits_in_the_journal(
    writer: Callable[..., Writer], operation: str, name: str
) -> None:
    here = writer(large=operation != "PutObject")
    here.write("c/0/1", b"new")
    with here.meeting(FAULTS[name](), match=operation, times=None):
        here.flush_fails()
        here.check_mount()
    here.flush()
    here.check_bucket()
    here.check_mount()


def test_an_answer_that_somebody_was_faster_is_followed_by_another_attempt(writer: Callable[..., Writer]) -> None:
    here = writer(large=True)
    for operation, status, code in (
        ("UploadPartCopy", 412, "PreconditionFailed"),
        ("UploadPartCopy", 200, "InternalError"),
        ("CompleteMultipartUpload", 404, "NoSuchUpload"),
        ("CompleteMultipartUpload", 200, "InternalError"),
        ("PutObject", 409, "OperationAborted"),
        ("PutObject", 412, "PreconditionFailed"),
    ):
        here.write("c/2/1" if operation == "PutObject" else "c/0/1", f"{status} {operation}".encode())
        with here.meeting(Reply(status, code), match=operation):
            ensure_committed(here)
        here.check_bucket()


@pytest.mark.parametrize(
    ("large", "kind"),
    [
        (True, "before"),
        (False, "after-a-lost-reply-of-the-same-chunk"),
    ],
)
def test_a_commit_of_another_host_meanwhile_is_kept(writer: Callable[..., Writer], large: bool, kind: str) -> None:
    here = writer(large=large)
    here.write("c/0/1", b"ours")
    theirs = "c/0/1" if kind.endswith("same-chunk") else "c/1/0"

    def meanwhile() -> None:
        here.commit_elsewhere(theirs, b"theirs")

    fault = Before(meanwhile) if kind == "before" else Then(meanwhile)
    with here.meeting(fault, match="CompleteMultipartUpload" if large else "PutObject"):
        here.flush()
    here.check_bucket()


@pytest.mark.parametrize("large", [False, True], ids=["put", "upload"])
def test_an_object_that_goes_between_is_made_anew(writer: Callable[..., Writer], large: bool) -> None:
    here = writer(large=large)
    here.write("c/0/1", b"ours")
    with here.meeting(
        Before(lambda: here.bucket.delete(SHARD)), match="CompleteMultipartUpload" if large else "PutObject"
    ):
        ensure_committed(here)
    here.model = {name: data for name, data in here.model.items() if name not in ("c/0/0", "c/1/0", "c/1/1")}
    here.check_bucket()


def fill(here: Writer, count: int) -> None:
    """Write files that pass through, and half of each shard: so little is not committed by itself for a long time."""
    for i in (0, 2):
        for j in range(4):
            here.write(f"c/{i}/{j}", b"%24d" % (4 * i + j))
    for i in range(count):
        here.write(f"file-{i}", b"%d" % i)


def is_kept_and_committed_by_the_next_mount(here: Writer) -> None:
    here.mounted = here.remount()
    here.bucket.delete(f"{PREFIX}/open-0")  # what hung may have come through, as it may with any server
    here.check_mount()
    here.mounted.unmount()
    here.check_bucket()


def test_what_cannot_be_committed_when_the_server_is_down_is_told_by_umount(writer: Callable[..., Writer]) -> None:
    here = writer()
    fill(here, 20)
    variables = here.bucket.environment | {"XDG_STATE_HOME": str(here.directory / "state")}
    here.mounted.ends = (1,)
    with here.proxy.down():
        done = run("flush", here.path, **variables)
        assert done.returncode == FAILED
        done = run("umount", here.path, **variables)
        assert done.returncode == FAILED
        assert "the rest stays in the journal, for the next mount with --write" in done.stderr
        assert here.mounted.process.wait(PATIENCE) == 1
    is_kept_and_committed_by_the_next_mount(here)


def test_a_signal_ends_a_mount_whose_server_hangs_and_all_is_kept(writer: Callable[..., Writer]) -> None:
    here = writer(silence=SILENCE)
    fill(here, 8)
    here.mounted.ends = (1,)
    writers = [os.open(here.path / f"open-{number}", os.O_WRONLY | os.O_CREAT) for number in range(5)]
    for file in writers:
        os.write(file, b"not closed")
    with here.meeting(Hang(), times=None):
        reader = os.open(here.path / "c/3/3", os.O_RDONLY)
        here.mounted.process.send_signal(signal.SIGTERM)
        assert here.mounted.process.wait(PATIENCE) == 1
        os.close(reader) if here.mounted.is_mounted else None
    for file in writers:
        with suppress(OSError):
            os.close(file)
    assert not here.mounted.is_mounted
    assert "what is pending stays in the journal, for the next mount" in here.mounted.log
    assert "what was written stays on this machine" in here.mounted.log
    is_kept_and_committed_by_the_next_mount(here)
    assert "open-4, 10 bytes" in here.mounted.log


def test_umount_gives_up_on_a_server_that_hangs_and_all_is_kept(writer: Callable[..., Writer]) -> None:
    here = writer()
    fill(here, 0)
    here.mounted.ends = (1,)
    with here.meeting(Hang(), times=None):
        done = run("umount", "--timeout", "4", here.path)
        assert done.returncode == UNFINISHED, str(done)
        assert not here.mounted.is_mounted
        assert f"its daemon, process {here.mounted.process.pid}, made no progress for 4 s" in done.stderr
        assert "; 8 chunks are pending (" in done.stderr
        with here.proxy.down():
            assert here.mounted.process.wait(PATIENCE) == 1
    is_kept_and_committed_by_the_next_mount(here)


def test_a_chunk_that_is_fetched_to_be_moved_keeps_no_other_request_waiting(writer: Callable[..., Writer]) -> None:
    here = writer(large=True, silence=SILENCE)
    os.stat(here.path / "c/0/1")  # which needs the index; the chunk itself is fetched when it is moved
    here.proxy.log.clear()
    hang, moved = Hang(), threading.Thread(target=os.rename, args=(here.path / "c/0/1", here.path / "c/1/0"))
    with here.meeting(hang, times=None, match="GetObject"):
        moved.start()
        here.proxy.log.wait_for("GetObject", 1)
        os.statvfs(here.path)
        hang.release()
        moved.join()
    here.model["c/1/0"] = here.model.pop("c/0/1")
    here.check_mount()


def test_one_silent_request_ends_a_commit_of_many_shards(writer: Callable[..., Writer]) -> None:
    here = writer(silence=SILENCE)
    fill(here, 40)
    with here.meeting(Hang(), times=None):
        here.proxy.log.clear()
        here.flush_fails()
        asked = here.proxy.log.of()  # one thing is asked for, and again after the time limit
        assert len({(one.operation, one.key, one.query.get("prefix")) for one in asked}) == 1, asked
        assert len(asked) == 2, asked
    here.flush()
    here.check_bucket()


def test_a_mount_commits_by_itself_when_the_server_is_back(writer: Callable[..., Writer]) -> None:
    here = writer()
    fill(here, 0)
    with here.proxy.down():
        here.flush_fails()
    here.proxy.log.wait_for("PutObject", 4)
    here.flush()
    here.check_bucket()
