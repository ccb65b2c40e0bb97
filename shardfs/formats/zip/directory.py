"""The central directory of a ZIP file: where it is, and what it says, as tables. Pure.

Sections are those of PKWARE's APPNOTE.TXT 6.3.10. Everything here is hostile: numbers are compared with the size of the
file, and with each other, before anything is made of them.
"""

import re
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardfs.errors import CorruptionError, MetadataError, counted, size
from shardfs.formats import Buffer
from shardfs.formats.order import in_order
from shardfs.stores.objects.reader import MAX_KEY_NBYTES

STORED: Final = 0
DEFLATED: Final = 8
_METHODS: Final = {9: "Deflate64", 12: "bzip2", 14: "LZMA", 93: "Zstandard", 95: "XZ", 98: "PPMd", 99: "AES"}

MAX_DIRECTORY_NBYTES: Final = 512 * 2**20
"""How large a central directory may be: of about five million members."""

TAIL_NBYTES: Final = 66 * 2**10
"""The last bytes of a file, among which its central directory says where it is: section 4.3.16, with any comment."""

_END: Final = Struct("<4s4H2LH")
_LOCATOR: Final = Struct("<4sLQL")
_END64: Final = Struct("<4sQ2H2L4Q")
_LOCAL: Final = Struct("<4s5H3L2H")
LOCAL_NBYTES: Final = _LOCAL.size

_HEADER: Final = np.dtype(
    [
        *[("signature", "<u4"), ("made_by", "<u2"), ("needs", "<u2"), ("flags", "<u2"), ("method", "<u2")],
        *[("time", "<u2"), ("date", "<u2"), ("crc32", "<u4"), ("csize", "<u4"), ("usize", "<u4")],
        *[("name_nbytes", "<u2"), ("extra_nbytes", "<u2"), ("comment_nbytes", "<u2"), ("disk", "<u2")],
        *[("internal", "<u2"), ("external", "<u4"), ("offset", "<u4")],
    ]
)
_SIGNATURE: Final = int.from_bytes(b"PK\x01\x02", "little")
_VARIABLE: Final = Struct("<3H")
_VARIABLE_AT: Final = 28
_EXTRA: Final = Struct("<2H")
_ZIP64_ID: Final = 0x0001
_UNICODE_PATH_ID: Final = 0x7075
_TOP16: Final = 2**16 - 1
_TOP32: Final = 2**32 - 1

_ENCRYPTED: Final = 1 << 0 | 1 << 6 | 1 << 13  # section 4.4.4
_IS_UTF8: Final = 1 << 11
_SIZES_FOLLOW: Final = 1 << 3

_UNIX: Final = 3
_UNIXES: Final = (_UNIX, 19)  # that of macOS
_MODES: Final = 0o170000
_SYMLINK: Final = 0o120000
_USUAL_MODES: Final = (0, 0o100000, 0o040000)

_MAX_RATIO: Final = 1032
"""Deflate makes at most 258 bytes of two bits."""

_MAX_MORE: Final = 2**20
"""What cannot be compressed gets hardly longer; empty blocks, one after another, only keep readers busy."""

_NO_PATH: Final = re.compile(rb"(?:\A|/)\.{0,2}(?:/|\Z)|[\\\0]|[^/]{256}")
"""What no name of a file has: empty parts, `.` and `..`, backslashes, NUL, and parts that are too long for a disk."""


@dataclass(frozen=True)
class Archive:
    """Where the central directory of a ZIP file is: *nbytes* bytes from *start*, with *count* headers.

    *prefix* bytes are before the ZIP file: it is added to every offset. If there are more than 65,535 headers, and no
    *count* of 64 bits (`is_wide`), it is the rest of a division by 65,536.
    """

    start: int
    nbytes: int
    count: int
    prefix: int
    is_wide: bool


_PROBLEMS: Final = (
    "",
    "it is encrypted: decrypt the ZIP file, for example with `7z`",
    "its compression method is {}: shardfs reads members that are stored or deflated",
    "it is a symbolic link, or another special file",
    "its header has no valid ZIP64 sizes",
    "it is said to lie outside of the file",
    "its bytes are also said to be those of another member",
    "it is stored, and its two sizes differ",
    "no deflated bytes of its size expand to what it is said to have",
)
_FINE, _CRYPTED, _METHOD, _SPECIAL, _NO_ZIP64, _OUTSIDE, _OVERLAPS, _SIZES, _BOMB = range(len(_PROBLEMS))


