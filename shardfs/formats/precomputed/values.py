"""Values by 64-bit ids, in shards: meshes, skeletons and annotations of neuroglancer.

A directory has an `info`, which says what is in it, or in directories below it, and how that is sharded. There is no
grid of elements; to find a value, its id is the one coordinate of a grid as large as there are ids. Values are shown as
files named after their ids, and `info` without sharding, as the same format has them that is not sharded.

Source: neuroglancer, "Meshes", "Skeletons" and "Annotations" of the precomputed data source.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shardfs.errors import CorruptionError, MetadataError
from shardfs.format.document import Document, Json, brief, canonical, encode_json, parse_lengths
from shardfs.format.foreign import Foreign, ForeignChunks, ValuePart
from shardfs.format.grid import ChunkGrid, ChunkKeyEncoding
from shardfs.format.members import Buffer
from shardfs.format.sharding import MAX_DECODED_NBYTES, Coordinates, Coords
from shardfs.formats.precomputed.uint64_sharded import UINT64_SHARDED, IdGrid, Ids, ShardNames, Uint64Sharding
from shardfs.formats.precomputed.volume import (
    FORMAT,
    INFO,
    are_codes,
    code_bits,
    is_path_below,
    morton_code,
    positions_of,
)

_NIDS: Final = 2**64
_NUMBER: Final = re.compile("0|[1-9][0-9]{0,19}")
_CELL: Final = re.compile("(?:0|[1-9][0-9]{0,18})(?:_(?:0|[1-9][0-9]{0,18}))*")
_MAX_RANK: Final = 32
_USUAL_COUNT: Final = 1024
_HEADER_NBYTES: Final = 28  # of a manifest: the shape of a chunk, the origin, and the number of levels of detail
_LEVEL_NBYTES: Final = 20  # for each level: its scale, an offset of three numbers, and the number of fragments
_PLACE_NBYTES: Final = 12  # of a fragment: its position
_SIZE_NBYTES: Final = 4


@dataclass(frozen=True, slots=True)
class IdNames:
    """The names of files: an id, or the cell of a grid of *cells* of which that is the code, and a suffix."""

    suffixes: tuple[tuple[str, ValuePart], ...]
    cells: Coords = ()

    def stems(self, ids: npt.NDArray[np.integer[Any]]) -> list[str]:
        """Return the names of values, without suffixes."""
        if not self.cells:
            return [str(value_id) for value_id in ids.tolist()]
        return ["_".join(map(str, cell)) for cell in positions_of(ids.astype(np.uint64), self.cells).tolist()]

    def decode(self, name: str) -> tuple[int, ValuePart] | None:
        """Return the id and the part that the file *name* shows; None if no file can have the name."""
        for suffix, part in self.suffixes:
            if name.endswith(suffix) and (value_id := self._id_of(name.removesuffix(suffix))) is not None:
                return value_id, part
        return None

    def _id_of(self, stem: str) -> int | None:
        if not self.cells:
            value_id = int(stem) if _NUMBER.fullmatch(stem) else _NIDS
            return value_id if value_id < _NIDS else None
        if len(stem) > 20 * _MAX_RANK or not _CELL.fullmatch(stem):
            return None
        cell = tuple(map(int, stem.split("_")))
        is_within = len(cell) == len(self.cells) and all(i < n for i, n in zip(cell, self.cells, strict=True))
        return morton_code(cell, self.cells) if is_within else None


@dataclass(frozen=True, slots=True)
class ValueGrid(IdGrid):
    """The ids of values, as coordinates along one axis; *names* are those of their files."""

    names: IdNames

    @classmethod
    def of(cls, sharding: Uint64Sharding, names: IdNames) -> "ValueGrid":
        """Describe values in shards."""
        shards = ChunkGrid.regular((sharding.nshards,), (1,))
        return cls(shards, (1,), sharding.levels(MAX_DECODED_NBYTES), (_NIDS,), 0, sharding, names)

    @property
    def has_data_before(self) -> bool:
        """Whether data lie directly before each value, and belong to it."""
        return any(part is ValuePart.BEFORE for _, part in self.names.suffixes)

    def nbytes_before(self, value: Buffer) -> int:
        """Return how many bytes before *value* belong to it; raises `CorruptionError` if it does not say so."""
        return fragments_nbytes(value) if self.has_data_before else 0

    def id_of(self, coords: Coords) -> int:
        """Return the id, which is the coordinate."""
        return coords[0]

    def coordinates_of(self, ids: Ids) -> Coordinates:
        """Return *ids* as rows."""
        return ids.reshape(-1, 1)

    def have_chunks(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Return which of *ids* may have a value: all, but for the codes of cells outside their grid."""
        return are_codes(ids, self.names.cells) if self.names.cells else np.ones(len(ids), np.bool_)

    def chunk_name(self, coords: Coords, keys: ChunkKeyEncoding) -> str:
        """Return the name of the value in *coords*."""
        return self.names.stems(np.array(coords, np.uint64))[0]

    @property
    def nchunks(self) -> int:
        """0: nobody knows how many values there may be."""
        return 0

    def nchunks_of(self, shard: Coords) -> int:
        """Return a usual number of values in a shard, as nobody knows how many there may be."""
        return _USUAL_COUNT

    def nelements_of(self, shard: Coords) -> int:
        """Return 0: there are no elements."""
        return 0


