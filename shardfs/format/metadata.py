"""`zarr.json` documents of Zarr v3: from bytes to `ArrayMetadata` or `GroupMetadata`, and what they mean.

Accepts what the specification allows, and what libraries read beyond it: null for a missing optional member, 3.0 for 3.
Members that shardfs does not interpret (fill value,
attributes, dimension names, data type) are kept as they were read.

The normal form of a document is what it says about stored bytes, independent of spelling: libraries use short or long
names, spell out defaults or omit them, and drop what does not matter for the data type. Members of a codec that only
control the encoder, such as a compression level, do not belong to it, because encoded bytes can be decoded without
them. The fingerprint of an array tells whether a location in a shard, and the bytes for it, still mean the same.

Sources: Zarr core specification 3.1, "Metadata"; specifications of the codecs; zarr-python 3.1 and tensorstore 0.1 as
observed.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from shardfs.errors import MetadataError
from shardfs.format.codecs import SHARDING, parse_chain, readable
from shardfs.format.document import (
    MAX_NDIM,
    Document,
    Extension,
    Json,
    attributes_of,
    brief,
    canonical,
    is_version,
    parse_codecs,
    parse_json,
    parse_lengths,
)
from shardfs.format.dtype import DataType, item_nbytes
from shardfs.format.grid import ChunkKeyEncoding, parse_coordinate
from shardfs.format.indexed import INDEXED, is_indexed, sharding_of
from shardfs.format.sharding import MAX_LEVELS

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
    """A valid array document: *document* is all of it; the other fields are its parsed members.

    For an array sharded by a *storage_transformer*, they are the equivalent grid and codecs.
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
        """Whether the array is sharded, by a codec of its own chain or by a storage transformer."""
        return any(codec.name == "sharding_indexed" for codec in self.codecs)

    def has_shards_at(self, name: str) -> bool:
        """Whether *name*, in its directory, is a shard or leads to shards; of unknown keys, what others begin with."""
        try:
            return ChunkKeyEncoding.parse(self.chunk_key_encoding).begins(name, self.ndim)
        except MetadataError:
            return name == "c" or parse_coordinate(name) is not None


@dataclass(frozen=True)
class GroupMetadata:
    """A valid group document; not *is_as_stored* if copies of other documents in it were replaced or skipped."""

    document: Document
    is_as_stored: bool = True


Metadata = ArrayMetadata | GroupMetadata


def parse_document(data: bytes) -> ArrayMetadata | GroupMetadata:
    """Parse and check the bytes of a `zarr.json`; raises `MetadataError` with the reason if it is invalid."""
    return parse_node(parse_json(data))


def parse_node(document: Json) -> ArrayMetadata | GroupMetadata:
    """Check a parsed document, or a copy of one in consolidated metadata."""
    if not isinstance(document, dict):
        raise MetadataError(f"the document must be an object, not {brief(document)}")
    zarr_format = document.get("zarr_format")
    if not is_version(zarr_format, 3):
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
    """Check a parsed document, which must be an array's."""
    node = parse_node(document)
    if not isinstance(node, ArrayMetadata):
        raise MetadataError("the document is not one of an array")
    return node


def parse_group(document: Json) -> GroupMetadata:
    """Check a parsed document, which must be a group's."""
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
    transformers = document.get("storage_transformers")
    if transformers is None:
        transformers = []
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
    if not isinstance(attributes_of(document), dict):
        raise MetadataError("attributes must be an object")


ENCODER_MEMBERS: Final[dict[str, frozenset[str]]] = {
    "gzip": frozenset({"level"}),
    "zstd": frozenset({"level", "checksum"}),
    "blosc": frozenset({"cname", "clevel", "shuffle", "typesize", "blocksize"}),
    "zlib": frozenset({"level"}),
    "bz2": frozenset({"level"}),
    "lz4": frozenset({"acceleration"}),
    "lzma": frozenset({"preset"}),
}
"""Members of codecs, of Zarr v3 and of numcodecs, that only control the encoder."""

FINGERPRINT_NBYTES: Final = 16
_ENCODER_DEFAULTS: Final[dict[str, dict[str, Json]]] = {"zstd": {"checksum": False}, "blosc": {"blocksize": 0}}
_DATA_TYPE_ALIASES: Final = {"bytes": "variable_length_bytes", "structured": "struct"}
_STRUCTS: Final = frozenset({"struct", "structured"})
"""zarr-python before 3.4 calls the type `structured`, and writes its fields as pairs."""

_GRID_ALIASES: Final = {"regular_bounded": "zarrs.regular_bounded"}
_INDEX_DATA_TYPE: Final = "uint64"


def normal_data_type(data_type: Json) -> Json:
    """Return the normal form of a `data_type` member."""
    return _normal_data_type(data_type, 0)


