"""What a Parquet file of references says of itself, checked before any of it is decoded.

A page of a few bytes may claim gigabytes, a value that is repeated a million times is stored once, and libraries end
the process at some footers. So the footer is read here, has to describe the columns of references, and the headers of
all their pages are added up against a budget; a library gets the file with a new footer, which says nothing else.

Source: Apache Parquet, "parquet.thrift"; Apache Thrift, "Compact protocol".
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from shardfs.errors import CorruptionError

_MAGIC: Final = b"PAR1"
_INT32, _INT64, _BYTES = 1, 2, 6
_NUMBERS: Final = {"offset", "size"}
COLUMNS: Final = ("path", "offset", "size", "raw")
"""The columns that references have; *path* and *raw* are decoded to bytes."""

_PLAIN: Final = {None}
_CONVERTED_NUMBERS: Final = _PLAIN | {*range(11, 19)}
_CONVERTED_TEXTS: Final = _PLAIN | {0, 4, 19}
_LOGICAL_NUMBERS: Final = {10}
_LOGICAL_TEXTS: Final = {1, 4, 12}
_NOTHING: Final = 11
"""The logical type of a column in which there is no value."""

_MAX_FOOTER_NBYTES: Final = 2**20
_MAX_LEAVES: Final = 100
_MAX_PAGES: Final = 100_000
_MAX_HEADER_NBYTES: Final = 2**16
_MAX_DEPTH: Final = 12
_ROW_NBYTES: Final = 8
"""What a row takes of each column: an integer, or its number in a dictionary with what says whether it is there."""

_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_ENCODINGS: Final = {0, 2, 3, 4, 5, 6, 8, 9}
"""All but the one that repeats the begin of the value before: there, no size of a page bounds that of its values."""


class Checked(NamedTuple):
    """A file that was checked: the names of its *columns*, its *nrows*, and its bytes with a new footer."""

    columns: Sequence[str]
    nrows: int
    data: bytes


def checked(data: bytes, max_rows: int, max_nbytes: int) -> Checked:
    """Return what of the file *data* may be decoded.

    Raises `CorruptionError` if its columns are not those of references, or would be more than *max_rows* rows or
    *max_nbytes* bytes.
    """
    if len(data) < 12 or data[-4:] != _MAGIC:
        raise CorruptionError("it is no file of Parquet")
    nbytes = int.from_bytes(data[-8:-4], "little")
    begin = len(data) - 8 - nbytes
    if nbytes > _MAX_FOOTER_NBYTES or begin < len(_MAGIC):
        raise CorruptionError(f"its footer has {nbytes:,} bytes, more than it has, or than references need")
    footer = Compact(data, begin, len(data) - 8).struct()
    columns = _columns(_structs(footer, 2))
    nrows = _integer(footer, 3)
    budget = _Budget(max_rows, max_nbytes)
    budget.take_rows(nrows, len(columns))
    groups: list[bytes] = []
    for group in _structs(footer, 4):
        chunks, count = _structs(group, 1), _integer(group, 3)
        found = [(column, _structure(chunks[column.number], 3)) for column in columns if column.number < len(chunks)]
        if len(found) < len(columns):
            raise CorruptionError("a part of it lacks columns")
        for column, chunk in found:
            _check_chunk(data[:begin], chunk, count, column, budget)
        encoded = [Fields().i64(2, 0).struct(3, _rewritten(chunk, column)).end() for column, chunk in found]
        groups.append(Fields().structs(1, encoded).i64(2, 0).i64(3, count).end())
        nrows -= count
    if nrows:
        raise CorruptionError("its parts do not have as many rows as all of it")
    root = Fields().text(4, b"schema").i32(5, len(columns)).end()
    leaves = [Fields().i32(1, c.kind).i32(3, c.repetition).text(4, c.name.encode()).end() for c in columns]
    new = Fields().i32(1, 1).structs(2, [root, *leaves]).i64(3, _integer(footer, 3)).structs(4, groups).end()
    whole = b"".join([data[:begin], new, len(new).to_bytes(4, "little"), _MAGIC])
    return Checked([column.name for column in columns], _integer(footer, 3), whole)


class _Column(NamedTuple):
    """A column: its *number* among all of the file, its type, and whether it may be missing in a row."""

    name: str
    number: int
    kind: int
    repetition: int


def _columns(schema: Sequence[dict[int, object]]) -> list[_Column]:
    """Return the columns of references that a *schema* has and that have values."""
    if not 0 < len(schema) <= _MAX_LEAVES:
        raise CorruptionError(
            f"it has a schema of {len(schema):,} elements, and references have {len(COLUMNS)} columns"
        )
    found: dict[str, _Column] = {}
    at, number = 1, 0
    for _ in range(_integer(schema[0], 5)):
        if at >= len(schema):
            raise CorruptionError("its schema is cut off")
        element, begin = schema[at], number
        at, number = _after(schema, at, number)
        name = element.get(4)
        text = name.decode(errors="replace") if isinstance(name, bytes) else ""
        if text not in COLUMNS:
            continue
        kind, repetition = element.get(1), element.get(3)
        converted, logical = element.get(6), element.get(10)
        meaning = next(iter(logical), None) if isinstance(logical, dict) else None
        if meaning == _NOTHING and number == begin + 1:
            continue
        if text in _NUMBERS:
            is_one = kind in (_INT32, _INT64) and converted in _CONVERTED_NUMBERS
            is_one = is_one and meaning in _LOGICAL_NUMBERS | _PLAIN
        else:
            is_one = kind == _BYTES and converted in _CONVERTED_TEXTS and meaning in _LOGICAL_TEXTS | _PLAIN
        if not is_one or text in found or repetition not in (0, 1) or element.get(5):
            what = "integers" if text in _NUMBERS else "text or bytes"
            raise CorruptionError(f"its column {text} is no column of {what}, as references have")
        assert isinstance(kind, int)
        assert isinstance(repetition, int)
        found[text] = _Column(text, begin, kind, repetition)
    return [found[name] for name in COLUMNS if name in found]


def _after(schema: Sequence[dict[int, object]], at: int, number: int) -> tuple[int, int]:
    """Return what follows the element *at*, with all below it, in the *schema*, and the number of the next column."""
    pending = 1
    while pending:
        if at >= len(schema):
            raise CorruptionError("its schema is cut off")
        nbelow = schema[at].get(5)
        pending += (nbelow if isinstance(nbelow, int) else 0) - 1
        number += not nbelow
        at += 1
    return at, number


class _Budget:
    """How much a file may decode to."""

    def __init__(self, max_rows: int, max_nbytes: int) -> None:
        self._max_rows, self._max_nbytes = max_rows, max_nbytes
        self._nrows = self._nbytes = self._npages = 0

    def take_rows(self, nrows: int, ncolumns: int) -> None:
        """Take rows of so many columns."""
        self._nrows = nrows
        self._take(nrows * ncolumns * _ROW_NBYTES, 0)

    def take_page(self, nbytes: int) -> None:
        """Take a page of *nbytes* bytes."""
        self._take(nbytes, 1)

    def _take(self, nbytes: int, npages: int) -> None:
        self._nbytes += nbytes
        self._npages += npages
        if not 0 <= self._nrows <= self._max_rows or not 0 <= self._nbytes <= self._max_nbytes:
            raise CorruptionError(f"it has {self._nrows:,} rows and {self._nbytes:,} bytes, which are too many")
        if self._npages > _MAX_PAGES:
            raise CorruptionError(f"it has more than {_MAX_PAGES:,} pages")


def _check_chunk(data: bytes, chunk: dict[int, object], nrows: int, column: _Column, budget: _Budget) -> None:
    """Check the values of a *column* in a row group of *nrows* rows, by the headers of their pages."""
    name = column.name
    if _integer(chunk, 1) != column.kind or _integer(chunk, 5) != nrows or nrows < 0:
        raise CorruptionError(f"its column {name} is another one in a part of it")
    at, nvalues = _begin(chunk), 0
    end = at + _integer(chunk, 7)
    if not 0 < at <= end <= len(data):
        raise CorruptionError(f"its column {name} is not within the file")
    item = 8 if column.kind == _INT64 else 4  # a text has its length before it
    while nvalues < nrows:
        reader = Compact(data, at, min(end, at + _MAX_HEADER_NBYTES))
        header = reader.struct()
        kind, nbytes, stored = (_integer(header, number) for number in (1, 2, 3))
        at = reader.at + stored
        if nbytes < 0 or not reader.at <= at <= end:
            raise CorruptionError(f"a page of its column {name} is not within the column")
        budget.take_page(nbytes)
        if kind in (_DATA, _DATA_V2):
            page, where = (_structure(header, 5), 2) if kind == _DATA else (_structure(header, 8), 4)
            count, encoding = _integer(page, 1), _integer(page, where)
            nvalues += count
            if count < 0 or nvalues > nrows:
                raise CorruptionError(f"the pages of its column {name} have more values than it has rows")
            if encoding not in _ENCODINGS:
                raise CorruptionError(f"its column {name} has the encoding {encoding}, which is not known or unbounded")
        elif kind == _DICTIONARY:
            count = _integer(_structure(header, 7), 1)
            if not 0 <= count * item <= nbytes:
                raise CorruptionError(f"the dictionary of its column {name} has {count:,} values in {nbytes:,} bytes")


def _begin(chunk: dict[int, object]) -> int:
    """Return where the first page of a column begins: a dictionary comes before the data."""
    dictionary, data = chunk.get(11), _integer(chunk, 9)
    return min(data, dictionary) if isinstance(dictionary, int) and dictionary > 0 else data


def _rewritten(chunk: dict[int, object], column: _Column) -> bytes:
    """Return what is said of a *column* in a row group, and was checked."""
    fields = Fields().i32(1, column.kind).i32s(2, []).texts(3, [column.name.encode()]).i32(4, _integer(chunk, 4))
    fields.i64(5, _integer(chunk, 5)).i64(6, 0).i64(7, _integer(chunk, 7)).i64(9, _integer(chunk, 9))
    if isinstance(chunk.get(11), int):
        fields.i64(11, _integer(chunk, 11))
    return fields.end()


def _integer(values: dict[int, object], number: int) -> int:
    value = values.get(number)
    if not isinstance(value, int) or abs(value) >= 2**63:
        raise CorruptionError("what it says of itself is damaged")
    return value


def _structure(values: dict[int, object], number: int) -> dict[int, object]:
    value = values.get(number)
    if not isinstance(value, dict):
        raise CorruptionError("what it says of itself is damaged")
    return value


def _structs(values: dict[int, object], number: int) -> list[dict[int, object]]:
    found = values.get(number)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise CorruptionError("what it says of itself is damaged")
    return found


_BOOLEANS: Final = {1: True, 2: False}
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12


class Compact:
    """Reads Thrift's compact protocol from *data*, *at* to *end*. No value takes more than its bytes."""

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data = data
        self.at = at
        self._end = end

    def struct(self, depth: int = 0) -> dict[int, object]:
        """Return the fields of a struct by their numbers."""
        if depth > _MAX_DEPTH:
            raise CorruptionError("what it says of itself is nested too deeply")
        values: dict[int, object] = {}
        number = 0
        while (head := self._byte()) & 0xF:
            number = number + (head >> 4) if head >> 4 else self._signed()
            kind = head & 0xF
            values[number] = _BOOLEANS[kind] if kind in _BOOLEANS else self._value(kind, depth)
        return values

    def _value(self, kind: int, depth: int) -> object:
        match kind:
            case 1 | 2 | 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._signed()
            case 7:
                return self._bytes(8)
            case 8:
                return self._bytes(self._unsigned())
            case 9 | 10:
                head = self._byte()
                count = self._unsigned() if head >> 4 == 0xF else head >> 4
                if count > self._end - self.at:
                    raise CorruptionError("what it says of itself is cut off")
                return [self._value(head & 0xF, depth + 1) for _ in range(count)]
            case 12:
                return self.struct(depth + 1)
        raise CorruptionError("what it says of itself has a value of an unknown kind")

    def _byte(self) -> int:
        if self.at >= self._end:
            raise CorruptionError("what it says of itself is cut off")
        self.at += 1
        return self._data[self.at - 1]

    def _bytes(self, nbytes: int) -> bytes:
        if nbytes > self._end - self.at:
            raise CorruptionError("what it says of itself is cut off")
        self.at += nbytes
        return self._data[self.at - nbytes : self.at]

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value
            if shift > 63:
                raise CorruptionError("what it says of itself has a number that is too long")

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)


