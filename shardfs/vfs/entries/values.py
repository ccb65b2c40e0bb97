"""Files of values by id: meshes, skeletons and annotations, which are stored in shards and only read.

There are too many ids to compute inode numbers from them, so each file that is known has a row in the table.
"""

from collections.abc import AsyncGenerator, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter

import numpy as np

from shardfs.dataset.array import Array, ScatteredRun
from shardfs.dataset.shard_cache import ShardState
from shardfs.errors import NotFoundError, ReadOnlyError, StaleError
from shardfs.format.foreign import ValueNames, ValuePart
from shardfs.stores.base import join_key
from shardfs.vfs.entries.base import Entry, Tree
from shardfs.vfs.entries.fixed import ReadOnlyFile
from shardfs.vfs.handles import OTHERS, Attributes, Batch, ChunkHandle, ListingRow, absent, unreadable


class ValueFiles:
    """The files of the values that are stored in *shards*, named by *names*, in the directory of both."""

    def __init__(self, fs: Tree, shards: Array, names: ValueNames) -> None:
        self.fs = fs
        self.shards = shards
        self.names = names
        self.path = shards.layout.path

    def owns_in_array(self, name: str) -> bool:
        """Whether *name* has the form of a file of a value."""
        return self.names.decode(name) is not None

    def takes(self, name: str) -> bool:
        """Whether *name* has the form of a file of a value, or of a stored shard."""
        return self.owns_in_array(name) or self.shards.layout.key_encoding.begins(name, 1)

    def is_scratch(self, name: str) -> bool:
        """Whether the file *name* is a scratch file: none is, as nothing is written here."""
        return False

    async def lookup(self, position: int | None, name: str) -> Attributes:
        """Return the attributes of *name*; nothing if there is no such value."""
        handle = await self.find(name, fresh=False)
        return handle.attributes if handle is not None else absent(0.0 if self.fs.is_writable else self.fs.ttl)

    async def open(self, position: int | None, name: str) -> None:
        """Return None: a file is looked up before it is opened."""
        return

    async def entry(self, position: int | None, name: str) -> Entry:
        """Refuse every change."""
        raise ReadOnlyError(f"{join_key(self.path, name)} is of a format that is only read")

    async def find(self, name: str, *, fresh: bool = True) -> ChunkHandle | None:
        """Open the current version of the file *name*; None if there is no such value."""
        decoded = self.names.decode(name)
        if decoded is None:
            return None
        value_id, part = decoded
        look = self.shards.find_before if part is ValuePart.BEFORE else self.shards.find_stored
        state, extent = await look((value_id,), fresh=fresh)
        if extent is None:
            return None
        assert state.stat is not None
        attributes = Attributes(self._ino(name, state), extent.nbytes, self._ttl(state), state.stat)
        return ChunkHandle(attributes, extent, partial(self.find, name) if self.fs.store.rewrites else None)

    async def list_in_array(self, cookie: int) -> AsyncGenerator[Batch, None]:
        """Yield the files after *cookie*, which counts them in the order of shards, minishards and ids."""
        behind = 0
        start = 0 if cookie >= OTHERS else cookie
        async for run in self.shards.list_scattered(None):
            for suffix, part in self.names.suffixes:
                first, behind = behind, behind + len(run.entries)
                if behind > start:
                    for batch in self._batches(run, suffix, part, first, max(0, start - first)):
                        yield batch

    def _batches(self, run: ScatteredRun, suffix: str, part: ValuePart, first: int, start: int) -> Iterator[Batch]:
        """Yield the files of one *suffix* of the values in *run*, from the one numbered *start* on.

        Attributes are not cached of those that are damaged, or whose size is unknown.
        """
        sizes = self.shards.grid.sizes(run.coords, run.entries) if part is ValuePart.VALUE else None
        are_unknown = run.damaged[start:]
        if sizes is None:
            sizes, are_unknown = np.zeros(len(run.entries), np.uint64), np.ones(len(are_unknown), np.bool_)
        names = [stem + suffix for stem in self.names.stems(run.coords[start:, 0])]
        inos = [self._ino(name, run.state) for name in names]
        shown = np.where(are_unknown, 0, sizes[start:]).tolist()
        cookies = range(first + start + 1, first + start + 1 + len(names))
        rows: list[ListingRow] = list(zip([name.encode() for name in names], inos, shown, cookies, strict=True))
        broken = unreadable(run.state.stat)
        sound = broken._replace(ttl=self._ttl(run.state))
        for is_unknown, group in groupby(zip(are_unknown.tolist(), rows, strict=True), key=itemgetter(0)):
            part_rows = [row for _, row in group]
            yield Batch(broken if is_unknown else sound, part_rows, is_counted=True, has_sizes=not is_unknown)

    def _ino(self, name: str, state: ShardState) -> int:
        """Return the inode number of the file *name* in the present *state* of its shard."""
        version = state.snapshot.stat.version if state.snapshot is not None else None
        return self.fs.inodes.number(ValueFile, join_key(self.path, name), version)

    def _ttl(self, state: ShardState) -> float:
        """Return how many seconds the kernel may cache attributes of the values in a shard: 0 on a writing mount."""
        return 0.0 if self.fs.is_writable else self.shards.remaining(state)


class ValueFile(ReadOnlyFile):
    """A file that shows a value, or what belongs to it; *identity* is the version of its shard."""

    __slots__ = ()

    async def attributes(self) -> Attributes:
        """Return the attributes of this version."""
        return (await self._version(fresh=False)).attributes

    async def open(self) -> ChunkHandle:
        """Open this version."""
        return await self._version(fresh=True)

    async def _version(self, *, fresh: bool) -> ChunkHandle:
        try:
            files = self.fs.sharded_files(await self.fs.hierarchy.node(self.node_path))
        except NotFoundError:
            raise StaleError(f"{self.path} is gone") from None
        handle = await files.find(self.name, fresh=fresh) if isinstance(files, ValueFiles) else None
        if handle is None or handle.attributes.ino != self.ino:
            raise StaleError(f"{self.path} was {'removed' if handle is None else 'replaced'}")
        return handle
