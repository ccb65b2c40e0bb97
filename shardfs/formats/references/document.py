"""References as JSON, in the versions 0 and 1 of kerchunk's format, parsed one by one: a document may have millions."""

import base64
import binascii
import json
import os
import re
from array import array
from collections import ChainMap
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
import trio

from shardfs.errors import SourceError
from shardfs.formats.order import in_order
from shardfs.formats.references.base import (
    AT_ONCE,
    MAX_REFERENCES,
    Keys,
    Reference,
    Target,
    encoded_key,
    inline,
    target_of,
)
from shardfs.formats.virtual import BrokenPart, InlinePart
from shardfs.stores.base import ListedName

MAX_NBYTES: Final = 256 * 2**20
_MAX_GENERATED: Final = 1_000_000
_MAX_GENERATED_NBYTES: Final = 128 * 2**20
_MAX_URL: Final = 8192
_MAX_VALUE: Final = 255
_INLINE, _BROKEN = -1, -2
_WHOLE: Final = -1
_BASE64: Final = "base64:"
_WHITE: Final = re.compile(r"[ \t\r\n]*")
_NAME: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*", re.ASCII)
_DECODER: Final = json.JSONDecoder()

_PLAIN: Final = r'[^"\\\x00-\x1f]*+'
_TEXT: Final = rf'"({_PLAIN}(?:\\/{_PLAIN})*+)"'
_COUNT: Final = "([0-9]{1,18})"
_USUAL: Final = re.compile(
    rf'{_TEXT}\s*:\s*\[\s*{_TEXT}\s*,\s*{_COUNT}\s*,\s*{_COUNT}\s*\]\s*,\s*(?=")',
)
"""A member of an object as most are, with what separates it from the next one; to match it takes little time."""


class _Columns(NamedTuple):
    """What keys refer to, in the order of the keys.

    *targets* has the number of a URL; or `_INLINE` or `_BROKEN`, and then *offsets* the number of a text. *sizes* has
    `_WHOLE` for a whole file.
    """

    targets: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray


class DocumentReferences:
    """The references of a document, by *keys*, to *urls* and *texts*.

    *templates* are what names in URLs stand for.
    """

    def __init__(
        self,
        keys: Keys,
        columns: _Columns,
        urls: Sequence[str],
        texts: Sequence[bytes],
        templates: Mapping[str, str],
        nhidden: int,
    ) -> None:
        self.nhidden = nhidden
        self._keys = keys
        self._columns = columns
        self._urls = urls
        self._texts = texts
        self._templates = templates

    async def find(self, key: str) -> Reference | None:
        """Return the reference of *key*, None if there is none."""
        index = self._keys.find(key)
        return None if index is None else self._at(index)

    async def is_directory(self, key: str) -> bool:
        """Whether there are keys below *key*."""
        return self._keys.has_below(key)

    async def list(self, key: str) -> Sequence[ListedName]:
        """Return the names in the directory *key*."""
        if len(self._keys.below(key)) <= AT_ONCE:
            return self._keys.list(key)
        return await trio.to_thread.run_sync(self._keys.list, key)

    async def walk(self) -> AsyncIterator[tuple[str, Reference]]:
        """Yield all keys that are no directories, with their references."""
        for index in range(len(self._keys)):
            if not index % AT_ONCE:
                await trio.lowlevel.checkpoint()
            key = os.fsdecode(self._keys[index])
            if not self._keys.has_below(key):
                yield key, self._at(index)

    async def urls(self) -> Sequence[str]:
        """Return the URLs of all targets."""
        return await trio.to_thread.run_sync(self._all_urls)

    def _all_urls(self) -> Sequence[str]:
        return [url for raw in self._urls if isinstance(url := self._expanded(raw), str)]

    def _at(self, index: int) -> Reference:
        target, offset, nbytes = (int(column[index]) for column in self._columns)
        if target == _INLINE:
            return InlinePart(self._texts[offset])
        if target == _BROKEN:
            return BrokenPart(self._texts[offset].decode())
        url = self._expanded(self._urls[target])
        return Target(url, offset, None if nbytes == _WHOLE else nbytes) if isinstance(url, str) else url

    def _expanded(self, url: str) -> str | BrokenPart:
        if len(url) > _MAX_URL or (self._templates and _expanded_length(url, self._length_of) > _MAX_URL):
            return BrokenPart("the name of its file is too long")
        return _substitute(url, self._templates) if self._templates else url

    def _length_of(self, name: str) -> int:
        return len(self._templates[name])


