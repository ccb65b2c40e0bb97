"""`zarr.json` documents of Zarr v3: bytes to `ArrayMetadata` or `GroupMetadata`, and back to bytes.

Accepts what the specification allows and nothing else.  Members that shardfs does not interpret (fill value,
attributes, dimension names, data type) are kept as they were read.

Source: Zarr core specification 3.1, "Metadata".
"""

from dataclasses import dataclass
from typing import Final

from shardfs.errors import MetadataError
from shardfs.format.document import MAX_NDIM, Document, Extension, Json, brief, parse_codecs, parse_json, parse_lengths
from shardfs.format.indexed import INDEXED, is_indexed, sharding_of

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


@dataclass(frozen=True)
class ArrayMetadata:
    """A valid array document.  *document* is the whole of it; the other fields are its members, parsed.

    Of an array that a *storage_transformer* shards they are grid and codecs that say the same without it.
    """

    document: Document
    shape: tuple[int, ...]
    chunk_grid: Extension
    chunk_key_encoding: Extension
    codecs: tuple[Extension, ...]
    storage_transformer: str | None = None

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def is_sharded(self) -> bool:
        """Whether inner chunks lie in shards, by a sharding codec in the array's own chain or a storage transformer."""
        return any(codec.name == "sharding_indexed" for codec in self.codecs)


@dataclass(frozen=True)
class GroupMetadata:
    """A valid group document."""

    document: Document


Metadata = ArrayMetadata | GroupMetadata


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


def _parse_array(document: dict[str, Json]) -> ArrayMetadata:
    _check_members(document, _ARRAY_MEMBERS, _OPTIONAL_ARRAY_MEMBERS)
    shape = parse_lengths(document["shape"], "shape", minimum=0)
    if len(shape) > MAX_NDIM:
        raise MetadataError(f"the array has {len(shape)} axes, more than {MAX_NDIM}")
    Extension.parse(document["data_type"], "data_type")
    transformers = document.get("storage_transformers", [])
    if not isinstance(transformers, list):
        raise MetadataError(f"storage_transformers must be a list, not {brief(transformers)}")
    names = document.get("dimension_names")
    if names is not None:
        if not isinstance(names, list) or not all(name is None or isinstance(name, str) for name in names):
            raise MetadataError("dimension_names must be a list of names and nulls")
        if len(names) != len(shape):
            raise MetadataError(f"dimension_names has {len(names)} elements, the array has {len(shape)} axes")
    grid = Extension.parse(document["chunk_grid"], "chunk_grid")
    key_encoding = Extension.parse(document["chunk_key_encoding"], "chunk_key_encoding")
    codecs = parse_codecs(document["codecs"], "codecs")
    if not is_indexed(transformers):
        return ArrayMetadata(document, shape, grid, key_encoding, codecs)
    grid, sharding = sharding_of(transformers, shape, grid, document["codecs"])
    return ArrayMetadata(document, shape, grid, key_encoding, (sharding,), INDEXED)


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
