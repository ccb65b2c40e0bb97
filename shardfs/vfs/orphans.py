"""Orphan chunks: chunk files that arrived before the document of their array.

They are stored as ordinary files. When the document arrives and makes the array a sharded one, they are first moved
aside together, so that none is taken for a shard, and then published one by one. The directory that they are moved to
says in its name of which array they are chunks: after a kill another one may have its path.
"""

import logging
import re
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from shardfs.dataset.array import Array
from shardfs.dataset.maintenance.walk import prune, walk_files
from shardfs.dataset.node import DOCUMENT, Node
from shardfs.dataset.path_table import is_below
from shardfs.dataset.writer import ChunkWriter
from shardfs.errors import (
    AccessDeniedError,
    CorruptionError,
    CrossDeviceError,
    ExistsError,
    IsADirectoryHereError,
    NotADirectoryHereError,
    NotEmptyError,
    NotFoundError,
    OutsideSourceError,
    RefusedError,
    ShardfsError,
    StaleError,
)
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.format.lens.unsharded import describe
from shardfs.format.metadata import ArrayMetadata, fingerprint, parse_array
from shardfs.format.sharding import Coords
from shardfs.stores.base import Kind, Stat, is_same_version, join_key
from shardfs.vfs.entries.chunk import ChunkTree
from shardfs.vfs.filesystem import Filesystem

log = logging.getLogger(__name__)

_ASIDE: Final = re.compile(r"(?:(?P<path>.+?)/)?\.chunks-[0-9a-f]{32}(?:/(?P<name>.*))?", re.DOTALL)
"""A directory of orphan chunks, or a file in it: below the path of its array, with the mark of that; see `_mark`."""
_MAY_BE_CHUNK: Final = re.compile(r"(c[./])?[0-9]+([./][0-9]+)*")
"""What a chunk key looks like, whatever the array."""

_AT_ONCE: Final = 256
"""How many chunks are made durable together, before their files are removed."""
_VERDICTS: Final = (CorruptionError, OutsideSourceError, IsADirectoryHereError, AccessDeniedError, ExistsError)
"""Errors about one file, such as a dangling link: it stays where it is, and the others are published."""
_V2_ENCODINGS: Final = (ChunkKeyEncoding("v2", "."), ChunkKeyEncoding("v2", "/"))