def find_directory(tail: bytes, nbytes: int) -> Archive:
    """Return where the central directory is; *tail* are the last `TAIL_NBYTES` of a file of *nbytes* bytes, or all.

    Raises `MetadataError` if it is no ZIP file, and `CorruptionError` if the numbers contradict the file.
    """
    at = len(tail)
    while (at := tail.rfind(b"PK\x05\x06", 0, at)) >= 0:  # the comment behind it may hold anything
        if len(tail) - at >= _END.size and at + _END.size + _END.unpack_from(tail, at)[-1] == len(tail):
            break
    else:
        raise MetadataError("it is no ZIP file, or its end is missing: no central directory is named at its end")
    _, disk, first_disk, count_here, count, table_nbytes, offset, _ = _END.unpack_from(tail, at)
    end, is_wide = nbytes - len(tail) + at, False
    if at >= _LOCATOR.size and tail[at - _LOCATOR.size : at].startswith(b"PK\x06\x07"):
        short = (disk, first_disk, count_here, count, table_nbytes, offset)
        at -= _LOCATOR.size
        _, locator_disk, _, ndisks = _LOCATOR.unpack_from(tail, at)
        at -= _END64.size
        if at < 0 or not tail.startswith(b"PK\x06\x06", at):
            raise CorruptionError("its ZIP64 end of the central directory is not where it should be")
        _, _, _, _, *wide = _END64.unpack_from(tail, at)
        for old, new, top in zip(short, wide, (_TOP16,) * 4 + (_TOP32,) * 2, strict=True):
            if old not in (new, top):
                raise CorruptionError(f"its end says {old:,} where its ZIP64 end says {new:,}")
        disk, first_disk, count_here, count, table_nbytes, offset = wide
        end, is_wide = nbytes - len(tail) + at, True
        disk = disk or locator_disk or max(ndisks - 1, 0)
    if disk or first_disk or count_here != count:
        raise MetadataError("it is split into several files: join them, for example with `zip -s 0`")
    start = end - table_nbytes
    if start < offset:
        raise CorruptionError(
            f"its central directory is said to have {table_nbytes:,} bytes from {offset:,} on, and ends at {end:,}"
        )
    if table_nbytes > MAX_DIRECTORY_NBYTES:
        raise MetadataError(
            f"its central directory has {size(table_nbytes)}, more than {size(MAX_DIRECTORY_NBYTES)}: it has too many "
            "members; shard its arrays"
        )
    if count * _HEADER.itemsize > table_nbytes:
        raise CorruptionError(f"its central directory of {table_nbytes:,} bytes is said to have {count:,} headers")
    return Archive(start, table_nbytes, count, start - offset, is_wide)


class Names(Sequence[bytes]):
    """Names in order, in one piece of memory. The parts of each are separated by NUL, which comes before all else.

    So a directory is directly before what is in it.
    """

    def __init__(self, names: Sequence[bytes]) -> None:
        self._text = b"".join(names)
        self._ends = np.cumsum([0, *map(len, names)], dtype=np.uint32 if len(self._text) <= _TOP32 else np.uint64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: int) -> bytes:  # type: ignore[override]
        return self._text[self._ends[number] : self._ends[number + 1]]

    def find(self, key: bytes, start: int = 0) -> int:
        """Return the number of the first name that is not before *key*."""
        return bisect_left(self, key, start)

    def occurrences(self, part: bytes, start: int, stop: int) -> int:
        """Return how often *part* is in the names from *start* to before *stop*, or at least across two of them."""
        return self._text.count(part, int(self._ends[start]), int(self._ends[stop]))

    @property
    def nbytes(self) -> int:
        """How much memory they take."""
        return len(self._text) + self._ends.nbytes