def _normal_data_type(data_type: Json, depth: int) -> Json:
    extension = Extension.parse(data_type, "data_type")
    configuration = dict(extension.configuration)
    fields = configuration.get("fields")
    if extension.name in _STRUCTS and isinstance(fields, list) and depth < MAX_LEVELS:
        configuration["fields"] = [_normal_field(field, depth + 1) for field in fields]
    return {"name": _DATA_TYPE_ALIASES.get(extension.name, extension.name), "configuration": configuration}


def _normal_field(field: Json, depth: int) -> Json:
    """Return name and type of a field of a struct, as a pair or as an object; of what is none, what is written."""
    match field:
        case [str() as name, data_type] | {"name": str() as name, "data_type": data_type}:
            with suppress(MetadataError):
                return [name, _normal_data_type(data_type, depth)]
    return field


def normal_key_encoding(encoding: Extension) -> Json:
    """Return the normal form of a chunk key encoding; an unknown one as it is."""
    try:
        return ChunkKeyEncoding.parse(encoding).to_json()
    except MetadataError:
        return encoding.to_json()


def normal_codecs(codecs: Sequence[Extension], data_type: Json, depth: int = 0) -> list[Json]:
    """Return the normal form of a codec chain for *data_type*, without members that only control the encoder."""
    try:
        chain = parse_chain(codecs, "codecs")
    except MetadataError:
        chain = tuple(codecs)
    normal: list[Json] = []
    for codec in chain:
        members = ENCODER_MEMBERS.get(codec.name, frozenset())
        configuration = {name: value for name, value in codec.configuration.items() if name not in members}
        if codec.name == "bytes":
            # After an unknown codec, elements may have another type.
            is_known = all(before["name"] == "transpose" for before in normal)
            configuration = _normal_bytes(configuration, data_type if is_known else None)
        elif codec.name == SHARDING and depth < MAX_LEVELS:
            configuration = _normal_sharding(configuration, data_type, depth + 1)
        normal.append({"name": codec.name, "configuration": configuration})
    return normal


def are_same_codecs(one: Sequence[Extension], other: Sequence[Extension], data_type: Json) -> bool:
    """Whether two codec chains for *data_type* mean the same, and control the encoder alike."""
    normal = [canonical(normal_codecs(codecs, data_type)) for codecs in (one, other)]
    return normal[0] == normal[1] and all(map(_is_encoded_alike, one, other))


def _is_encoded_alike(one: Extension, other: Extension) -> bool:
    """Whether two codecs of one name control the encoder alike; only members that both have are compared."""
    defaults = _ENCODER_DEFAULTS.get(one.name, {})
    mine, its = ({**defaults, **_readable(codec)} for codec in (one, other))
    members = set(ENCODER_MEMBERS.get(one.name, ()))
    if mine.get("shuffle") == its.get("shuffle") == "noshuffle":
        members.discard("typesize")
    return all(canonical(mine[name]) == canonical(its[name]) for name in members & mine.keys() & its.keys())


def _readable(codec: Extension) -> dict[str, Json]:
    """Return the members that a codec states, in one spelling: 5.0 is 5."""
    with suppress(MetadataError):
        usual = readable(codec)
        return {name: usual.get(name, value) for name, value in codec.configuration.items()}
    return dict(codec.configuration)


def _normal_bytes(configuration: dict[str, Json], data_type: Json) -> dict[str, Json]:
    known = DataType.find(data_type) if item_nbytes(data_type) else None
    # Structs count as having a byte order: the fingerprints in existing journals were made so.
    if known is not None and (known.nbytes == 1 or (known.dtype.names is None and not known.has_byte_order)):
        return {name: value for name, value in configuration.items() if name != "endian"}
    return {"endian": "little", **configuration}  # as zarr-python reads a chain that does not say it


def _normal_sharding(configuration: dict[str, Json], data_type: Json, depth: int) -> dict[str, Json]:
    normal = {"index_location": "end", **configuration}
    try:
        normal["codecs"] = normal_codecs(parse_codecs(configuration.get("codecs"), "codecs"), data_type, depth)
        index_codecs = parse_codecs(configuration.get("index_codecs"), "index_codecs")
        normal["index_codecs"] = normal_codecs(index_codecs, _INDEX_DATA_TYPE, depth)
    except MetadataError:
        return configuration
    return normal


def fingerprint(array: ArrayMetadata) -> bytes:
    """Return 16 bytes that differ for arrays whose chunks are in other locations or whose bytes mean something else.

    They depend on chunk grid, chunk key encoding, codecs and data type, but not on their spelling, the shape, or
    anything else. Raises `MetadataError` for a document that is nested too deeply.
    """
    data_type, grid = array.document["data_type"], array.chunk_grid
    text = canonical(
        [
            {"name": _GRID_ALIASES.get(grid.name, grid.name), "configuration": dict(grid.configuration)},
            normal_key_encoding(array.chunk_key_encoding),
            normal_codecs(array.codecs, data_type),
            normal_data_type(data_type),
        ]
    )
    return hashlib.blake2b(text.encode(), digest_size=FINGERPRINT_NBYTES).digest()
