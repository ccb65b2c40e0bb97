"""JSON, and the values in documents: lengths, names, extensions with their configuration.

Source: Zarr core specification 3.1, "Metadata".
"""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from shardfs.errors import MetadataError, UsageError

Json = Any
Document = Mapping[str, Json]

MAX_DOCUMENT_NBYTES: Final = 32 * 2**20
MAX_NDIM: Final = 32
MAX_LENGTH: Final = 2**63 - 1
SHARDING_1_1: Final = "sharding-1.1"
"""The draft of version 1.1 of `sharding_indexed`: inner chunks need not divide a shard.

The last inner chunk of a shard is cut off at its end then. No released library reads or writes such arrays.
"""
DRAFTS: Final = (SHARDING_1_1,)
"""The drafts of the specification that are read if a user asks for it."""
_MAX_INDENTED: Final = 32
_MAX_INDENTED_LENGTH: Final = 2**18


def drafts_of(draft: str | None) -> tuple[str, ...]:
    """Return the drafts that are read where a user asks for *draft*, None for none.

    Raises `UsageError` if there is no such draft.
    """
    if draft not in (None, *DRAFTS):
        raise UsageError(f"there is no draft {draft!r}: choose {DRAFTS[0]}")
    return () if draft is None else (draft,)


@dataclass(frozen=True, slots=True)
class Extension:
    """A named extension point (codec, chunk grid, chunk key encoding) and its configuration.

    *has_configuration*: it is written with its configuration even if that is empty.
    """

    name: str
    configuration: Document
    must_understand: bool = True
    has_configuration: bool = field(default=False, compare=False)

    @classmethod
    def parse(cls, value: Json, where: str) -> "Extension":
        """Parse the object form or the short name of an extension; *where* names the member in messages."""
        if isinstance(value, str):
            return cls(value, {})
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            raise MetadataError(f"{where} must be a name or an object with a name, not {brief(value)}")
        unknown = value.keys() - {"name", "configuration", "must_understand"}
        if unknown:
            raise MetadataError(f"{where} has unknown members {sorted(unknown)}")
        configuration = value.get("configuration", {})
        if not isinstance(configuration, dict):
            raise MetadataError(f"the configuration of {where} must be an object, not {brief(configuration)}")
        must_understand = value.get("must_understand", True)
        if not isinstance(must_understand, bool):
            raise MetadataError(f"must_understand of {where} must be true or false")
        return cls(value["name"], configuration, must_understand, "configuration" in value)

    def to_json(self) -> dict[str, Json]:
        """Return the long object form, without `must_understand`, which tensorstore rejects on extensions.

        An empty configuration is kept: zarr-python requires one for codecs of numcodecs.
        """
        if not self.configuration and not self.has_configuration:
            return {"name": self.name}
        return {"name": self.name, "configuration": dict(self.configuration)}

    def expect(self, *allowed: str) -> None:
        """Reject configuration members other than *allowed*: an unknown one may change what the bytes mean."""
        unknown = self.configuration.keys() - set(allowed)
        if unknown:
            raise MetadataError(f"{self.name} has unknown configuration members {sorted(unknown)}")

    def integer(self, member: str, default: int, minimum: int, maximum: int) -> int:
        """Return an integer of the configuration, *default* if it is missing."""
        value = self.configuration.get(member, default)
        if isinstance(value, float) and value.is_integer():  # as JavaScript writes it, and tensorstore reads it
            value = int(value)
        if type(value) is not int or not minimum <= value <= maximum:
            raise MetadataError(f"the {member} of {self.name} must be from {minimum} to {maximum}, not {brief(value)}")
        return value

    def lengths(self, member: str, ndim: int, minimum: int = 1) -> tuple[int, ...]:
        """Return a list of *ndim* lengths of the configuration."""
        where = f"{self.name}: {member}"
        return parse_lengths(self.configuration.get(member), where, minimum=minimum, ndim=ndim)

    def choice(self, member: str, default: str | None, allowed: Collection[str]) -> str:
        """Return a configuration value that is one of *allowed*, *default* if it is missing."""
        value = self.configuration.get(member, default)
        if not isinstance(value, str) or value not in allowed:
            names = " or ".join(f'"{text}"' for text in allowed)
            raise MetadataError(f"the {member} of {self.name} must be {names}, not {brief(value)}")
        return value