class _Builder:
    """Takes references one by one, each as it is written."""

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._targets, self._offsets, self._sizes = array("q"), array("q"), array("q")
        self._urls: dict[str, int] = {}
        self._texts: list[bytes] = []
        self._nhidden = 0

    def add(self, key: str, value: object) -> None:
        """Add the reference of *key*."""
        match value:
            case str() if value.startswith(_BASE64):
                try:
                    self._inline(key, base64.b64decode(value[len(_BASE64) :], validate=True))
                except (binascii.Error, ValueError):
                    self._text(key, _BROKEN, b"its text is no base64")
            case str():
                try:
                    self._inline(key, value.encode(errors="surrogateescape"))
                except UnicodeEncodeError:
                    self._text(key, _BROKEN, b"its text has half of a surrogate pair")
            case dict():
                self._inline(key, json.dumps(value).encode())
            case [url] | [url, None, None]:
                self._target(key, target_of(url))
            case [url, offset, nbytes] if nbytes is not None:
                self._target(key, target_of(url, offset, nbytes))
            case _:
                self._text(key, _BROKEN, b"it is neither a text nor a list of URL, offset and length")

    def add_range(self, key: str, url: str, offset: int, nbytes: int) -> None:
        """Add the reference of *key* to a range whose numbers are known to be such; *url* is not empty."""
        self._add(key, self._urls.setdefault(url, len(self._urls)), offset, nbytes)

    def _target(self, key: str, target: Target | BrokenPart) -> None:
        if isinstance(target, BrokenPart):
            self._text(key, _BROKEN, target.reason.encode())
        else:
            self.add_range(key, target.url, target.offset, _WHOLE if target.nbytes is None else target.nbytes)

    def _inline(self, key: str, data: bytes) -> None:
        match inline(data):
            case InlinePart():
                self._text(key, _INLINE, data)
            case BrokenPart(reason):
                self._text(key, _BROKEN, reason.encode())

    def _text(self, key: str, kind: int, text: bytes) -> None:
        if self._add(key, kind, len(self._texts), 0):
            self._texts.append(text)

    def _add(self, key: str, target: int, offset: int, nbytes: int) -> bool:
        encoded = encoded_key(key)
        if encoded is None:
            self._nhidden += 1
            return False
        if len(self._keys) == MAX_REFERENCES:
            raise SourceError(f"it has more than {MAX_REFERENCES:,} references; as Parquet they are read in parts")
        self._keys.append(encoded)
        self._targets.append(target)
        self._offsets.append(offset)
        self._sizes.append(nbytes)
        return True

    def built(self, templates: Mapping[str, str]) -> DocumentReferences:
        """Return all of them; of several for one key, the last."""
        keys = self._keys
        order = in_order(keys)
        last = [index for i, index in enumerate(order) if i + 1 == len(order) or keys[index] != keys[order[i + 1]]]
        chosen = np.array(last, np.int64)
        columns = (self._targets, self._offsets, self._sizes)
        taken = _Columns(*(np.array(column, np.int64)[chosen] for column in columns))
        for url in self._urls if templates else ():
            _check_template(url, templates)
        shown = Keys([keys[index] for index in last])
        return DocumentReferences(shown, taken, [*self._urls], self._texts, templates, self._nhidden)


def parse_document(data: bytes | bytearray) -> DocumentReferences:
    """Return the references in a document; raises `SourceError` with what is wrong, if it has none."""
    try:
        return _parse(data.decode(errors="surrogateescape"))
    except RecursionError:
        raise SourceError("it is nested too deeply") from None
    except ValueError as error:
        raise SourceError(f"it is no valid JSON: {error}") from None


