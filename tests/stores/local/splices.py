"""One splice of each form, for tests of what it does and of how it fails."""

from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from shardfs.stores.base import Buffer, Content, Kept, Splice, Stat
from shardfs.stores.local.file_lock import is_lock
from shardfs.stores.local.syscalls import Syscalls
from shardfs.stores.local.tree import LocalStore
from shardfs.stores.memory import MemoryContent
from tests.support.datasets import age
from tests.support.lossy_disk import LossyDisk

MIB = 2**14
"""In tests of splices steps are so much smaller: what matters is their number."""
OLD = bytes(i * 7 % 251 for i in range(10_000))
TAIL_NBYTES = 100


def content(data: bytes) -> MemoryContent:
    return MemoryContent(memoryview(data))


class Counted:
    """*nbytes* bytes that are in no memory."""

    def __init__(self, nbytes: int, byte: bytes = b"c") -> None:
        self.nbytes = nbytes
        self._byte = byte

    def read(self, offset: int, nbytes: int) -> Buffer:
        assert offset >= 0
        assert offset + nbytes <= self.nbytes
        return self._byte * nbytes


class SpliceDisk(LossyDisk):
    """A lossy disk where lock files are neither counted nor lost: they are a matter of their own."""

    def create(self, name: str, flags: int, mode: int, dir_fd: int) -> int:
        return (
            Syscalls.create(self, name, flags, mode, dir_fd)
            if is_lock(name)
            else super().create(name, flags, mode, dir_fd)
        )

    def unlink(self, name: str, dir_fd: int) -> None:
        if not is_lock(name):
            super().unlink(name, dir_fd)
        elif self._killed is None:
            Syscalls.unlink(self, name, dir_fd)


@dataclass(frozen=True)
class Case:
    """A splice of `d/f`, which has the content OLD unless it *is_new*, and the calls that it takes."""

    pieces: tuple[Kept | Content, ...]
    tail_nbytes: int
    calls: tuple[str, ...]
    is_new: bool = False
    in_place: bool = True

    @property
    def splice(self) -> Splice:
        sizes = [*accumulate(piece.nbytes for piece in self.pieces)]
        steps = [size for size, piece in zip(sizes, self.pieces, strict=True) if piece is OLD_TAIL]
        return Splice(self.pieces, self.tail_nbytes, (*steps, *sizes[-1:]))

    @property
    def key(self) -> str:
        return "a/b/f" if self.is_new else "d/f"

    @property
    def old(self) -> bytes | None:
        return None if self.is_new else OLD

    @property
    def new(self) -> bytes:
        return b"".join(
            OLD[piece.offset : piece.offset + piece.nbytes]
            if isinstance(piece, Kept)
            else bytes(piece.read(0, piece.nbytes))
            for piece in self.pieces
        )


WHOLE = Kept(0, len(OLD))
OLD_TAIL = Kept(len(OLD) - TAIL_NBYTES, TAIL_NBYTES)
WRITTEN = ("create", "pwrite", "chmod", "sync")
CASES = {
    "append": Case(
        (WHOLE, content(b"one"), content(b"two"), content(b"t" * TAIL_NBYTES)),
        TAIL_NBYTES,
        ("pwrite", "pwrite", "pwrite", "utime", "sync"),
    ),
    "append at once": Case(
        (WHOLE, content(bytes(2185)), content(b"one"), content(b"t" * TAIL_NBYTES)),
        TAIL_NBYTES,
        ("pwrite_direct", "utime", "sync"),
    ),
    "append in two steps": Case(
        (WHOLE, Counted(9 * MIB + 2188), OLD_TAIL, content(bytes(3993)), content(b"one"), content(b"t" * TAIL_NBYTES)),
        TAIL_NBYTES,
        ("pwrite_direct", "pwrite", "pwrite", "sync", "pwrite_direct", "utime", "sync"),
    ),
    "large append": Case(
        (WHOLE, Counted(9 * MIB), content(b"payload"), content(b"t" * TAIL_NBYTES)),
        TAIL_NBYTES,
        ("pwrite", "pwrite", "pwrite", "sync", "pwrite", "utime", "sync"),
    ),
    "large append without a tail": Case((WHOLE, Counted(9 * MIB)), 0, ("pwrite", "pwrite", "utime", "sync")),
    "cut": Case((Kept(0, 5000),), 0, ("truncate", "sync")),
    "compacted": Case(
        (Kept(5000, 100), content(b"one"), Kept(0, 10), content(b"t" * TAIL_NBYTES)),
        TAIL_NBYTES,
        (*WRITTEN, "rename", "sync_directory"),
        in_place=False,
    ),
    "end kept": Case((Kept(5000, 5000),), 0, (*WRITTEN, "rename", "sync_directory"), in_place=False),
    "replaced": Case((content(b"all"), content(b"new")), 0, (*WRITTEN, "rename", "sync_directory"), in_place=False),
    "new": Case(
        (content(b"all"), content(b"new")),
        0,
        ("mkdir", "sync_directory", "mkdir", "sync_directory", *WRITTEN, "rename_exclusive", "sync_directory"),
        is_new=True,
        in_place=False,
    ),
}


def make_source(root: Path) -> Path:
    """Make a source with `d/f`, older than the clock of any file system is coarse."""
    (root / "d").mkdir(parents=True)
    (root / "d" / "f").write_bytes(OLD)
    (root / "d" / "f").chmod(0o640)
    age(root)
    return root


async def make(root: Path, disk: Syscalls, case: Case) -> Stat:
    async with LocalStore(str(root), disk).edit(case.key, mode=0o640) as edit:
        return await edit.splice(case.splice)


def content_of(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}