@dataclass
class Members:
    """The members of a ZIP file, in the order of their names; a row of each table for each of them.

    *offset*, *csize* and *usize* are 64 bits wide: where its local header is in the file, and how many bytes it has,
    compressed and not. *end* is where another member or the central directory begins. *name_nbytes* is the size of the
    name in its local header.
    """

    names: Names
    offset: NDArray[np.uint64]
    csize: NDArray[np.uint64]
    usize: NDArray[np.uint64]
    end: NDArray[np.uint64]
    crc32: NDArray[np.uint32]
    method: NDArray[np.uint16]
    name_nbytes: NDArray[np.uint16]
    problem: NDArray[np.uint8]
    hidden: Sequence[str] = ()
    """What is skipped, and why, in words."""
    nreplaced: int = 0
    """How many have a name that a later one has, too."""

    @property
    def nbytes(self) -> int:
        """How much memory they take."""
        tables = (self.offset, self.csize, self.usize, self.end, self.crc32, self.method, self.name_nbytes)
        return self.names.nbytes + sum(table.nbytes for table in (*tables, self.problem))

    def number(self, key: str) -> int | None:
        """Return which member is the file *key*; None if none is."""
        name = encoded(key)
        if name is None:
            return None
        number = self.names.find(name)
        return number if number < len(self.names) and self.names[number] == name else None

    def begin(self, key: str) -> tuple[bytes, int]:
        """Return with what names in the directory *key* begin, and which may be the first of them."""
        name = encoded(key)
        prefix = b"\xff" if name is None else name + b"\0" * bool(name)
        return prefix, self.names.find(prefix)

    def is_directory(self, key: str) -> bool:
        """Whether *key* is a directory."""
        prefix, number = self.begin(key)
        return number < len(self.names) and self.names[number].startswith(prefix)

    def count_below(self, key: str, name: str) -> int:
        """Return how many members in the directory *key*, and below it, have this *name*, at most."""
        prefix, first = self.begin(key)
        stop = self.names.find(prefix + b"\xff") if prefix else len(self.names)  # which no text has
        return self.names.occurrences(name.encode(), first, stop)

    def in_directory(self, key: str) -> Iterator[tuple[str, bool]]:
        """Yield the names in the directory *key*, and whether each is a directory."""
        prefix, number = self.begin(key)
        while number < len(self.names):
            name = self.names[number]
            if not name.startswith(prefix):
                return
            rest, is_below, _ = name[len(prefix) :].partition(b"\0")
            if rest:
                yield rest.decode(), bool(is_below)
            number = self.names.find(prefix + rest + b"\1", number) if is_below else number + 1

    def files(self) -> Iterator[str]:
        """Yield the keys of all files."""
        for number in range(len(self.names)):
            name = self.names[number]
            if not name.endswith(b"\0"):
                yield name.replace(b"\0", b"/").decode()

    def refused(self) -> Iterator[str]:
        """Yield in words how many members cannot be read, and why."""
        kinds, first, counts = np.unique(
            self.problem.astype(np.uint32) << 16 | np.where(self.problem == _METHOD, self.method, 0),
            return_index=True,
            return_counts=True,
        )
        for kind, number, count in zip(kinds.tolist(), first.tolist(), counts.tolist(), strict=True):
            if kind:
                yield f"{counted(count, 'member')} cannot be read: {self.reason(number)}"

    def reason(self, number: int) -> str | None:
        """Return why a member cannot be read; None if nothing is known against it."""
        method = int(self.method[number])
        return _PROBLEMS[self.problem[number]].format(_METHODS.get(method, f"number {method}")) or None


def encoded(key: str) -> bytes | None:
    """Return *key* as `Names` have it; None if none can."""
    return None if "\0" in key or key.endswith("/") else key.encode(errors="surrogatepass").replace(b"/", b"\0")