_SUFFIXES: Final[dict[str, tuple[tuple[str, ValuePart], ...]]] = {
    "neuroglancer_multilod_draco": ((".index", ValuePart.VALUE), ("", ValuePart.BEFORE)),
    "neuroglancer_skeletons": (("", ValuePart.VALUE),),
}
_KINDS: Final = {
    "neuroglancer_multilod_draco": "multi-resolution meshes",
    "neuroglancer_skeletons": "skeletons",
}
_ANNOTATIONS: Final = "neuroglancer_annotations_v1"
_MAX_INDEXES: Final = 1000  # an `info` with more is that of no annotations
_PLAIN: Final = (("", ValuePart.VALUE),)
_PLAIN_NAMES: Final = IdNames(_PLAIN)
_NO_FORM: Final = "meshes, skeletons and annotations have no form in Zarr"


def parse_collection(document: Json) -> Foreign | None:
    """Return what an `info` says; None if it is not that of values by id, or none of them are sharded."""
    if not isinstance(document, dict):
        return None
    kind = document.get("@type")
    if kind == _ANNOTATIONS:
        return _parse_annotations(document)
    if not isinstance(kind, str) or kind not in _KINDS or document.get("sharding") is None:
        return None
    values = _parse_values(_KINDS[kind], document["sharding"], _SUFFIXES[kind])
    shown = document if values.reason is not None else _without_sharding(document)
    return replace(values, describing=INFO, documents={INFO: encode_json(shown)})


def directories_of(document: Document) -> list[str]:
    """Return the directories that an `info` names for values by id, sharded or not; "" is its own."""
    if document.get("@type") == _ANNOTATIONS:
        keys = [_key_of(index) for _, index, _ in _indexes(document)]
        return [key for key in keys if key is not None and is_path_below(key)]
    return [""] if document.get("@type") in (*_KINDS, "neuroglancer_legacy_mesh") else []


def _parse_annotations(document: Document) -> Foreign | None:
    members = list(_indexes(document))
    if len(members) > _MAX_INDEXES:
        return None
    keys = [_key_of(index) for _, index, _ in members]
    values: dict[str, Foreign] = {}
    for key, (kind, index, cells) in zip(keys, members, strict=True):
        if key is not None and index.get("sharding") is not None and is_path_below(key):
            if keys.count(key) > 1:
                values[key] = _values(kind, reason=f"several indexes have the key {brief(key)}")
            else:
                values[key] = _parse_values(kind, index["sharding"], _PLAIN, cells)
    if not values:
        return None

    def shown(index: Json) -> Json:
        found = values.get(_key_of(index) or "") if isinstance(index, dict) else None
        return _without_sharding(index) if found is not None and found.reason is None else index

    changed: dict[str, Json] = {"by_id": shown(document.get("by_id"))}
    for name in ("relationships", "spatial"):
        changed[name] = [shown(index) for index in _members(document, name)]
    text = encode_json({name: changed.get(name, value) for name, value in document.items()})
    return Foreign(
        format=FORMAT,
        kind="annotations",
        describing=INFO,
        documents={INFO: text},
        below=values,
        why_not=_NO_FORM,
    )


