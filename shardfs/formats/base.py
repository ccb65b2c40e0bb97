"""What a format is: what it says of itself, and what is asked of it."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from shardfs.errors import MetadataError, SourceError
from shardfs.format.foreign import Foreign
from shardfs.format.outline import Outline
from shardfs.stores.base import Reader, Stat, join_key
from shardfs.stores.files import AnyLocation, TargetFiles
from shardfs.stores.url import StoreOptions

_USUAL_NBYTES: Final = 256 * 2**10  # most documents are shorter, and so take one request

FIRST_NBYTES: Final = 4096
"""How much is read of the beginning of a file to see what it is."""

Row = tuple[str, ...]
"""Documents of a node that are asked for together."""


class SourceDirectory(NamedTuple):
    """The directory at *path* of a *store*, with the status *stat*, of which somebody asks what it is."""

    store: Reader
    path: str
    stat: Stat

    def key(self, name: str) -> str:
        """Return the key of *name* in it."""
        return join_key(self.path, name)

    async def version(self, name: str) -> Hashable:
        """Return the version of the file *name*; raises `NotFoundError`. It costs no request that `read` does not."""
        return (await self.store.stat(self.key(name))).version

    async def read(self, name: str, most: int, first: int = _USUAL_NBYTES) -> tuple[bytes, Stat]:
        """Return the document *name*, all of it from one version, and its status.

        Raises `NotFoundError`, and `MetadataError` if it has more than *most* bytes. *first* are about its size: so
        many bytes come with one request.
        """
        snapshot = await self.store.open(self.key(name), head_nbytes=first)
        if snapshot.size > most:
            raise MetadataError(f"the document has {snapshot.size} bytes, more than {most}")
        return bytes(await snapshot.read(0, snapshot.size)), snapshot.stat


class FoundNode(NamedTuple):
    """What a directory is in a format: *node*, described by a document with the status *origin*.

    That is the status of the version that was read, of its `Snapshot`. If that file has the chunks, too, they are read
    from this very version: where there is another one by now, the format is asked again.

    *node* is None if there is a document of that name, and it is that of something else: it is remembered, and
    not parsed again while it is the same. *stamp* is whatever `Format.find` compares to see that nothing has changed.
    """

    node: Foreign | None
    origin: Stat
    stamp: Hashable


@dataclass(frozen=True)
class Candidate:
    """What a user has typed as SOURCE: something of this *name*.

    *is_file*, *is_directory*: it is one, or may be one, if it is remote; a URL that ends with a slash is no file. A
    local one is at *path*, and a file begins with the bytes *first*, up to `FIRST_NBYTES`. Of what is remote only the
    name is known, unless no format takes it, and nothing is below it: then formats are asked again, with *first*.
    """

    name: str
    is_file: bool
    is_directory: bool
    path: str | None = None
    first: bytes = b""


@dataclass(frozen=True)
class FileSource:
    """A SOURCE that a format takes: the file, or the directory, *name* in the location *home*, known to users as *url*.

    *files* reads what is in that location, by keys relative to it: it is the *home* of a `SingleFile` or a `TreeStore`.
    Names and versions may be cached for *ttl* seconds.
    *options* are those of the user, and *open_location* opens other locations that the file leads to, and that the user
    allows: it returns the location, and a reader of it, or raises `SourceError`. *session* is for tasks that are to end
    when the source is closed.
    """

    url: str
    home: AnyLocation
    files: TargetFiles
    name: str
    ttl: float
    options: StoreOptions
    open_location: Callable[[str], tuple[AnyLocation, TargetFiles]]
    session: trio.Nursery


class Format:
    """A format that is only read. A subclass has a `name`, and overrides what else it has; all that has a default.

    What a format of another package raises and is no error of `shardfs.errors` is a fault of it: the file or directory
    that it was asked of cannot be read, with a message that names the package, and everything else can.
    """

    name: str = ""
    """How it is called in messages: one word. A format needs one, which no other has."""

    documents: frozenset[str] = frozenset()
    """The names of files that may make a directory one of this format."""

    suffixes: tuple[str, ...] = ()
    """What the name of a file that is a SOURCE ends with."""

    signatures: tuple[bytes, ...] = ()
    """What a file that is a SOURCE begins with, whatever its name: several bytes that no other file begins with."""

    sources: str = ""
    """In words, of which sources `options` are."""

    options: frozenset[str] = frozenset()
    """The fields of `StoreOptions` that only sources of this format take."""

    web: Sequence[tuple[Row, Sequence[Row]]] = ()
    """The documents that are asked for on web servers, which list nothing, in the order in which they are.

    A row has the paths of documents of one node, relative to that: the first is there if it is a node. With it come the
    rows, of any format, that nodes below a source with such a document may have.
    """

    web_source: str = ""
    """In words, what a SOURCE of this format is on a web server."""

    is_usual: frozenset[str] = frozenset()
    """Which of `documents` are names of other files, too, which are looked for below a node of another format."""

    async def find(self, directory: SourceDirectory, known: FoundNode | None) -> FoundNode | None:
        """Return what *directory* is, None if it is nothing of this format.

        Called for each directory without a `zarr.json`, so at most one document may be asked for to find that out.
        *known* is what this method returned of the directory before: return that very object if nothing has changed,
        at the cost of a look at the versions of documents. `NotFoundError` of the document need not be caught, nor
        `StaleError`: the caller tries again. What is damaged or not supported is no error: it is a `Foreign` with a
        *reason*, so that what is stored is shown as it is, and `info` and the log say why.
        """
        return None

    def takes(self, source: Candidate) -> bool:
        """Whether *source* is a file, or a directory, that `open` opens.

        By default it is a file with one of `suffixes`, in upper case or lower case, or of `signatures`.
        """
        suffixes, signatures = tuple(map(str.lower, self.suffixes)), tuple(self.signatures)
        return source.is_file and (source.name.lower().endswith(suffixes) or source.first.startswith(signatures))

    def open(self, source: FileSource) -> Reader:
        """Return a reader of what is in *source*, which `takes` took; nothing is read yet.

        Raises `SourceError` if that is impossible here, because a library is missing for example.
        """
        raise SourceError(f"{source.url} is no source")

    def outline(self, path: str, documents: Mapping[str, bytes]) -> Outline | None:
        """Return what the *documents* of one of `web`, by path, say of the names below the node at *path*.

        None if they are none of this format. For sources on web servers, which list nothing; pure.
        """
        return None

    def remark(self, names: frozenset[str]) -> str | None:
        """Return what a directory with these *names* is, and what to do, if that is not to mount it."""
        return None
