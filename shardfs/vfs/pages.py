"""Chunk files whose pages the kernel caches, and how writers keep out of the way of those who read them so."""

from collections import Counter
from typing import Final

from shardfs.vfs.handles import FileHandle

_MAX_AWAITED: Final = 4096


class CachedPages:
    """The inode numbers of chunks that programs have open to read, with pages in the kernel's cache.

    For all who have a number open, the kernel has one size and one set of pages: if one of them truncates the file or
    writes beyond its end, the others see that, and lose their mappings. So nobody writes under a number with pages. The
    version gets another number first, and the kernel looks the name up once more, and only once: see `Chunk`. Until
    the writer has come back, nobody gets pages under the name, whatever is published there meanwhile.
    """

    def __init__(self) -> None:
        self._nreaders: Counter[int] = Counter()
        self._awaited: dict[str, int] = {}  # how many writers are to come back to a name, the latest at the end

    def __bool__(self) -> bool:
        return bool(self._nreaders)

    def __contains__(self, ino: int) -> bool:
        return ino in self._nreaders

    def allows(self, path: str) -> bool:
        """Whether who opens the chunk *path* to read may have pages."""
        return path not in self._awaited

    def await_writer(self, path: str) -> None:
        """Give nobody pages of the chunk *path* until somebody has begun to write it."""
        self._awaited[path] = self._awaited.pop(path, 0) + 1
        if len(self._awaited) > _MAX_AWAITED:
            del self._awaited[next(iter(self._awaited))]

    def writer_came(self, path: str) -> None:
        """Note that somebody has begun to write the chunk *path*: its number is one for writers now."""
        if path in self._awaited:
            self._awaited[path] -= 1
            if not self._awaited[path]:
                del self._awaited[path]

    def opened(self, handle: FileHandle) -> None:
        """Note that a file was opened to be read in pages."""
        handle.get_pages()
        self._nreaders[handle.ino] += 1

    def closed(self, handle: FileHandle) -> None:
        """Note that a file was closed."""
        if handle.has_pages:
            self._nreaders[handle.ino] -= 1
            if not self._nreaders[handle.ino]:
                del self._nreaders[handle.ino]