def _indexes(document: Document) -> Iterator[tuple[str, Document, Json]]:
    """Yield the indexes of annotations: in words what each is, its member of *document*, and the shape of its grid."""
    if isinstance(document.get("by_id"), dict):
        yield "annotations by id", document["by_id"], None
    for name, kind in (("relationships", "annotations by related object"), ("spatial", "annotations by cell")):
        for index in _members(document, name):
            if isinstance(index, dict):
                yield kind, index, index.get("grid_shape", []) if name == "spatial" else None


def _key_of(index: Document) -> str | None:
    key = index.get("key")
    return key.rstrip("/") if isinstance(key, str) else None


def _members(document: Document, name: str) -> list[Json]:
    members = document.get(name)
    return members if isinstance(members, list) else []


def _without_sharding(document: Document) -> Document:
    return {name: value for name, value in document.items() if name != "sharding"}


def _parse_values(
    kind: str, specification: Json, suffixes: tuple[tuple[str, ValuePart], ...], grid_shape: Json = None
) -> Foreign:
    try:
        sharding = Uint64Sharding.parse(specification)
        cells = _parse_cells(grid_shape) if grid_shape is not None else ()
    except MetadataError as error:
        return _values(kind, reason=str(error))
    identity = canonical([kind, sharding.__dict__, cells])
    fingerprint = blake2b(identity.encode(), digest_size=16).digest()
    grid = ValueGrid.of(sharding, IdNames(suffixes, cells))
    chunks = ForeignChunks(grid, ShardNames.of(sharding), {"data_type": "uint8"}, (), fingerprint)
    return _values(kind, chunks, grid.names)


def _values(
    kind: str, chunks: ForeignChunks | None = None, names: IdNames | None = None, *, reason: str | None = None
) -> Foreign:
    """Return values by id, or without *chunks* the *reason* why they are shown as they are stored."""
    facts = {"values": kind, "sharded": True, "shard_type": UINT64_SHARDED}
    return Foreign(
        format=FORMAT,
        kind=kind,
        chunks=chunks,
        names=names or _PLAIN_NAMES,
        reason=reason,
        why_not=_NO_FORM,
        facts=facts,
    )


def _parse_cells(grid_shape: Json) -> Coords:
    cells = parse_lengths(grid_shape, "grid_shape", minimum=1)
    if not 1 <= len(cells) <= _MAX_RANK:
        raise MetadataError(f"grid_shape has {len(cells)} axes, not 1 to {_MAX_RANK}")
    if code_bits(cells) > 64:
        raise MetadataError("the codes of cells of grid_shape have more than 64 bits")
    return cells


def fragments_nbytes(manifest: Buffer) -> int:
    """Return the size of all fragments of a mesh, which lie directly before its *manifest*.

    Raises `CorruptionError` if the manifest ends before it has named all of them.
    """
    if len(manifest) >= _HEADER_NBYTES:
        nlevels = int(np.frombuffer(manifest, "<u4", 1, _HEADER_NBYTES - 4)[0])
        start = _HEADER_NBYTES + nlevels * _LEVEL_NBYTES
        if start <= len(manifest):
            counts = np.frombuffer(manifest, "<u4", nlevels, start - nlevels * _SIZE_NBYTES).tolist()
            if start + sum(counts) * (_PLACE_NBYTES + _SIZE_NBYTES) <= len(manifest):
                total = 0
                for count in counts:
                    start += count * _PLACE_NBYTES
                    total += int(np.frombuffer(manifest, "<u4", count, start).sum(dtype=np.uint64))
                    start += count * _SIZE_NBYTES
                return total
    raise CorruptionError(f"the manifest of {len(manifest)} bytes ends too early")
