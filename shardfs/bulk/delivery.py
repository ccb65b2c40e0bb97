"""Objects of a destination: stored as a whole or not at all, left alone if they are what they should be."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from shardfs.bulk.engine import Context
from shardfs.dataset.source import Source
from shardfs.errors import NoSpaceError, NotADirectoryHereError, NotFoundError, ReadOnlyError, ShardfsError
from shardfs.stores.base import PART_NBYTES, Buffer, NewObject, Snapshot, Stat, Store
from shardfs.stores.url import StoreOptions, is_remote
from shardfs.vfs.parallel import for_each

_AT_ONCE: Final = 16


@dataclass(frozen=True)
class Job:
    """What all tasks of a run share: where they read, and where they store.

    *options* are for those of the two that are remote.  *compares*: what is stored already is compared byte by byte,
    whatever is known of it.
    """

    source: str
    destination: str
    options: StoreOptions = field(default_factory=StoreOptions)
    compares: bool = False

    def reading(self, context: Context) -> Source:
        """Return the source."""
        return context.source(self.source, self._options(self.source))

    def made(self, context: Context) -> Source:
        """Return the destination."""
        return context.source(self.destination, self._options(self.destination))

    def storing(self, context: Context) -> Store:
        """Return the store of the destination."""
        return self.made(context).store

    def at_once(self, context: Context) -> int:
        """Return how many small objects are to be worked on at a time."""
        return _AT_ONCE if self.reading(context).store.rewrites or self.storing(context).rewrites else 1

    def _options(self, url: str) -> StoreOptions:
        return self.options if is_remote(url) else StoreOptions()


@dataclass(frozen=True)
class Item:
    """An object to be stored under *key*; *known* is what the manifest says of the one that was stored there before."""

    key: str
    known: str = ""


@dataclass(frozen=True)
class Delivered:
    """What became of an object: *made_of* tells the state of what it was made of, *state* its own.

    Both are "" if it was not stored as it should be; *problems* say why, a line each.  *nbytes* were stored now, None
    if it stayed as it was.
    """

    key: str
    made_of: str = ""
    state: str = ""
    nbytes: int | None = None
    problems: tuple[str, ...] = ()


class Mark:
    """What tells whether an object has to be stored again: the state of all that it is made of."""

    def __init__(self, *said: object) -> None:
        self._hash = blake2b(repr(said).encode(errors="surrogateescape"), digest_size=12)

    def add(self, *said: object) -> None:
        """Take in something that the object is made of."""
        self._hash.update(repr(said).encode(errors="surrogateescape"))

    def __str__(self) -> str:
        return self._hash.hexdigest()


def state_of(stat: Stat | None) -> str:
    """Return what tells versions of a stored object apart: size and time of a file, size and ETag in S3."""
    if stat is None:
        return "absent"
    return f"{stat.size}:{stat.mtime_ns}" if stat.file is not None else f"{stat.size}:{stat.version}"


class DifferentError(Exception):
    """What is stored is not what should be there."""


class Comparison:
    """Takes what is to be stored, as a new object does, and compares it with what is there; stores nothing."""

    def __init__(self, stored: Snapshot, head_nbytes: int) -> None:
        self._stored = stored
        self._head_nbytes = head_nbytes
        self._position = head_nbytes

    async def write(self, data: Sequence[Buffer]) -> None:
        """Compare *data*; raises `DifferentError`."""
        for piece in data:
            view = memoryview(piece).cast("B")
            await self._compare(view, self._position)
            self._position += view.nbytes

    async def finish(self, head: Buffer = b"") -> Stat:
        """Compare *head*, and the sizes."""
        await self._compare(memoryview(head), 0)
        if self._position != self._stored.size:
            raise DifferentError
        return self._stored.stat

    async def _compare(self, view: memoryview, start: int) -> None:
        if start + view.nbytes > self._stored.size:
            raise DifferentError
        for offset in range(0, view.nbytes, PART_NBYTES):
            piece = view[offset : offset + PART_NBYTES]
            if await self._stored.read(start + offset, piece.nbytes) != piece:
                raise DifferentError


class NothingError(Exception):
    """There is nothing to store: no chunk of a shard is there, or can be read."""


async def deliver(
    job: Job,
    store: Store,
    item: Item,
    mark: Mark,
    nbytes: int,
    produce: Callable[[NewObject], Awaitable[Stat]],
    *,
    head_nbytes: int = 0,
) -> Delivered:
    """Store what *produce* writes under the key of *item*, unless that is there already, by its *mark* or its bytes.

    *nbytes* is about how many there are.  Raises what keeps it from being produced, or stored.
    """
    stat: Stat | None = None
    with suppress(NotFoundError, NotADirectoryHereError):
        if item.known or job.compares:
            stat = await store.stat(item.key)
    if item.known == f"{mark} {state_of(stat)}" and not job.compares:
        return Delivered(item.key, str(mark), state_of(stat))
    if stat is not None and job.compares:
        with suppress(DifferentError, NothingError, NotFoundError):
            await produce(Comparison(await store.open(item.key), head_nbytes))
            return Delivered(item.key, str(mark), state_of(stat))
    try:
        async with store.new_object(item.key, nbytes, head_nbytes=head_nbytes) as new:
            stat = await produce(new)
    except NothingError:
        if stat is not None:
            await store.discard(item.key)
        return Delivered(item.key, str(mark), state_of(None), 0)
    return Delivered(item.key, str(mark), state_of(stat), stat.size)


async def copy_file(job: Job, source: Store, store: Store, item: Item) -> Delivered:
    """Store the file of *source* that has the key of *item*, byte for byte."""
    snapshot = await source.open(item.key)

    async def produce(new: NewObject) -> Stat:
        for offset in range(0, snapshot.size, PART_NBYTES):
            await new.write([await snapshot.read(offset, min(PART_NBYTES, snapshot.size - offset))])
        return await new.finish()

    return await deliver(job, store, item, Mark(state_of(snapshot.stat)), snapshot.size, produce)


async def each_delivered(
    items: Sequence[Item], work: Callable[[Item], Awaitable[Delivered]], *, at_once: int = 1
) -> tuple[Delivered, ...]:
    """Do *work* for each item; one that fails stops no other, unless it says that nothing can be stored any more."""
    delivered: dict[Item, Delivered] = {}

    async def attempt(item: Item) -> None:
        try:
            delivered[item] = await work(item)
        except (NoSpaceError, ReadOnlyError):
            raise
        except ShardfsError as error:
            reason = str(error) if item.key in str(error) else f"{item.key}: {error}"
            delivered[item] = Delivered(item.key, problems=(f"left out: {reason}",))

    await for_each(items, attempt, at_once)
    return tuple(delivered.values())
