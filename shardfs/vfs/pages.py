"""Chunk files whose pages the kernel caches, and how writers keep out of the way of those who read them so."""

from collections import Counter
from typing import Final

from shardfs.vfs.handles import FileHandle

_MAX_WITHOUT: Final = 4096


class Pages:
    """The inode numbers of chunks that programs have open to read, with pages in the kernel's cache.

    For all who have a number open, the kernel has one size and one set of pages: if one of them truncates the file or
    writes beyond its end, the others see that, and lose their mappings. So nobody writes under a number with pages. The
    version gets another number first, under which its readers get no pages: see `Chunk`.
    """

    def __init__(self) -> None:
        self._nreaders: Counter[int] = Counter()
        self._without: dict[int, None] = {}  # numbers for writers, the latest at the end

    def __bool__(self) -> bool:
        return bool(self._nreaders)

    def __contains__(self, ino: int) -> bool:
        return ino in self._nreaders

    def allows(self, ino: int) -> bool:
        """Whether who opens *ino* to read may have pages."""
        return ino not in self._without

    def leave_to_writers(self, ino: int) -> None:
        """Give nobody pages of the number *ino*."""
        self._without[ino] = None
        if len(self._without) > _MAX_WITHOUT:
            del self._without[next(iter(self._without))]

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
