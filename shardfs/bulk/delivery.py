"""Objects of a destination: stored as a whole or not at all, and not stored again if they are right already."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from shardfs.bulk.engine import Task, WorkerContext
from shardfs.dataset.hierarchy import Source
from shardfs.errors import (
    IsADirectoryHereError,
    NoSpaceError,
    NotADirectoryHereError,
    NotFoundError,
    ReadOnlyError,
    ShardfsError,
)
from shardfs.stores.base import PART_NBYTES, Buffer, Kind, NewObject, Reader, Snapshot, Stat, Store
from shardfs.stores.url import StoreOptions

_OBJECTS_AT_ONCE: Final = 64


@dataclass(frozen=True)
class Job:
    """What all tasks of a run share: where they read, and where they store.

    *options* are for the remote ones of these two. *compares*: whatever is stored already is compared byte by byte.
    """

    source: str
    destination: str
    options: StoreOptions = field(default_factory=StoreOptions)
    compares: bool = False

    def reading(self, context: WorkerContext) -> Source:
        """Return the source."""
        return context.source(self.source, self.options)

    def made(self, context: WorkerContext) -> Source:
        """Return the destination."""
        return context.source(self.destination, self.options)

    def both(self, context: WorkerContext) -> tuple[Source, Source]:
        """Return source and destination."""
        return self.reading(context), self.made(context)


@dataclass(frozen=True)
class Item:
    """An object to be stored under *key*.

    *made_of* and *state* are what the manifest says about the object that was stored there before; see `Delivered`.
    """

    key: str
    made_of: str = ""
    state: str = ""


@dataclass(frozen=True)
class Delivered:
    """The result for one object: *made_of* identifies the state of what it was made from, *state* its own.

    *made_of* is "" if it was not stored as it should be, and *state* if it was not stored; *problems* say why, a line
    each, or *lost*, which may be the same for others. It *is_stored* now, with *nbytes* bytes, or *is_unchanged*, or
    neither if it failed or there is nothing to store. *fatal* is an error that prevents storing anything else, too.
    """

    key: str
    made_of: str = ""
    state: str = ""
    is_stored: bool = False
    is_unchanged: bool = False
    nbytes: int = 0
    problems: tuple[str, ...] = ()
    lost: str = ""
    fatal: NoSpaceError | ReadOnlyError | None = None


@dataclass(frozen=True)
class StoreTask(Task[Item, Delivered]):
    """A task that stores each item."""

    job: Job

    def at_once(self, context: WorkerContext) -> int:
        """Return how many items to store at a time."""
        return _OBJECTS_AT_ONCE if any(source.store.rewrites for source in self.job.both(context)) else 1

    def failed(self, item: Item, error: ShardfsError) -> Delivered:
        """Return the error, which may prevent storing anything else."""
        if isinstance(error, NoSpaceError | ReadOnlyError):
            return Delivered(item.key, fatal=error)
        return Delivered(item.key, lost=str(error))


class MadeOf:
    """Collects the states of everything that an object is made from, to tell whether it has to be stored again.

    *form* is the part that gives stored bytes their meaning, such as the codecs of a shard; `has_form_of` compares it.
    """

    def __init__(self, *form: object) -> None:
        self._hash = blake2b(repr(form).encode(errors="surrogateescape"), digest_size=12)
        self._form = f"{self._hash.hexdigest()}:"

    def add(self, *said: object) -> None:
        """Add something that the object is made from."""
        self._hash.update(repr(said).encode(errors="surrogateescape"))

    def has_form_of(self, made_of: str) -> bool:
        """Whether *made_of*, as text, has the same form."""
        return made_of.startswith(self._form)

    def __str__(self) -> str:
        return self._form + self._hash.hexdigest()


def state_of(stat: Stat | None) -> str:
    """Return an identifier of the version of a stored object: size and time of a file, size and ETag in S3."""
    if stat is None:
        return "absent"
    return f"{stat.size}:{stat.mtime_ns}" if stat.file is not None else f"{stat.size}:{stat.version}"


async def state_in(store: Reader, key: str) -> str:
    """Return an identifier of the version that is stored under *key*, or of its absence.

    As far as the store's cache knows, which is right for what only this run changes.
    """
    with suppress(NotFoundError, NotADirectoryHereError):
        status = await store.stat(key)
        if status.kind is Kind.DIRECTORY and store.rewrites:  # there may also be an object of that name
            status = await store.fresh(key)
        return state_of(status)
    return state_of(None)


Storer = Callable[[Item], Awaitable[Delivered]]


class DifferentError(Exception):
    """What is stored is not what should be."""


class Comparison:
    """Takes what is to be stored, like a new object, but compares it with what is stored; stores nothing."""

    def __init__(self, stored: Snapshot, head_nbytes: int = 0) -> None:
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
    """There is nothing to store: no chunk of a shard exists, or can be read."""


async def deliver(
    job: Job,
    store: Store,
    item: Item,
    made_of: MadeOf,
    nbytes: int,
    produce: Callable[[NewObject], Awaitable[Stat]],
    *,
    head_nbytes: int = 0,
) -> Delivered:
    """Store what *produce* writes under the key of *item*, unless that is stored already.

    This is decided by what it is *made_of* or, if need be, by comparing bytes, of which there are about *nbytes*.
    Raises the error that prevents producing or storing it.
    """
    state = await state_in(store, item.key) if item.made_of or job.compares else state_of(None)
    unchanged = Delivered(item.key, str(made_of), state, is_unchanged=True)
    if (item.made_of, item.state) == (unchanged.made_of, unchanged.state) and not job.compares:
        return unchanged
    if job.compares and state != state_of(None):
        with suppress(DifferentError, NothingError, NotFoundError, IsADirectoryHereError):
            await produce(Comparison(await store.open(item.key), head_nbytes))
            return unchanged
    try:
        async with store.new_object(item.key, nbytes, head_nbytes=head_nbytes) as new:
            stat = await produce(new)
    except NothingError:
        with suppress(NotFoundError, NotADirectoryHereError):
            await store.discard(item.key)
        return Delivered(item.key, str(made_of), state_of(None))
    except (IsADirectoryHereError, NotADirectoryHereError) as error:
        way_out = "DEST has a file where SOURCE has a directory, or the reverse: remove that, and go on with --sync"
        raise type(error)(f"{item.key}: {way_out}") from None
    return Delivered(item.key, str(made_of), state_of(stat), is_stored=True, nbytes=stat.size)


async def copy_file(job: Job, source: Reader, store: Store, item: Item) -> Delivered:
    """Store the file of *source* with the key of *item*, byte for byte."""
    try:
        snapshot = await source.open(item.key)
    except IsADirectoryHereError:
        raise IsADirectoryHereError(f"{item.key} is a link to a directory: copy that in its place") from None
    produce = copying(snapshot.read, snapshot.size)
    return await deliver(job, store, item, MadeOf(state_of(snapshot.stat)), snapshot.size, produce)


def copying(read: Callable[[int, int], Awaitable[Buffer]], nbytes: int) -> Callable[[NewObject], Awaitable[Stat]]:
    """Return a function that writes *nbytes* bytes obtained from *read*, by offset and number of bytes."""

    async def produce(new: NewObject) -> Stat:
        for offset in range(0, nbytes, PART_NBYTES):
            await new.write([await read(offset, min(PART_NBYTES, nbytes - offset))])
        return await new.finish()

    return produce


def skipped(path: str, error: object) -> str:
    """Report that what is at *path* is skipped, and why."""
    return f"skipped: {named(path, error)}"


def named(path: str, error: object) -> str:
    """Return the text of *error*, with the *path* that it is about."""
    text = str(error)
    is_named = text.startswith((f"{path}:", f"{path}/", f"{path} is ")) or f"/{path} " in text
    return text if path and is_named else f"{path or '(root)'}: {text}"
