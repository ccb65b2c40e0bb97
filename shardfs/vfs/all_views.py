"""All views of one source at once, which no mount has: what a door shows that has a name for each of them."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import trio

from shardfs.dataset.hierarchy import Source
from shardfs.errors import NotADirectoryHereError, NotFoundError, ShardfsError, SourceError
from shardfs.stores.base import Content
from shardfs.vfs.chunk_cache import ChunkCache
from shardfs.vfs.options import TreeOptions
from shardfs.vfs.paths import Paths, open_paths


class Form(NamedTuple):
    """How a view shows chunks: the *view* of `TreeOptions`, and whether it decodes."""

    view: str
    decode: bool


FORMS: Final = {
    "v3": Form("v3", decode=False),
    "v2": Form("v2", decode=False),
    "decoded/v3": Form("v3", decode=True),
    "npy": Form("npy", decode=False),
}
"""The views that are shown beside each other, by name."""

Check = Callable[[str | None, bool], object]
"""Raises an error if what is there may not be changed: its version, None if nothing tells, and whether it exists."""


class Views:
    """One source in all its views: *main* is that of the options, which alone may be changed.

    *others* are the views of `FORMS` by name, *main* possibly among them, or the reason why there is nothing to show.
    """

    def __init__(self, main: Paths, others: Mapping[str, Paths | SourceError]) -> None:
        self.main = main
        self.others = others
        self._turns: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()

    @property
    def all(self) -> Collection[Paths]:
        """All views that are shown."""
        return {self.main, *(paths for paths in self.others.values() if isinstance(paths, Paths))}

    async def publish(self, path: str, content: Content, check: Check | None, *, exclusive: bool = False) -> bool:
        """Do what `Paths.publish` does, in all views, if *check* agrees; return whether the file is new.

        Nobody else who changes the file in this way does so between the check and the change.
        """
        async with self._turn(path):
            exists = await self._require(path, check)
            try:
                await self.main.publish(path, content, exclusive=exclusive)
            finally:
                self._changed(path)
        return not exists

    async def remove(self, path: str, check: Check | None) -> None:
        """Do what `Paths.remove` does, in all views, if *check* agrees."""
        async with self._turn(path):
            await self._require(path, check)
            try:
                await self.main.remove(path)
            finally:
                self._changed(path)

    def _turn(self, path: str) -> trio.Lock:
        return self._turns.setdefault(path, trio.Lock())

    async def _require(self, path: str, check: Check | None) -> bool:
        """Return whether the file exists, as *check* agrees to."""
        try:
            if check is None:
                await self.main.attributes(path)
            else:
                async with self.main.open_version(path) as version:
                    check(version.text, True)
        except (NotFoundError, NotADirectoryHereError):
            if check is not None:
                check(None, False)
            return False
        except ShardfsError:
            if check is not None:
                raise
        return True  # if it cannot be read, it is replaced

    def _changed(self, path: str) -> None:
        """Let other views look again at what a file at *path* may say of its node, and of those around it."""
        if self.main.fs.is_document(path):
            for paths in self.all:
                if paths is not self.main:
                    paths.forget()


@asynccontextmanager
async def open_views(source: Source, options: TreeOptions) -> AsyncIterator[Views]:
    """Open all views of *source* as `open_paths` opens one; they share one cache of decoded chunks.

    What is published in the one of *options* is pending in all of them.
    """
    cache = ChunkCache(options.decode_cache, source.statistics)
    async with AsyncExitStack() as stack:
        main = await stack.enter_async_context(open_paths(source, options, cache, door="serve"))
        others: dict[str, Paths | SourceError] = {}
        for name, form in FORMS.items():
            if form == (options.view, options.decode):
                others[name] = main
                continue
            shown = TreeOptions(
                view=form.view,
                decode=form.decode,
                dimension_separator=options.dimension_separator if form.view == "v2" else None,
                fill_missing=options.fill_missing or form.view != "v2",
                draft=options.draft if form.view == "v3" else None,
            )
            try:
                others[name] = await stack.enter_async_context(open_paths(source.beside(), shown, cache))
            except SourceError as reason:
                others[name] = reason
        yield Views(main, others)
