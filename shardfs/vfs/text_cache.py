"""Generated documents in the very text in which a program wrote them.

A document is stored in another form, and what is shown is generated from that: the same to who reads JSON, and not to
who compares sizes and checksums with what he has just copied.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from shardfs.dataset.hierarchy import DOCUMENT, is_below
from shardfs.dataset.worker import LARGE_NBYTES, Worker
from shardfs.errors import MetadataError
from shardfs.format.document import parse_json
from shardfs.format.lens import consolidated
from shardfs.format.lens import v2 as v2_documents
from shardfs.format.lens.v2 import ZATTRS

_MAX_NBYTES: Final = 16 * 2**20
_NO_ATTRIBUTES: Final = b"{}"
_OVERHEAD_NBYTES: Final = 512
"""About what a text takes beside itself: its path, its place here, and what is generated."""


class DocumentText(NamedTuple):
    """The text of a document, and its own modification time, if that is not the stored document's."""

    text: bytes
    mtime_ns: int | None = None


@dataclass(slots=True, eq=False)
class _Written:
    text: bytes
    mtime_ns: int | None = None
    shown: bytes | None = None
    """The generated text that was compared last, which is shown again and again."""
    is_same: bool = False

    @property
    def nbytes(self) -> int:
        return len(self.text) + _OVERHEAD_NBYTES


class TextCache:
    """The texts of documents that were written through a mount, by path; those written last stay, up to some MiB."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, _Written] = OrderedDict()
        self._nbytes = 0

    def text(self, path: str, shown: bytes) -> DocumentText:
        """Return *shown*, as the document at *path* is generated, or what was written if it says the same."""
        return self._same(path, shown) or DocumentText(shown)

    def silent(self, path: str) -> DocumentText | None:
        """Return what was written for the document at *path*, where none is generated, if it says nothing either."""
        return self._same(path, _NO_ATTRIBUTES) if path.rpartition("/")[2] == ZATTRS else None

    async def compare(self, path: str, shown: bytes, worker: Worker) -> None:
        """Find out whether *shown*, a large document, says what was written at *path*, so that `text` knows it."""
        written = self._texts.get(path)
        if written is not None and len(shown) > LARGE_NBYTES and written.shown != shown:
            written.is_same = await worker.call(_says_the_same, path.rpartition("/")[2], shown, written.text)
            written.shown = shown

    def set_time(self, path: str, mtime_ns: int) -> None:
        """Let *mtime_ns* be the modification time of the document at *path*, if its text is known."""
        if path in self._texts:
            self._texts[path].mtime_ns = mtime_ns

    @contextmanager
    def storing(self, texts: Mapping[str, bytes]) -> Iterator[None]:
        """Know *texts* as those of the documents at these paths from the beginning of a block on, unless that fails."""
        before = {path: self._take(path) for path in texts}
        for path, text in texts.items():
            self._keep(path, _Written(text))
        try:
            yield
        except BaseException:
            for path, written in before.items():
                self._take(path)
                if written is not None:
                    self._keep(path, written)
            raise

    def forget(self, path: str) -> None:
        """Forget the text of a document that was removed."""
        self._take(path)

    def move(self, old: str, new: str) -> None:
        """Follow a directory that was moved from *old* to *new*, with all documents below it."""
        for path in [path for path in self._texts if is_below(path, old) or is_below(path, new)]:
            written = self._take(path)
            if written is not None and is_below(path, old):
                self._keep(new + path[len(old) :], written)

    def _same(self, path: str, shown: bytes) -> DocumentText | None:
        written = self._texts.get(path)
        if written is None:
            return None
        if written.shown != shown:
            if len(shown) > LARGE_NBYTES:
                return None  # see `compare`
            written.shown, written.is_same = shown, _says_the_same(path.rpartition("/")[2], shown, written.text)
        return DocumentText(written.text, written.mtime_ns) if written.is_same else None

    def _take(self, path: str) -> _Written | None:
        written = self._texts.pop(path, None)
        self._nbytes -= written.nbytes if written is not None else 0
        return written

    def _keep(self, path: str, written: _Written) -> None:
        if written.nbytes > _MAX_NBYTES:
            return
        self._texts[path] = written
        self._nbytes += written.nbytes
        while self._nbytes > _MAX_NBYTES:
            self._take(next(iter(self._texts)))


def _says_the_same(name: str, one: bytes, other: bytes) -> bool:
    if name != DOCUMENT:
        return v2_documents.says_the_same(name, one, other)
    try:
        return consolidated.says_the_same(parse_json(one), parse_json(other))
    except MetadataError:
        return False
