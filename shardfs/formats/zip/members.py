"""The members of one version of a ZIP file, as files."""

import logging
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Final

import numpy as np
import trio
from isal import isal_zlib

from shardfs.errors import CorruptionError, counted
from shardfs.formats import (
    MAX_MADE_NBYTES,
    BrokenPart,
    Buffer,
    Kind,
    LatePart,
    ListedName,
    MadePart,
    RangePart,
    Snapshot,
    documents,
)
from shardfs.formats.zip.directory import (
    DEFLATED,
    LOCAL_NBYTES,
    STORED,
    TAIL_NBYTES,
    DirectoryParser,
    Members,
    check_local,
    find_directory,
)
from shardfs.stores.base import DOCUMENTS

_REQUEST_NBYTES: Final = 8 * 2**20
_PIECE_NBYTES: Final = 2**20
_SMALL_NBYTES: Final = 256 * 2**10
"""A member of up to this size is fetched with its local header."""

_QUICK_NBYTES: Final = 64 * 2**10
"""So many bytes are inflated in less time than a thread takes."""

_DOCUMENTS: Final = frozenset(DOCUMENTS)
_MAX_PLAIN: Final = 4096

log = logging.getLogger(__name__)


async def load(url: str, snapshot: Snapshot) -> "ZipContents":
    """Read the central directory of the ZIP file *url*, and nothing else of it.

    Raises `MetadataError` and `CorruptionError`, if it is no ZIP file, or is not whole.
    """
    nbytes = snapshot.size
    begin = max(nbytes - TAIL_NBYTES, 0)
    tail = await snapshot.read(begin, nbytes - begin)
    archive = find_directory(bytes(tail), nbytes)
    parser, stop = DirectoryParser(archive), archive.start + archive.nbytes
    for at in range(archive.start, min(stop, begin), _REQUEST_NBYTES):
        data = memoryview(await snapshot.read(at, min(_REQUEST_NBYTES, stop - at, begin - at)))
        await trio.to_thread.run_sync(_feed, parser, data)
    await trio.to_thread.run_sync(_feed, parser, memoryview(tail)[max(archive.start - begin, 0) : stop - begin])
    members = await trio.to_thread.run_sync(parser.finish)
    if members.nreplaced:
        log.info("%s: %s a later one of the same name replaces", url, counted(members.nreplaced, "member"))
    for what in members.hidden:
        log.warning("%s: not shown are %s", url, what)
    only_zarr = await trio.to_thread.run_sync(_has_only_zarr, members)
    return ZipContents(snapshot, members, only_zarr=only_zarr)


def _has_only_zarr(members: Members) -> bool:
    """Whether no member has the name of a document of another format."""
    others = tuple(name.encode() for name in documents() - {DOCUMENTS[0]})
    return not any(name.endswith(others) and name.rpartition(b"\0")[2] in others for name in members.names)


def _feed(parser: DirectoryParser, data: memoryview) -> None:
    for at in range(0, len(data), _PIECE_NBYTES):
        parser.feed(data[at : at + _PIECE_NBYTES])


