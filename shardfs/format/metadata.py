"""`zarr.json` documents of Zarr v3: bytes to `ArrayMetadata` or `GroupMetadata`, and back to bytes.

Accepts what the specification allows and nothing else.  Members that shardfs does not interpret (fill value,
attributes, dimension names, data type) are kept as they were read.

Source: Zarr core specification 3.1, "Metadata".
"""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from shardfs.errors import MetadataError

Json = Any
Document = Mapping[str, Json]

MAX_DOCUMENT_NBYTES: Final = 32 * 2**20
MAX_NDIM: Final = 32
MAX_LENGTH: Final = 2**63 - 1
_MAX_INDENTED: Final = 32
_MAX_INDENTED_LENGTH: Final = 2**18

_ARRAY_MEMBERS: Final = frozenset(
    {
        "zarr_format",
        "node_type",
        "shape",
        "data_type",
        "chunk_grid",
        "chunk_key_encoding",
        "fill_value",
        "codecs",
    }
)
_OPTIONAL_ARRAY_MEMBERS: Final = frozenset({"attributes", "storage_transformers", "dimension_names"})
_GROUP_MEMBERS: Final = frozenset({"zarr_format", "node_type"})
_OPTIONAL_GROUP_MEMBERS: Final = frozenset({"attributes", "consolidated_metadata"})


@dataclass(frozen=True, slots=True)
class Extension:
    """A named extension point (codec, chunk grid, chunk key encoding) and its configuration.

    If it *has_configuration* it is written with one, though that is empty.
    """

    name: str
    configuration: Document
    must_understand: bool = True
    has_configuration: bool = field(default=False, compare=False)

    @classmethod
    def parse(cls, value: Json, where: str) -> "Extension":
        """Read the object form or the short-hand name of an extension; *where* names the member in messages."""
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
        """Return the long object form, without `must_understand` (tensorstore refuses it on extensions).

        An empty configuration stays where there was one: zarr-python wants it of codecs of numcodecs.
        """
        if not self.configuration and not self.has_configuration:
            return {"name": self.name}
        return {"name": self.name, "configuration": dict(self.configuration)}

    def expect(self, *allowed: str) -> None:
        """Refuse configuration members other than *allowed*: an unknown one may change what the bytes mean."""
        unknown = self.configuration.keys() - set(allowed)
        if unknown:
            raise MetadataError(f"{self.name} has unknown configuration members {sorted(unknown)}")

    def integer(self, member: str, default: int, minimum: int, maximum: int) -> int:
        """Return an integer of the configuration, *default* where there is none."""
        value = self.configuration.get(member, default)
        if type(value) is not int or not minimum <= value <= maximum:
            raise MetadataError(f"the {member} of {self.name} must be from {minimum} to {maximum}, not {brief(value)}")
        return value

    def choice(self, member: str, default: str | None, allowed: Collection[str]) -> str:
        """Return one of the *allowed* texts of the configuration, *default* where there is none."""
        value = self.configuration.get(member, default)
        if not isinstance(value, str) or value not in allowed:
            names = " or ".join(f'"{text}"' for text in allowed)
            raise MetadataError(f"the {member} of {self.name} must be {names}, not {brief(value)}")
        return value


@dataclass(frozen=True)
class ArrayMetadata:
    """A valid array document.  *document* is the whole of it; the other fields are its members, parsed."""

    document: Document
    shape: tuple[int, ...]
    chunk_grid: Extension
    chunk_key_encoding: Extension
    codecs: tuple[Extension, ...]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def is_sharded(self) -> bool:
        """Whether the array's own codec chain has a sharding codec."""
        return any(codec.name == "sharding_indexed" for codec in self.codecs)


@dataclass(frozen=True)
class GroupMetadata:
    """A valid group document."""

    document: Document