def _parse(text: str) -> DocumentReferences:
    plain, within = _Builder(), _Builder()
    others: dict[str, Any] = {}
    is_wrapped = False

    def take(key: str, at: int) -> int:
        nonlocal is_wrapped
        if key == "refs" and text[at : at + 1] == "{":
            is_wrapped = True
            return _take_members(text, at, take_within, within)
        value, end = _DECODER.raw_decode(text, at)
        if key in ("version", "templates", "gen"):
            others[key] = value
        else:
            plain.add(key, value)
        return end

    def take_within(key: str, at: int) -> int:
        value, end = _DECODER.raw_decode(text, at)
        within.add(key, value)
        return end

    end = _take_members(text, _after_white(text, 0), take, plain)
    if _after_white(text, end) != len(text):
        raise ValueError("something follows the object")
    version = others.get("version")
    if version is None and not is_wrapped:
        return plain.built({})
    if version not in (None, 1) or isinstance(version, bool):
        raise SourceError(f"its references have the version {json.dumps(version)[:40]}, and only 0 and 1 are known")
    if not is_wrapped and "gen" not in others:
        raise SourceError("it has no member `refs`")
    templates = _templates(others.get("templates"))
    for key, target in _generated(others.get("gen"), templates):
        within.add(key, target)
    return within.built(templates)


def _take_members(text: str, at: int, take: Callable[[str, int], int], builder: _Builder) -> int:
    """Call *take* for each member of the object at *at*, with key and position of its value, whose end it returns.

    Members that are ranges of files, as most are, go to *builder* instead. Returns the end of the object.
    """
    if text[at : at + 1] != "{":
        raise ValueError(f"an object is expected at character {at}")
    at = _after_white(text, at + 1)
    if text[at : at + 1] == "}":
        return at + 1
    while True:
        while (usual := _USUAL.match(text, at)) is not None and usual[2]:
            key, url, offset, nbytes = usual.groups()
            builder.add_range(key.replace("\\/", "/"), url.replace("\\/", "/"), int(offset), int(nbytes))
            at = usual.end()
        name, at = _DECODER.raw_decode(text, at)
        at = _after_white(text, at)
        if not isinstance(name, str) or text[at : at + 1] != ":":
            raise ValueError(f"a name and a colon are expected at character {at}")
        at = _after_white(text, take(name, _after_white(text, at + 1)))
        if text[at : at + 1] == "}":
            return at + 1
        if text[at : at + 1] != ",":
            raise ValueError(f"a comma is expected at character {at}")
        at = _after_white(text, at + 1)


def _after_white(text: str, at: int) -> int:
    found = _WHITE.match(text, at)
    return at if found is None else found.end()


def _templates(written: object) -> dict[str, str]:
    if written is None:
        return {}
    if not isinstance(written, dict) or not all(isinstance(value, str) for value in written.values()):
        raise SourceError("its `templates` are no object of texts")
    for name, value in written.items():
        if any(_templates_in(value)):
            raise SourceError(f"its template {name!r} contains templates, which shardfs does not evaluate: {_WAY_OUT}")
        if len(value) > _MAX_URL:
            raise SourceError(f"its template {name!r} is too long")
    return written


_WAY_OUT: Final = "write the references without templates, as kerchunk and VirtualiZarr do by default"