class DirectoryParser:
    """Makes `Members` of a central directory, which comes in pieces."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._rest = b""
        self._names: list[bytes] = []
        self._tables: list[NDArray[np.void]] = []
        self._hidden: dict[str, list[str]] = {}
        self._nreplaced = 0

    def feed(self, piece: Buffer) -> None:
        """Read the next bytes; raises `CorruptionError`, and `MetadataError`."""
        data = self._rest + bytes(piece)
        starts: list[int] = []
        at, stop = 0, len(data) - _HEADER.itemsize
        unpack, fixed = _VARIABLE.unpack_from, _HEADER.itemsize
        while at <= stop:
            nbytes = fixed + sum(unpack(data, at + _VARIABLE_AT))
            if at + nbytes > len(data):
                break
            starts.append(at)
            at += nbytes
        self._rest = data[at:]
        if starts:
            self._read(data, np.array(starts, np.int64))

    def _read(self, data: bytes, starts: NDArray[np.int64]) -> None:
        """Read the headers that begin at *starts*."""
        windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), _HEADER.itemsize)
        headers = windows[starts].view(_HEADER)[:, 0]
        if (headers["signature"] != _SIGNATURE).any():
            raise CorruptionError("its central directory has other bytes where a header should be")
        if not np.isin(headers["disk"], (0, _TOP16)).all():
            raise MetadataError("it is split into several files: join them, for example with `zip -s 0`")
        table = np.zeros(len(headers), _ROW)
        for column in ("csize", "usize", "offset", "crc32", "method", "name_nbytes"):
            table[column] = headers[column]
        mode = np.where(headers["made_by"] >> 8 == _UNIX, headers["external"] >> 16 & _MODES, 0)
        table["problem"][~np.isin(mode, _USUAL_MODES)] = _SPECIAL
        table["problem"][~np.isin(headers["method"], (STORED, DEFLATED))] = _METHOD
        table["problem"][headers["flags"] & _ENCRYPTED != 0] = _CRYPTED
        is_wide = (headers["csize"] == _TOP32) | (headers["usize"] == _TOP32) | (headers["offset"] == _TOP32)
        for row in np.flatnonzero(is_wide).tolist():
            if not _widen(table[row], _extra(data, int(starts[row]), headers[row], _ZIP64_ID)):
                table["problem"][row] = _NO_ZIP64
        for row, (start, nbytes) in enumerate(zip(starts.tolist(), headers["name_nbytes"].tolist(), strict=True)):
            raw = data[start + _HEADER.itemsize : start + _HEADER.itemsize + nbytes]
            name = raw if raw.isascii() else _decoded(raw, data, start, headers[row])
            self._names.append(self._checked(name, raw))
        self._tables.append(table)

    def _checked(self, name: bytes | None, raw: bytes) -> bytes:
        """Return a *name* as `Names` have it; "" if it is to be hidden."""
        if name is None:
            self._hide("whose names are no text", raw)
        elif len(name) > MAX_KEY_NBYTES:
            self._hide("whose names are too long", raw)
        elif _NO_PATH.search(name.removesuffix(b"/")):
            self._hide("whose names are no paths in a directory", raw)
        else:
            return name.replace(b"/", b"\0")
        return b""

    def _hide(self, why: str, name: bytes) -> None:
        names = self._hidden.setdefault(why, [])
        names.append(name[:100].decode("ascii", "backslashreplace") if len(names) < _MAX_NAMED else "")

    def finish(self) -> Members:
        """Return what was read; raises `CorruptionError` if it is not what was announced."""
        if self._rest:
            raise CorruptionError("its central directory ends within a header")
        names, archive = self._names, self._archive
        wanted = archive.count if archive.is_wide else archive.count % (_TOP16 + 1)
        if wanted != (len(names) if archive.is_wide else len(names) % (_TOP16 + 1)):
            raise CorruptionError(f"its central directory has {len(names):,} headers, and not {archive.count:,}")
        table = np.concatenate(self._tables) if self._tables else np.zeros(0, _ROW)
        self._tables = []
        end = _check_extents(table, archive)
        order = in_order(names)  # of two with one name, the last one counts
        kept = [*self._distinct(order)]
        rows = np.array(kept, np.int64)
        columns: dict[str, Any] = {column: np.ascontiguousarray(table[column][rows]) for column in _ROW.names or ()}
        names_kept = Names([names[number] for number in kept])
        return Members(names_kept, end=end[rows], hidden=self._said(), nreplaced=self._nreplaced, **columns)

    def _distinct(self, order: Sequence[int]) -> Iterator[int]:
        """Yield of the rows, in *order*, those that are shown."""
        for row, after in pairwise([*order, -1]):
            name, following = self._names[row], self._names[after] if after >= 0 else b""
            if name and name == following:
                self._nreplaced += 1
            elif name and following.startswith(name + b"\0") and not name.endswith(b"\0"):
                self._hide("whose names are those of directories", name.replace(b"\0", b"/"))
            elif name:
                yield row

    def _said(self) -> Sequence[str]:
        """Return what is hidden, in words."""
        return [
            f"{counted(len(names), 'member')} {why}: {', '.join(names[:_MAX_NAMED])}"
            + " and others" * (len(names) > _MAX_NAMED)
            for why, names in self._hidden.items()
        ]


_MAX_NAMED: Final = 3

_ROW: Final = np.dtype(
    [
        *[("offset", "<u8"), ("csize", "<u8"), ("usize", "<u8"), ("crc32", "<u4")],
        *[("method", "<u2"), ("name_nbytes", "<u2"), ("problem", "u1")],
    ]
)


def _extra(data: bytes, start: int, header: np.void, wanted: int) -> bytes | None:
    """Return the extra field *wanted* of the *header* at *start*; None if there is none."""
    begin = start + _HEADER.itemsize + int(header["name_nbytes"])
    return find_extra(data[begin : begin + int(header["extra_nbytes"])], wanted)


def find_extra(extra: bytes, wanted: int) -> bytes | None:
    """Return the field *wanted* of the *extra* fields of a header (section 4.5); None if there is none."""
    at = 0
    while at + _EXTRA.size <= len(extra):
        kind, nbytes = _EXTRA.unpack_from(extra, at)
        at += _EXTRA.size
        if kind == wanted:
            return extra[at : at + nbytes] if at + nbytes <= len(extra) else None
        at += nbytes
    return None


def _widen(row: np.void, extra: bytes | None) -> bool:
    """Put the numbers of a ZIP64 *extra* field (section 4.5.3) into a *row*; return whether all are there."""
    at, extra = 0, extra or b""
    for column in ("usize", "csize", "offset"):
        if row[column] == _TOP32:
            number = extra[at : at + 8]
            if len(number) < 8:
                return False
            row[column] = int.from_bytes(number, "little")
            at += 8
    return True


def _decoded(raw: bytes, data: bytes, start: int, header: np.void) -> bytes | None:
    """Return the name *raw* in the *header* at *start* as UTF-8 (appendix D); None if it is no text.

    `zip` of Info-ZIP writes names of Unix as they are, and no flag that they are UTF-8.
    """
    name = raw
    if not header["flags"] & _IS_UTF8:
        unicode_path = _extra(data, start, header, _UNICODE_PATH_ID)
        if unicode_path is not None and unicode_path[1:5] == zlib.crc32(raw).to_bytes(4, "little"):
            name = unicode_path[5:]
        elif header["made_by"] >> 8 not in _UNIXES or not _is_utf8(raw):
            name = raw.decode("cp437").encode()
    return name if _is_utf8(name) else None


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _check_extents(table: NDArray[np.void], archive: Archive) -> NDArray[np.uint64]:
    """Add the prefix to the offsets, note what is wrong with the sizes; return where each member ends at the latest."""
    limit = np.uint64(archive.start)
    offset, csize = table["offset"], table["csize"]
    least = csize + np.uint64(LOCAL_NBYTES) + table["name_nbytes"]  # may wrap: csize is compared first
    room = limit - np.minimum(limit, offset + np.uint64(archive.prefix))
    is_inside = (offset <= limit) & (csize <= limit) & (least <= room) & (table["problem"] != _NO_ZIP64)
    offset[is_inside] += np.uint64(archive.prefix)
    order = np.flatnonzero(is_inside)[np.argsort(offset[is_inside], kind="stable")]
    begins, ends = offset[order], offset[order] + least[order]
    overlaps = np.zeros(len(order), np.bool_)
    if len(order) > 1:
        overlaps[1:] |= begins[1:] < np.maximum.accumulate(ends)[:-1]
        overlaps[:-1] |= ends[:-1] > begins[1:]
    latest = np.zeros(len(table), np.uint64)
    latest[order] = np.append(begins[1:], limit)[: len(order)]
    problem = table["problem"]
    is_off = (table["usize"] // np.uint64(_MAX_RATIO) > csize) | (
        csize // np.uint64(2) > np.minimum(table["usize"], limit) + np.uint64(_MAX_MORE)
    )
    is_bomb = (table["method"] == DEFLATED) & is_off
    is_uneven = (table["method"] == STORED) & (table["usize"] != csize)
    for number, wrong in ((_BOMB, is_bomb), (_SIZES, is_uneven), (_OUTSIDE, ~is_inside)):
        problem[wrong & (problem == _FINE)] = number
    problem[order[overlaps]] = np.where(problem[order[overlaps]] == _FINE, _OVERLAPS, problem[order[overlaps]])
    return latest


def check_local(header: bytes, members: Members, number: int) -> int:
    """Return how many bytes of a member's local *header* are before its data; raises `CorruptionError`.

    *header* ends with the name; it must say what the central directory says (section 4.3.7).
    """
    signature, _, flags, method, _, _, crc32, csize, _, name_nbytes, extra_nbytes = _LOCAL.unpack_from(header)
    if signature != b"PK\x03\x04" or name_nbytes != members.name_nbytes[number]:
        raise CorruptionError("it is not where the central directory says")
    raw, name = header[LOCAL_NBYTES:], members.names[number].replace(b"\0", b"/")
    if name.isascii() and raw != name:
        raise CorruptionError("the central directory has another name for it")
    is_other = csize not in (_TOP32, members.csize[number]) or crc32 != members.crc32[number]
    if flags & _ENCRYPTED or method != members.method[number] or (is_other and not flags & _SIZES_FOLLOW):
        raise CorruptionError("its local header contradicts the central directory")
    nbytes = LOCAL_NBYTES + int(name_nbytes) + int(extra_nbytes)
    if members.offset[number] + nbytes + members.csize[number] > members.end[number]:
        raise CorruptionError(_PROBLEMS[_OVERLAPS])
    return nbytes