def attributes_of(document: Document) -> dict[str, Json]:
    """Return the attributes of a node; it has none if they are missing or null."""
    attributes: dict[str, Json] | None = document.get("attributes")
    return {} if attributes is None else attributes


def is_version(value: Json, version: int) -> bool:
    """Whether *value* names this version: 3.0 is 3, because JSON has one kind of numbers."""
    return type(value) in (int, float) and bool(value == version)


def decode_text(data: bytes) -> str:
    """Return a JSON text in UTF-8, UTF-16 or UTF-32, without its byte order mark; raises `UnicodeDecodeError`."""
    return data.decode(json.detect_encoding(data))


def parse_json(data: bytes) -> Json:
    """Parse a JSON text, encoded in any way that `decode_text` knows; raises `MetadataError` for what is none.

    Bare `NaN` and `Infinity` are accepted, since Python programs write them into attributes. A number that does not fit
    a double is rejected, because it could not be written again.
    """
    if len(data) > MAX_DOCUMENT_NBYTES:
        raise MetadataError(f"the document has {len(data)} bytes, more than {MAX_DOCUMENT_NBYTES}")
    if not data:
        raise MetadataError("the document is empty")
    try:
        return json.loads(decode_text(data), parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise MetadataError(f"the document is not valid JSON: {error}") from None


def encode_json(document: Json) -> bytes:
    """Encode a document as JSON in UTF-8, indented unless it is large: what can be read must not become too large.

    Characters are not escaped, because netCDF-C does not decode escapes. Only unpaired surrogates, which UTF-8 cannot
    encode, are.
    """
    try:
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        if len(text) <= _MAX_INDENTED_LENGTH and not _is_deeper(document, _MAX_INDENTED):
            text = json.dumps(document, indent=2, ensure_ascii=False)
        return text.encode(errors="backslashreplace") + b"\n"
    except RecursionError:
        raise MetadataError("the document is nested too deeply") from None


def parse_lengths(value: Json, where: str, *, minimum: int, ndim: int | None = None) -> tuple[int, ...]:
    """Parse a list of lengths, each at least *minimum*; *ndim* is the required number of them."""
    if not isinstance(value, list):
        raise MetadataError(f"{where} must be a list of integers, not {brief(value)}")
    if ndim is not None and len(value) != ndim:
        raise MetadataError(f"{where} has {len(value)} elements, the array has {ndim} axes")
    return tuple(parse_length(element, where, minimum=minimum) for element in value)


def parse_length(value: Json, where: str, *, minimum: int) -> int:
    """Parse one length; booleans and floats are rejected."""
    if type(value) is not int or value < minimum:
        raise MetadataError(f"{where} must hold integers of at least {minimum}, not {brief(value)}")
    if value > MAX_LENGTH:
        raise MetadataError(f"{where} has a length of {value.bit_length()} bits, more than 63")
    return value


def parse_codecs(value: Json, where: str) -> tuple[Extension, ...]:
    """Parse a list of codecs."""
    if not isinstance(value, list):
        raise MetadataError(f"{where} must be a list of codecs, not {brief(value)}")
    return tuple(Extension.parse(codec, f"{where}[{i}]") for i, codec in enumerate(value))


def brief(value: Json) -> str:
    """Return a value of a document for a message, cut to a reasonable length."""
    text = repr(value) if not isinstance(value, dict | list) else f"{type(value).__name__} of {len(value)}"
    return text if len(text) <= 60 else text[:57] + "…"


def _is_deeper(value: Json, depth: int) -> bool:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth == 0 or any(_is_deeper(child, depth - 1) for child in children)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:40]} is out of range")
    return value


def canonical(value: Json) -> str:
    """Return a text that is the same for equal JSON values; unlike in Python, true is not 1, and NaN equals NaN."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    except RecursionError:
        raise MetadataError("the document is nested too deeply") from None