class Fields:
    """Writes a struct in Thrift's compact protocol; fields come in the order of their numbers."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._last = 0

    def i32(self, number: int, value: int) -> "Fields":
        """Add an integer."""
        return self._add(number, _I32, _signed(value))

    def i64(self, number: int, value: int) -> "Fields":
        """Add a long integer."""
        return self._add(number, _I64, _signed(value))

    def text(self, number: int, value: bytes) -> "Fields":
        """Add a text."""
        return self._add(number, _BINARY, _unsigned(len(value)) + value)

    def struct(self, number: int, encoded: bytes) -> "Fields":
        """Add a struct, as `end` returned it."""
        return self._add(number, _STRUCT, encoded)

    def structs(self, number: int, encoded: Sequence[bytes]) -> "Fields":
        """Add a list of structs."""
        return self._add(number, _LIST, _list(_STRUCT, encoded))

    def i32s(self, number: int, values: Sequence[int]) -> "Fields":
        """Add a list of integers."""
        return self._add(number, _LIST, _list(_I32, [_signed(value) for value in values]))

    def texts(self, number: int, values: Sequence[bytes]) -> "Fields":
        """Add a list of texts."""
        return self._add(number, _LIST, _list(_BINARY, [_unsigned(len(value)) + value for value in values]))

    def end(self) -> bytes:
        """Return the struct."""
        return bytes(self._data) + b"\0"

    def _add(self, number: int, kind: int, encoded: bytes) -> "Fields":
        self._data.append((number - self._last) << 4 | kind)
        self._data += encoded
        self._last = number
        return self


def _list(kind: int, encoded: Sequence[bytes]) -> bytes:
    count = len(encoded)
    head = bytes([count << 4 | kind]) if count < 0xF else bytes([0xF0 | kind]) + _unsigned(count)
    return head + b"".join(encoded)


def _signed(value: int) -> bytes:
    return _unsigned(value << 1 if value >= 0 else -value * 2 - 1)


def _unsigned(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)
