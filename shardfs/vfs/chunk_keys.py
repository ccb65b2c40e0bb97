"""Which names in the directory of an array, and below it, are those of chunks."""

import re
from operator import lt
from typing import Final

from shardfs.dataset.array import Array
from shardfs.format.grid import ChunkKeyEncoding, parse_coordinate
from shardfs.format.sharding import Coords
from shardfs.stores.local.file_lock import LOCK_SUFFIX, is_lock

_TEMPORARY: Final = re.compile(r"(.+)\.[0-9a-f]{8,32}\.partial|\.(.+)\.[A-Za-z0-9]{6}")
"""The names that zarr-python, which replaces what follows the last dot, rclone and rsync give a file they write."""


class ChunkKeys:
    """The names of the chunks of an *array*, and of the directories above them, in the *encoding* of a view.

    Those directories are below *root* (`c`); where keys have no such directory, *root* is "". *is_remote*: the array is
    in a bucket.
    """

    def __init__(self, array: Array, encoding: ChunkKeyEncoding, *, is_remote: bool) -> None:
        self.array = array
        self.encoding = encoding
        self._ndim = array.grid.ndim
        self.root = encoding.root(self._ndim)
        self.is_nested = encoding.is_nested(self._ndim)
        self._is_remote = is_remote

    def owns(self, name: str) -> bool:
        """Whether *name*, in a directory of chunks, has the form of a chunk or a directory of chunks.

        It may be outside the grid.
        """
        return (parse_coordinate(name) if self.is_nested else self.encoding.decode(name, self._ndim)) is not None

    def owns_in_array(self, name: str) -> bool:
        """Whether *name*, in the directory of the array, has the form of a chunk or a directory of chunks."""
        return self.encoding.begins(name, self._ndim)

    def takes(self, name: str) -> bool:
        """Whether *name*, in the directory of the array, has the form of a chunk or of a stored shard."""
        return self.owns_in_array(name) or self.array.layout.key_encoding.begins(name, self._ndim)

    def is_scratch(self, name: str) -> bool:
        """Whether the file *name*, in the directory of the array, is a scratch file.

        Scratch files are locks of chunks and shards in that directory. In a bucket, they are also the temporary names
        that writers are known to give chunks: to store and rename those would take three or four requests. Any other
        name may be a user's file.
        """
        if is_lock(name):
            return self.takes(name.removesuffix(LOCK_SUFFIX))
        match = _TEMPORARY.fullmatch(name) if self._is_remote else None
        return match is not None and any(map(self.takes, (key := match[1] or match[2], f"{key}.0")))

    def contains(self, coords: Coords) -> bool:
        """Whether a chunk, or a directory of chunks, is within the grid."""
        return all(map(lt, coords, self.array.grid.grid_shape))

    def directory_coords(self, path: str) -> Coords | None:
        """Return the coordinates of the directory of chunks at *path*, relative to the array; None if it is none."""
        names = path.split("/")
        if self.root and names.pop(0) != self.root:
            return None
        coords = tuple(index for name in names if (index := parse_coordinate(name)) is not None)
        if not self.is_nested or len(coords) != len(names) or len(coords) >= self._ndim or not self.contains(coords):
            return None
        return coords
