"""The words in which documents were written, which the mount shows while they say the same."""

from typing import Final, NamedTuple

from shardfs.dataset.path_table import is_below
from shardfs.stores.cache import Cache

_MAX_TEXTS_NBYTES: Final = 16 * 2**20
_OVERHEAD_NBYTES: Final = 512
"""What a text takes in memory beside its own bytes, roughly: its path, its place in the cache, the generated text."""


class DocumentText(NamedTuple):
    """The text of a document, and its modification time if that differs from the stored document's."""

    text: bytes
    mtime_ns: int | None = None


class _Written(NamedTuple):
    text: DocumentText
    shown: bytes | None
    is_same: bool


class TextCache:
    """The texts of documents that were written through the mount, by path; the latest ones, up to some MiB.

    A document is stored in another form than it was written in, and the generated text may be spelled differently:
    equal as JSON, but not in size and checksum, which copying programs compare.
    """

    def __init__(self) -> None:
        self._texts: Cache[str, _Written] = Cache(
            lambda written: len(written.text.text) + _OVERHEAD_NBYTES, _MAX_TEXTS_NBYTES
        )

    def text(self, path: str, shown: bytes | None) -> DocumentText | None:
        """Return the text to show for the document at *path*, for which *shown* was generated; None if there is none.

        It is the text that was written, as long as *shown*, which may be None, is what it was then.
        """
        written = self._texts.peek(path)
        if written is not None and written.is_same and written.shown == shown:
            return written.text
        return DocumentText(shown) if shown is not None else None

    def known(self, path: str) -> DocumentText | None:
        """Return the text that was written at *path*, whether it is still shown or not."""
        written = self._texts.peek(path)
        return written.text if written is not None else None

    def is_compared(self, path: str, shown: bytes) -> bool:
        """Whether the text that was written at *path* was compared with *shown*."""
        written = self._texts.peek(path)
        return written is not None and written.shown == shown

    def keep(self, path: str, text: DocumentText, shown: bytes | None, *, is_same: bool) -> None:
        """Remember what was written at *path*, what is generated for it now (*shown*), and whether both agree."""
        self._texts.put(path, _Written(text, shown, is_same))

    def set_time(self, path: str, mtime_ns: int) -> None:
        """Let *mtime_ns* be the modification time of the document at *path*, if its text is known."""
        written = self._texts.peek(path)
        if written is not None:
            self._texts.put(path, written._replace(text=DocumentText(written.text.text, mtime_ns)))

    def forget(self, path: str) -> None:
        """Forget the text of a document."""
        self._texts.forget(path)

    def move(self, old: str, new: str) -> None:
        """Follow a directory that was moved from *old* to *new*, with all documents below it."""
        known = self._texts.known()
        moved = [(path, self._texts.peek(path)) for path in known if is_below(path, old)]
        for path in known:
            if is_below(path, old) or is_below(path, new):
                self.forget(path)
        for path, written in moved:
            if written is not None:
                self._texts.put(new + path[len(old) :], written)