def _templates_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each `{{…}}` in *text* begins and ends, by one way through it."""
    begin = text.find("{{")
    while begin >= 0 and (end := text.find("}}", begin + 2)) >= 0:
        yield begin, end + 2
        begin = text.find("{{", end + 2)


def _check_template(text: str, *names: Mapping[str, object]) -> None:
    """Raise `SourceError` unless all templates in *text* are mere *names*."""
    for begin, end in _templates_in(text):
        name = _NAME.fullmatch(text, begin + 2, end - 2)
        if name is None or not any(name[1] in known for known in names):
            raise SourceError(
                f"it has the template {text[begin : min(end, begin + 80)]!r}; only names of its `templates` are put "
                f"in, and no expressions: {_WAY_OUT}"
            )


def _expanded_length(text: str, length_of: Callable[[str], int]) -> int:
    """Return how long *text* is with all templates put in, without doing so."""
    length = len(text)
    for begin, end in _templates_in(text):
        length += length_of(text[begin + 2 : end - 2].strip()) - (end - begin)
    return length


def _substitute(text: str, names: Mapping[str, object]) -> str:
    parts, behind = [], 0
    for begin, end in _templates_in(text):
        parts += [text[behind:begin], str(names[text[begin + 2 : end - 2].strip()])]
        behind = end
    return "".join([*parts, text[behind:]])


def _generated(written: object, templates: Mapping[str, str]) -> Iterator[tuple[str, list[object]]]:
    """Yield the references of the member `gen`: one for each combination of the values of its dimensions."""
    if written is None:
        return
    if not isinstance(written, list) or not all(isinstance(gen, dict) for gen in written):
        raise SourceError("its `gen` is no list of objects")
    fixed = dict(templates)
    count = nbytes = 0
    for gen in written:
        dimensions = gen.get("dimensions")
        if not isinstance(dimensions, dict):
            raise SourceError("a generator in its `gen` has no `dimensions`")
        values = {name: _values(name, dimension) for name, dimension in dimensions.items()}
        ncombinations = prod(map(len, values.values()))
        count += ncombinations
        if count > _MAX_GENERATED:
            raise SourceError(f"its `gen` makes more than {_MAX_GENERATED:,} references")
        texts = [gen.get(member) for member in ("key", "url", "offset", "length")]
        key, url, offset, length = texts
        if not isinstance(key, str) or not isinstance(url, str) or (offset is None) != (length is None):
            raise SourceError("a generator in its `gen` needs key and url, and both offset and length or neither")
        if not ncombinations:
            continue  # else all values of the other dimensions would be looked at, for nothing
        nbytes += ncombinations * _longest([str(text) for text in texts], values, templates)
        if nbytes > _MAX_GENERATED_NBYTES:
            raise SourceError(f"its `gen` makes keys and URLs of more than {_MAX_GENERATED_NBYTES // 2**20} MiB")
        for chosen in product(*values.values()):
            names: ChainMap[str, Any] = ChainMap(dict(zip(values, chosen, strict=True)), fixed)
            made = [_substitute(str(text), names) for text in texts]
            yield made[0], [made[1]] if offset is None else [made[1], _integer(made[2]), _integer(made[3])]


def _longest(texts: Sequence[str], values: Mapping[str, Sequence[object]], templates: Mapping[str, str]) -> int:
    """Return how long all *texts* of a generator are at most, with *values* put in; raises `SourceError`."""
    longest: dict[str, int] = {}

    def length_of(name: str) -> int:
        if name not in longest:
            found = values.get(name)
            each = [templates[name]] if found is None else _among_longest(found)
            longest[name] = max(len(str(value)) for value in each)
        return longest[name]

    total = 0
    for text in texts:
        if len(text) > _MAX_URL:
            raise SourceError("a key, URL or number in its `gen` is too long")
        _check_template(text, values, templates)
        length = _expanded_length(text, length_of)
        if length > _MAX_URL:
            raise SourceError("its `gen` makes a key or a URL that is too long")
        total += length
    return total


def _among_longest(values: Sequence[object]) -> Sequence[object]:
    """Return some of *values*, one of which is the longest: of numbers in order, the first and the last."""
    return (values[0], values[-1]) if isinstance(values, range) else values


def _values(name: str, dimension: object) -> Sequence[object]:
    if isinstance(dimension, list) and all(len(str(value)) <= _MAX_VALUE for value in dimension):
        return dimension
    if isinstance(dimension, dict):
        numbers = [dimension.get("start", 0), dimension.get("stop"), dimension.get("step", 1)]
        if all(isinstance(number, int) and abs(number) < 2**62 for number in numbers) and numbers[2]:
            return range(*numbers)
    raise SourceError(f"the dimension {name!r} in its `gen` is neither a list of names nor start, stop and step")


def _integer(text: str) -> object:
    return int(text) if re.fullmatch(r"\d{1,18}", text) else text