class OrphanChunks:
    """The orphan chunks of new arrays, moved aside below *directory* of the store, under the paths of their arrays.

    A file that a program is still writing is published by `absorb_file` when it is closed.
    """

    def __init__(self, fs: Filesystem, writer: ChunkWriter, directory: str) -> None:
        self.directory = directory
        self._fs = fs
        self._store = fs.writable.store
        self._hierarchy = fs.hierarchy
        self._writer = writer
        self._later: set[str] = set()
        """The directories of orphan chunks that are not all published yet."""
        self._published: set[str] = set()
        """The files that are published, and not removed yet."""

    def has(self, key: str) -> bool:
        """Whether *key* is an orphan chunk, and nobody is writing it."""
        if not is_below(key, self.directory):
            return False
        row = self._fs.inodes.row_at(key)
        return row is None or not row.nwriters

    def array_path(self, key: str) -> str:
        """Return the path of the array of the orphan chunk *key*."""
        return self._split(key)[0]

    def _split(self, key: str) -> tuple[str, str]:
        """Return the path of the array of an orphan chunk, and its name there; "" if it is the directory of them."""
        match = _ASIDE.fullmatch(key.removeprefix(f"{self.directory}/"))
        return (match["path"] or "", match["name"] or "") if match is not None else ("", "")

    def directory_of(self, path: str, array: ArrayMetadata, drafts: tuple[str, ...] = ()) -> str:
        """Return the directory for the orphan chunks of *array*, which is at *path*, or is to be stored there."""
        return join_key(join_key(self.directory, path), f".chunks-{_mark(array, drafts)}")

    def _directory_for(self, node: Node) -> str | None:
        """Return the same for the array that *node* is; None if it is none whose chunks can be written."""
        if node.any_array is None or not isinstance(node.metadata, ArrayMetadata):
            return None
        return self.directory_of(node.path, node.metadata, node.context.drafts)

    async def _array_of(self, directory: str) -> Array | None:
        """Return the array whose orphan chunks are in *directory*; None if it is not, or not any more, at its path."""
        try:
            node = await self._hierarchy.node(self.array_path(directory))
        except (NotFoundError, NotADirectoryHereError):
            return None
        return node.any_array if self._directory_for(node) == directory else None

    async def put_aside(self, path: str, directory: str, encoding: ChunkKeyEncoding, ndim: int) -> None:
        """Move files with names of chunks in the directory *path* to *directory*, if there are any.

        The caller has the lock of documents there, and has found none: else they might be shards.
        """
        names = [entry.name for entry in await self._store.list(path) if encoding.begins(entry.name, ndim)]
        if not names:
            return
        self._later.add(directory)
        await self._store.make_directories(directory)
        for name in names:
            with suppress(NotFoundError):  # another session has moved it to its own
                await self._move(join_key(path, name), join_key(directory, name), exclusive=False)
            self._fs.inodes.moved_directory(join_key(path, name), join_key(directory, name))
        # Both directories are durable before there is a document with which the files would be taken for shards.
        await self._store.sync_directory(path)
        await self._store.sync_directory(directory)

    async def _move(self, key: str, to: str, *, exclusive: bool) -> None:
        """Move a file or a directory, file by file where the directory is there or the store cannot move directories.

        Raises `ExistsError` if a file is there and the move is *exclusive*.
        """
        try:
            await self._store.rename(key, to, exclusive=exclusive)
        except (CrossDeviceError, ExistsError, NotEmptyError):
            if (await self._store.stat(key)).kind is not Kind.DIRECTORY:
                raise
            await self._store.make_directories(to)
            for entry in await self._store.list(key):
                await self._move(join_key(key, entry.name), join_key(to, entry.name), exclusive=exclusive)
            await self._store.rmdir(key)

    async def absorb(self, path: str) -> None:
        """Publish the orphan chunks of the array at *path*, if there is one, that nobody is writing."""
        node = await self._hierarchy.node(path)
        directory = self._directory_for(node)
        if directory is not None and node.any_array is not None:
            await self._absorb(directory, node.any_array)

    async def _absorb(self, directory: str, array: Array, *, again: bool = False) -> None:
        """Publish the orphan chunks of *array* in *directory* that nobody is writing.

        *again*: an earlier mount began this and was killed. A chunk that exists was published by it.
        """
        try:
            keys = [key async for key in walk_files(self._store, directory)]
        except (NotFoundError, NotADirectoryHereError):
            self._later.discard(directory)
            return
        is_whole = True
        for start in range(0, len(keys), _AT_ONCE):
            published: list[str] = []
            try:
                for key in keys[start : start + _AT_ONCE]:
                    is_whole = await self._absorb_key(array, key, published, again=again) and is_whole
            finally:
                await self._remove(published)
        await prune(self._store, directory)
        if is_whole:
            self._later.discard(directory)

    async def _absorb_key(self, array: Array, key: str, published: list[str], *, again: bool) -> bool:
        """Publish one file, if it is a chunk, and add it to *published*; return False if it is to be tried later."""
        path, name = self._split(key)
        try:
            if _coords_of(array, name) is None:
                await self._keep_beside(path, key, name)
            elif await self._store.is_being_written(key):
                self._later.add(key.removesuffix(f"/{name}"))
                return False
            elif self.has(key) and await self._publish(array, key, again=again):
                published.append(key)
        except _VERDICTS as error:
            log.error("%s stays in %s: %s", join_key(path, name), key, error)  # noqa: TRY400
        return True

    @property
    def later(self) -> Mapping[str, str]:
        """The directories of orphan chunks that are not all published, and the paths of their arrays.

        Other sessions were writing some, or an error came between.
        """
        return {directory: self.array_path(directory) for directory in self._later}

    async def absorb_late(self, directory: str) -> None:
        """Publish the orphan chunks in a *directory* of `later`; raises the error that prevents it."""
        array = await self._array_of(directory)
        if array is None:
            path = self.array_path(directory)
            if await self._fs.is_stored(join_key(path, DOCUMENT)):
                why = f"describes other chunks: they stay in {directory}"
            else:
                why = f"is not stored: they are in {directory}; store it, or the next mount moves them back"
            raise RefusedError(
                f"chunks of {path or 'the array'} that came before its {DOCUMENT} are not in it, as that {why}"
            )
        await self._absorb(directory, array)

    async def adopt(self, key: str, status: Stat) -> str | None:
        """Move a file to the orphan chunks of its array, of which there was no document when it was opened.

        Another session has stored that meanwhile. *key* has the *status* of the file unless it stands for another one
        by now. Returns the path of the array; None if there is none, or the file is no chunk of it.
        """
        path = await self.new_array(key)
        directory = self._directory_for(await self._hierarchy.node(path)) if path is not None else None
        if path is None or directory is None:
            return None
        if (await self._store.fresh(key)).identity == status.identity:
            new = join_key(directory, key.removeprefix(f"{path}/") if path else key)
            await self._store.make_directories(new.rpartition("/")[0])
            await self._store.rename(key, new, exclusive=True)
            self._fs.inodes.moved(key, new)
            return path
        return None

    async def new_array(self, key: str, *, is_directory: bool = False) -> str | None:
        """Return the path of the array that has *key* as a chunk by now, or as a directory of shards; None if none."""
        names = key.split("/")
        for depth in range(len(names) - 1, -1, -1):
            path, rest = "/".join(names[:depth]), "/".join(names[depth:])
            if is_directory or _MAY_BE_CHUNK.fullmatch(rest) is not None:
                with suppress(NotFoundError, NotADirectoryHereError):
                    node = await self._present_node(path)
                    if node.array is None:
                        continue
                    if node.has_shards_at(names[depth]) if is_directory else _coords_of(node.array, rest) is not None:
                        return path
        return None

    async def _present_node(self, path: str) -> Node:
        """Return the node at *path* as it is now; raises `NotFoundError` if it has no document, as no new array has.

        Most often nothing has changed, which one status of the document tells.
        """
        node = self._hierarchy.last_seen(path)
        try:
            stat = await self._store.fresh(join_key(path, DOCUMENT))
        except (NotFoundError, NotADirectoryHereError):
            raise
        except ShardfsError:  # the node says what is wrong with it
            return await self._hierarchy.look_again(path)
        is_same = node is not None and node.document_stat is not None and is_same_version(node.document_stat, stat)
        return node if node is not None and is_same else await self._hierarchy.look_again(path)

    async def _keep_beside(self, path: str, key: str, name: str) -> None:
        """Keep a file that is no chunk, such as a temporary file, among the scratch files beside chunks."""
        beside = join_key(self._fs.scratch or "", join_key(path, name))
        await self._store.make_directories(beside.rpartition("/")[0])
        await self._store.rename(key, beside, exclusive=True)
        self._fs.inodes.moved(key, beside)

    async def make_directories(self, chunks: ChunkTree, orphans: str) -> None:
        """Let *chunks* have the directories that are below *orphans*, also the empty ones."""
        pending = [""]
        while pending:
            above = pending.pop()
            try:
                entries = await self._store.list(join_key(orphans, above))
            except NotFoundError:
                continue
            for entry in entries:
                path = join_key(above, entry.name)
                directory = chunks.directory_at(path) if entry.kind is Kind.DIRECTORY else None
                if directory is not None:
                    pending.append(path)
                    chunks.make_directory(directory.coords)
                    self._fs.became_chunks(directory, join_key(orphans, path))

    async def absorb_file(self, key: str) -> None:
        """Publish one orphan chunk."""
        path, name = self._split(key)
        array = await self._array_of(key.removesuffix(f"/{name}"))
        if array is None:
            log.error("%s is no chunk of the array that is there now, and stays in %s", join_key(path, name), key)
            return
        if await self._publish(array, key):
            await self._remove([key])

    async def _remove(self, published: Sequence[str]) -> None:
        """Remove files that are durable as chunks, once they are."""
        if not published:
            return
        await self._writer.commits.sync_soon()
        for key in published:
            with suppress(NotFoundError, StaleError):  # somebody else has removed it
                await self._fs.passthrough(key).remove()
            self._published.discard(key)

    async def _publish(self, array: Array, key: str, *, again: bool = False) -> bool:
        """Publish an orphan chunk of *array*; return whether it is one, so that the file is not needed any more.

        Nothing is published twice: a program may have written that chunk since.
        """
        path, name = self._split(key)
        node = await self._hierarchy.node(path)
        try:
            snapshot = await self._store.open(key)
        except NotFoundError:
            return False  # the document arrived while the file was being closed, and the file was moved
        coords = _coords_of(array, name)
        is_there = node.any_array is not None and node.any_array.fingerprint == array.fingerprint
        if node.any_array is None or not is_there or coords is None or not node.any_array.grid.contains(coords):
            log.warning("%s is not a chunk of the array it was put into, and stays in %s", join_key(path, name), key)
            return False
        array, chunk_view = node.any_array, self._fs.view.chunk_view(node)
        codec = chunk_view.codec if chunk_view is not None and not again else None
        if codec is not None and snapshot.size != codec.nbytes:  # else nobody could read it
            shown = join_key(path, name)
            log.error("%s has %d bytes, not %d, and stays in %s", shown, snapshot.size, codec.nbytes, key)
            return False
        is_published = key in self._published or (again and (await array.find(coords))[1] is not None)
        if not is_published:
            if again and not self._writer.admission.has_room(snapshot.size):
                await self._writer.commits.flush()  # nothing else runs before the mount answers requests
            status = snapshot.stat
            await self._writer.put(
                array,
                coords,
                snapshot.content(0, snapshot.size),
                ino=self._fs.inodes.reserve(),
                mtime_ns=status.mtime_ns,
                mode=stat.S_IMODE(status.mode),
                uid=status.uid,
                gid=status.gid,
            )
        self._published.add(key)
        return True

    async def resume(self, path: str = "") -> None:
        """Publish the orphan chunks that a killed mount left, for the arrays at *path* and below."""
        above = join_key(self.directory, path) if path else self.directory
        try:
            entries = await self._store.list(above)
        except (NotFoundError, NotADirectoryHereError):
            return
        for entry in entries:
            directory = join_key(above, entry.name)
            if _ASIDE.fullmatch(entry.name) is not None:
                try:
                    await self._resume_array(path, directory)
                except ShardfsError as error:
                    log.error("chunks of %s stay in %s: %s", path or "the array", directory, error)  # noqa: TRY400
            elif entry.kind is Kind.DIRECTORY:
                await self.resume(join_key(path, entry.name))

    async def _resume_array(self, path: str, directory: str) -> None:
        array = await self._array_of(directory)
        if array is not None:
            await self._absorb(directory, array, again=True)
        elif await self._fs.is_stored(join_key(path, DOCUMENT)):
            raise RefusedError("what is stored there is no array that is shown, or one with other chunks")
        else:
            await self.put_back(path, directory)

    async def put_back(self, path: str, directory: str) -> None:
        """Move what was put aside to *directory* back to *path*: the document of its array was not stored."""
        await self._store.make_directories(path)
        for entry in await self._store.list(directory):
            key, to = join_key(directory, entry.name), join_key(path, entry.name)
            try:
                await self._move(key, to, exclusive=True)
                self._fs.inodes.moved_directory(key, to)
            except ExistsError as error:  # somebody has stored something there since
                log.error("%s stays in %s: %s", to, key, error)  # noqa: TRY400
        await prune(self._store, directory)
        self._later.discard(directory)


def _mark(array: ArrayMetadata, drafts: tuple[str, ...]) -> str:
    """Return what differs for arrays of which the chunk files mean something else, however they are sharded.

    *drafts* of the specification are those that the array needs.
    """
    return fingerprint(parse_array(describe(array, drafts).document)).hex()


def _coords_of(array: Array, name: str) -> Coords | None:
    """Return the coordinates in *name*, a chunk file of a new array, written in any view."""
    encodings = (array.layout.key_encoding, *_V2_ENCODINGS)
    candidates = (encoding.decode(name, array.grid.ndim) for encoding in encodings)
    return next((coords for coords in candidates if coords is not None), None)
