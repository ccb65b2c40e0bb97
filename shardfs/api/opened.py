"""A source that is open in this process: its event loop in a thread, and how another process opens the same."""

import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from typing import Final, Self, TypedDict, TypeVar, Unpack
from weakref import WeakValueDictionary

from shardfs.dataset.ahead import reading_ahead
from shardfs.dataset.hierarchy import open_source
from shardfs.dataset.source import is_remote, resolve
from shardfs.stores.base import Buffer
from shardfs.stores.direct import WouldWaitError
from shardfs.stores.loop import LoopThread
from shardfs.stores.url import StoreOptions
from shardfs.vfs.options import TreeOptions
from shardfs.vfs.paths import Paths, open_paths
from shardfs.vfs.session import note_unstored


class TreeWords(TypedDict, total=False):
    """The options of `TreeOptions`, as keywords."""

    metadata_ttl: float | None
    write: bool
    shards: tuple[int, ...] | None
    auto_compact: float | None
    single_writer: bool
    view: str
    decode: bool
    dimension_separator: str | None
    fill_missing: bool
    draft: str | None
    decode_cache: int


@dataclass(frozen=True)
class Recipe:
    """How a dataset was opened, to open the same in another process; it holds no credentials."""

    source: str
    options: TreeOptions
    store_options: StoreOptions

    @property
    def shown(self) -> "Recipe":
        """What shows the same files to somebody who only reads them."""
        only_read = replace(self.options, write=False, shards=None, auto_compact=None, single_writer=False)
        return replace(self, options=only_read)

    @property
    def text(self) -> str:
        """The options that are not those of everybody, for people."""
        chosen = [
            (name, getattr(part, name), getattr(type(part)(), name))
            for part in (self.options, self.store_options)
            for name in asdict(part)
        ]
        return "".join(f" {name}={value!r}" for name, value, usual in chosen if value != usual)


class OpenDataset:
    """A source that is open in an event loop in a thread of its own; a context manager, which closes it.

    Any number of threads may use it at the same time. One that is sent to another process, by pickling or because that
    was forked, is opened there when it is first used, with the same options. After `close` everything raises
    `ClosedError`.
    """

    _loop: LoopThread[Paths] | None

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        store_options: StoreOptions | None = None,
        **options: Unpack[TreeWords],
    ) -> None:
        """Open *source*; *options* are those of `shardfs mount` with the same names.

        Raises `SourceError` if it cannot be read, or is to be written and cannot be; `UsageError` for options that
        contradict each other.
        """
        url, _ = resolve(os.fspath(source))
        self._prepare(Recipe(url, TreeOptions(**options), store_options or StoreOptions()))
        self._loop = LoopThread(_opened(self._recipe), self.url)

    def _prepare(self, recipe: Recipe) -> None:
        self.url, self._recipe = recipe.source, recipe
        self._loop = None
        self._is_sent = False
        self._opening = threading.Lock()
        _OPEN[type(self), recipe] = _EVERY[id(self)] = self

    def __repr__(self) -> str:
        return f"<shardfs dataset {self.url}{self._recipe.text}>"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._recipe == other._recipe

    def __hash__(self) -> int:
        return hash(self._recipe)

    def __reduce__(self) -> tuple[Callable[[type[Self], Recipe], Self], tuple[type[Self], Recipe]]:
        return _reopen, (type(self), self._recipe)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def loop(self) -> LoopThread[Paths]:
        """Where the tree is, for doors to it; a dataset that was sent to this process is opened when it is first used.

        So it is whoever uses it that gets the error if it cannot be opened.
        """
        with self._opening:
            if self._loop is not None and self._loop.was_forked:
                _BEFORE_FORK.append(self._loop)
                self._loop, self._is_sent = None, True
                _REOPENED[type(self), self._recipe] = self
            if self._loop is None:
                self._loop = LoopThread(_opened(self._recipe), self.url)
            return self._loop

    async def read_known(self, path: str, start: int, stop: int | None) -> Buffer | None:
        """Return what `Paths.read_known` does, for a task of asyncio: what takes long is done in a thread of its loop.

        That is half the way of asking the event loop of the dataset, which would hand it to another thread.
        """
        try:
            return self.loop.at_once(Paths.read_known, path, start, stop, waits=False)
        except WouldWaitError:
            import asyncio  # imported only here: other callers have no use for it, and it takes long

            return await asyncio.to_thread(self.loop.at_once, Paths.read_known, path, start, stop, waits=True)

    @property
    def commits_at_once(self) -> bool:
        """Whether what is written is to be committed before the call returns.

        So it is if the dataset was sent to this process, and is in a bucket: whoever sent it may be on another host,
        and cannot let this process commit when all is done.
        """
        return self._is_sent and is_remote(self.url)

    @property
    def is_closed(self) -> bool:
        """Whether it cannot be used any more."""
        return self._loop is not None and self._loop.is_closed and not self._loop.was_forked

    @property
    def shown(self) -> Recipe:
        """What is equal for all datasets that show the same files, whether these can be written or not."""
        return self._recipe.shown

    @property
    def view(self) -> str:
        """The view in which its files are shown."""
        return self._recipe.options.view

    @property
    def is_writable(self) -> bool:
        """Whether it was opened to be written."""
        return self._recipe.options.write

    def flush(self) -> None:
        """Commit everything that was written; raises `StoreError` if that is not possible, and it stays pending."""
        if self.is_writable:
            self.loop.call(Paths.flush)

    def close(self) -> None:
        """Commit everything, and release the source; may be called again.

        Raises `StoreError` if something could not be committed, and stays in the journal.
        """
        key = type(self), self._recipe
        if _OPEN.get(key) is self:
            del _OPEN[key]
        _REOPENED.pop(key, None)
        if self._loop is not None and not self._loop.was_forked:
            self._loop.close()


_Key = tuple[type["OpenDataset"], Recipe]
_OPEN: "WeakValueDictionary[_Key, OpenDataset]" = WeakValueDictionary()
"""The datasets that are open in this process, of several of a class with the same recipe the one opened last."""
_EVERY: "WeakValueDictionary[int, OpenDataset]" = WeakValueDictionary()
"""All datasets of this process, by their identity: those with the same recipe are equal."""
_REOPENED: "dict[_Key, OpenDataset]" = {}
"""Those that were sent to this process: they stay open until it ends, or somebody closes them."""
_BEFORE_FORK: "Final[list[LoopThread[Paths]]]" = []
"""What was open in the process from which this one was forked: to end it is not up to this one."""
_REOPENING = threading.Lock()


def _unlock_in_child() -> None:
    """Release in a forked process what a thread of the other one had locked."""
    global _REOPENING
    _REOPENING = threading.Lock()
    for dataset in _EVERY.values():
        dataset._opening = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_in_child)


D = TypeVar("D", bound="OpenDataset")


def _reopen(kind: type[D], recipe: Recipe) -> D:
    with _REOPENING:
        known = _OPEN.get((kind, recipe))
        if isinstance(known, kind) and not known.is_closed:
            return known
        dataset = kind.__new__(kind)
        dataset._prepare(recipe)
        dataset._is_sent = True
        _REOPENED[kind, recipe] = dataset
        return dataset


@asynccontextmanager
async def _opened(recipe: Recipe) -> AsyncIterator[Paths]:
    options = recipe.options
    async with (
        open_source(recipe.source, recipe.store_options, ttl=options.metadata_ttl) as source,
        reading_ahead() as ahead,
    ):
        source.shards.read_ahead(ahead)
        if not options.write:
            note_unstored(source.store)
        async with open_paths(source, options, door="open") as paths:
            yield paths