class ZipContents:
    """The *members* of a ZIP file, of which *snapshot* is a version; *only_zarr* is that of `FileContents`."""

    def __init__(self, snapshot: Snapshot, members: Members, *, only_zarr: bool) -> None:
        self._snapshot = snapshot
        self._members = members
        self.only_zarr = only_zarr
        self._before = np.zeros(len(members.names), np.uint32)  # of the local headers that were read
        self._plain: dict[str, bool] = {}  # arrays, and whether all in them is theirs

    async def find(self, key: str) -> LatePart | MadePart | BrokenPart | None:
        """Return what the file *key* is; None if there is none."""
        members = self._members
        number = members.number(key)
        if number is None:
            return None
        reason = members.reason(number)
        if reason is not None:
            return BrokenPart(reason)
        nbytes = int(members.usize[number])
        if members.method[number] == STORED and not _is_document(key):
            return LatePart(nbytes, partial(self._range, key, number))
        if nbytes > MAX_MADE_NBYTES:
            return BrokenPart(
                f"it has {nbytes:,} bytes, more than {MAX_MADE_NBYTES:,}: store it, and do not deflate it"
            )
        return MadePart(nbytes, partial(self._make, key, number))

    def find_known(
        self, key: str, array: str, coords: tuple[int, ...], read: Callable[[int, int], Buffer | None]
    ) -> RangePart | None:
        """Return where a chunk is that is stored."""
        members, number = self._members, self._members.number(key)
        if number is None or members.method[number] != STORED or members.reason(number) is not None:
            return None
        if _is_document(key) or not self._is_plain(array):
            return None
        if not self._before[number]:
            (offset, nbytes), head_nbytes = self._extent(number), self._head_nbytes(number)
            data = read(offset, nbytes if nbytes <= _SMALL_NBYTES else head_nbytes)
            if data is None:
                return None
            self._before[number] = check_local(bytes(data[:head_nbytes]), members, number)
        return self._behind_header(number)

    def _is_plain(self, array: str) -> bool:
        """Whether no directory below the array in the directory *array* is a node."""
        is_plain = self._plain.get(array)
        if is_plain is None:
            if len(self._plain) >= _MAX_PLAIN:
                self._plain.clear()
            is_plain = self.only_zarr and self._members.count_below(array, DOCUMENTS[0]) <= 1
            self._plain[array] = is_plain
        return is_plain

    async def list(self, key: str) -> Sequence[ListedName] | None:
        """Return the names in the directory *key*, "" for the top; None if there is no such directory."""
        if key and not self._members.is_directory(key):
            return None
        return await trio.to_thread.run_sync(self._list, key)

    def _list(self, key: str) -> Sequence[ListedName]:
        return [
            ListedName(name, Kind.DIRECTORY if is_directory else Kind.FILE)
            for name, is_directory in self._members.in_directory(key)
        ]

    async def is_directory(self, key: str) -> bool:
        """Whether *key*, which is not "", is a directory."""
        return self._members.is_directory(key)

    async def walk(self) -> AsyncIterator[str]:
        """Yield the keys of all files, in order."""
        for key in self._members.files():
            yield key

    async def note(self) -> str | None:
        """Say what is not shown, or is and cannot be read; None if that is nothing."""
        refused = await trio.to_thread.run_sync(lambda: [*self._members.refused()])
        return "; ".join([*(f"not shown are {what}" for what in self._members.hidden), *refused]) or None

    async def skipped(self) -> AsyncIterator[tuple[str, str]]:
        """Yield nothing: `note` says it all, as only the first names are kept of those that are hidden."""
        for nothing in list[tuple[str, str]]():
            yield nothing

    async def _range(self, key: str, number: int) -> RangePart:
        """Return where the bytes of a stored member are; raises `CorruptionError`."""
        await self._start(key, number)
        return self._behind_header(number)

    def _behind_header(self, number: int) -> RangePart:
        """Return where the bytes of a stored member are, whose local header was read."""
        offset = int(self._members.offset[number]) + int(self._before[number])
        return RangePart(offset, int(self._members.csize[number]), int(self._members.crc32[number]))

    async def _start(self, key: str, number: int) -> int:
        """Return where the bytes of a member begin, behind its local header, which is read once and checked."""
        offset, nbytes = self._extent(number)
        if not self._before[number]:
            unit = (offset, nbytes) if nbytes <= _SMALL_NBYTES else None
            header = await self._snapshot.read(offset, self._head_nbytes(number), unit)
            try:
                self._before[number] = check_local(bytes(header), self._members, number)
            except CorruptionError as error:
                await self._snapshot.distrust(offset, len(header))
                raise _unreadable(key, str(error)) from None
        return offset + int(self._before[number])

    def _head_nbytes(self, number: int) -> int:
        """Return the size of the local header of a member up to the end of its name."""
        return LOCAL_NBYTES + int(self._members.name_nbytes[number])

    def _extent(self, number: int) -> tuple[int, int]:
        """Return where the local header of a member begins, and the bytes from there to what comes next."""
        offset = int(self._members.offset[number])
        return offset, int(self._members.end[number]) - offset

    async def _make(self, key: str, number: int) -> Buffer:
        """Return the bytes of a member that is deflated, or is a document; raises `CorruptionError`."""
        try:
            return await self._read(key, number)
        except CorruptionError:
            if not await self._snapshot.distrust(*self._extent(number)):
                raise
        return await self._read(key, number)

    async def _read(self, key: str, number: int) -> Buffer:
        nbytes, wanted = int(self._members.csize[number]), int(self._members.usize[number])
        inflater, made = zlib.decompressobj(-zlib.MAX_WBITS), bytearray()

        def inflate(data: memoryview) -> None:
            try:
                for begin in range(0, len(data), _PIECE_NBYTES):
                    _inflate_into(made, inflater, data[begin : begin + _PIECE_NBYTES], wanted)
            except zlib.error as error:
                raise _unreadable(key, f"it cannot be inflated: {error}") from None

        def check() -> None:
            if is_deflated and (len(made) != wanted or not inflater.eof or inflater.unused_data):
                raise _unreadable(key, f"it does not inflate to {wanted:,} bytes")
            if isal_zlib.crc32(made) != self._members.crc32[number]:
                raise _unreadable(key, "its checksum (CRC-32) is wrong")

        is_deflated = self._members.method[number] == DEFLATED
        work = inflate if is_deflated else made.extend
        offset, rest = self._extent(number)
        if _is_document(key) and rest <= _SMALL_NBYTES:
            # At once, and as no unit: documents that are next to each other are no sign that all is read in order.
            data = memoryview(await self._snapshot.read(offset, rest))
            try:
                before = check_local(bytes(data[: self._head_nbytes(number)]), self._members, number)
            except CorruptionError as error:
                raise _unreadable(key, str(error)) from None
            await _run(wanted, partial(work, data[before : before + nbytes]))
        else:
            start = await self._start(key, number)
            for at in range(0, nbytes, _REQUEST_NBYTES):
                data = memoryview(
                    await self._snapshot.read(start + at, min(_REQUEST_NBYTES, nbytes - at), (start, nbytes))
                )
                await _run(wanted, partial(work, data))
                if inflater.eof or len(made) > wanted:
                    break
        await _run(wanted, check)
        return made


def _is_document(key: str) -> bool:
    return key.rpartition("/")[2] in _DOCUMENTS


def _inflate_into(made: bytearray, inflater: "zlib._Decompress", data: Buffer, wanted: int) -> None:
    """Add to *made* what *data* goes on with, a piece at a time; at most one byte more than *wanted* in all."""
    while len(made) <= wanted and not inflater.eof:
        most = min(wanted - len(made) + 1, _REQUEST_NBYTES)
        piece = inflater.decompress(data, most)
        made.extend(piece)
        data = inflater.unconsumed_tail
        if not data and len(piece) < most:
            return


def _unreadable(key: str, reason: str) -> CorruptionError:
    return CorruptionError(f"{key} cannot be read: {reason}")


async def _run(nbytes: int, work: Callable[[], None]) -> None:
    """Do *work* on *nbytes* bytes, in a thread unless it is quick."""
    if nbytes <= _QUICK_NBYTES:
        work()
    else:
        await trio.to_thread.run_sync(work)