def parse_json(data: bytes) -> Json:
    """Decode one JSON text.

    Bare `NaN` and `Infinity` are accepted, as Python programs write them into attributes.  A number that a double
    cannot hold is refused, because it could not be written out again.
    """
    if len(data) > MAX_DOCUMENT_NBYTES:
        raise MetadataError(f"the document has {len(data)} bytes, more than {MAX_DOCUMENT_NBYTES}")
    if not data:
        raise MetadataError("the document is empty")
    try:
        return json.loads(data.decode(), parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise MetadataError(f"the document is not valid JSON: {error}") from None


def encode_json(document: Json) -> bytes:
    """Encode a document as JSON text, indented unless it is long, or nesting would make that many times as long.

    It is UTF-8: netCDF-C takes an escaped character for the letters of its escape.  Only half a pair of surrogates,
    which UTF-8 has not, stays one.
    """
    try:
        text = json.dumps(document, ensure_ascii=False)
        if len(text) <= _MAX_INDENTED_LENGTH and not _is_deeper(document, _MAX_INDENTED):
            text = json.dumps(document, indent=2, ensure_ascii=False)
        return text.encode(errors="backslashreplace") + b"\n"
    except RecursionError:
        raise MetadataError("the document is nested too deeply") from None


def parse_document(data: bytes) -> ArrayMetadata | GroupMetadata:
    """Decode and check the bytes of a `zarr.json`; raise `MetadataError` with the reason if it is not valid."""
    return parse_node(parse_json(data))


def parse_node(document: Json) -> ArrayMetadata | GroupMetadata:
    """Check a decoded document, or a copy of one in consolidated metadata."""
    if not isinstance(document, dict):
        raise MetadataError(f"the document must be an object, not {brief(document)}")
    zarr_format = document.get("zarr_format")
    if type(zarr_format) is not int or zarr_format != 3:
        raise MetadataError(f"zarr_format must be 3, not {brief(zarr_format)}")
    match document.get("node_type"):
        case "array":
            return _parse_array(document)
        case "group":
            _check_members(document, _GROUP_MEMBERS, _OPTIONAL_GROUP_MEMBERS)
            return GroupMetadata(document)
        case other:
            raise MetadataError(f'node_type must be "array" or "group", not {brief(other)}')


def parse_array(document: Json) -> ArrayMetadata:
    """Check a decoded document, which has to be that of an array."""
    node = parse_node(document)
    if not isinstance(node, ArrayMetadata):
        raise MetadataError("the document is not one of an array")
    return node


def parse_group(document: Json) -> GroupMetadata:
    """Check a decoded document, which has to be that of a group."""
    node = parse_node(document)
    if not isinstance(node, GroupMetadata):
        raise MetadataError("the document is not one of a group")
    return node


def parse_lengths(value: Json, where: str, *, minimum: int, ndim: int | None = None) -> tuple[int, ...]:
    """Read a list of lengths, each an integer of at least *minimum*; *ndim* is the length that the list must have."""
    if not isinstance(value, list):
        raise MetadataError(f"{where} must be a list of integers, not {brief(value)}")
    if ndim is not None and len(value) != ndim:
        raise MetadataError(f"{where} has {len(value)} elements, the array has {ndim} axes")
    return tuple(parse_length(element, where, minimum=minimum) for element in value)


def parse_length(value: Json, where: str, *, minimum: int) -> int:
    """Read one length; a boolean or a float is none."""
    if type(value) is not int or value < minimum:
        raise MetadataError(f"{where} must hold integers of at least {minimum}, not {brief(value)}")
    if value > MAX_LENGTH:
        raise MetadataError(f"{where} has a length of {value.bit_length()} bits, more than 63")
    return value


def parse_codecs(value: Json, where: str) -> tuple[Extension, ...]:
    """Read a list of codecs."""
    if not isinstance(value, list):
        raise MetadataError(f"{where} must be a list of codecs, not {brief(value)}")
    return tuple(Extension.parse(codec, f"{where}[{i}]") for i, codec in enumerate(value))


def brief(value: Json) -> str:
    """Show a value of a document in a message, cut to a length that a log line can bear."""
    text = repr(value) if not isinstance(value, dict | list) else f"{type(value).__name__} of {len(value)}"
    return text if len(text) <= 60 else text[:57] + "…"


def _parse_array(document: dict[str, Json]) -> ArrayMetadata:
    _check_members(document, _ARRAY_MEMBERS, _OPTIONAL_ARRAY_MEMBERS)
    shape = parse_lengths(document["shape"], "shape", minimum=0)
    if len(shape) > MAX_NDIM:
        raise MetadataError(f"the array has {len(shape)} axes, more than {MAX_NDIM}")
    Extension.parse(document["data_type"], "data_type")
    if not isinstance(document.get("storage_transformers", []), list):
        raise MetadataError(f"storage_transformers must be a list, not {brief(document['storage_transformers'])}")
    names = document.get("dimension_names")
    if names is not None:
        if not isinstance(names, list) or not all(name is None or isinstance(name, str) for name in names):
            raise MetadataError("dimension_names must be a list of names and nulls")
        if len(names) != len(shape):
            raise MetadataError(f"dimension_names has {len(names)} elements, the array has {len(shape)} axes")
    return ArrayMetadata(
        document=document,
        shape=shape,
        chunk_grid=Extension.parse(document["chunk_grid"], "chunk_grid"),
        chunk_key_encoding=Extension.parse(document["chunk_key_encoding"], "chunk_key_encoding"),
        codecs=parse_codecs(document["codecs"], "codecs"),
    )


def _check_members(document: dict[str, Json], required: frozenset[str], optional: frozenset[str]) -> None:
    missing = required - document.keys()
    if missing:
        raise MetadataError(f"required members are missing: {', '.join(sorted(missing))}")
    for name in document.keys() - required - optional:
        member = document[name]
        if not (isinstance(member, dict) and member.get("must_understand") is False):
            raise MetadataError(f"unknown member {name!r}, which does not say must_understand: false")
    if not isinstance(document.get("attributes", {}), dict):
        raise MetadataError("attributes must be an object")


def _is_deeper(value: Json, depth: int) -> bool:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth == 0 or any(_is_deeper(child, depth - 1) for child in children)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:40]} is out of range")
    return value
