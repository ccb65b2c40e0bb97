"""An HDF5 file, and what is asked of it: names and what they are, attributes, chunks, values."""

import json
import math
import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import h5py
import numpy as np

from .channel import Json, PipedFile
from .chunks import chunks_of
from .elements import (
    ERRORS,
    AbsentName,
    as_bytes,
    as_text,
    attribute,
    brief,
    data_type,
    dtype_of,
    fill_value,
    not_written,
)
from .scales import (
    NAMES_A_SCALE,
    OF_NETCDF,
    OF_SCALES,
    DimensionScales,
    Hdf5Object,
    is_netcdf_dimension,
    is_scale,
    names_in,
)
from .superblock import close_superblock

MAX_LINKS: Final = 16
"""How many symbolic links may lead from one to the next."""

MAX_DEPTH: Final = 64
"""How deep groups may be nested."""

MAX_ALIASES: Final = 2
"""How many steps of a path may be links to groups that have other names.

With all of them, a small file may have more paths than anybody can list.
"""

MAX_ATTRIBUTES_NBYTES: Final = 4 * 2**20
"""Of a node, as JSON; what comes after is skipped."""

_MAX_KEPT: Final = 1024
_PART_LENGTH: Final = 500
_PART_SIZE: Final = 2**16
_MAX_SKIPPED: Final = 100


class Hdf5File:
    """An open file. Methods without an underscore are what is asked; paths are lists of names."""

    def __init__(self, file: PipedFile) -> None:
        self._bytes = file
        close_superblock(file)
        self._file = h5py.File(file, "r")
        self._before = self._file.userblock_size
        self._root = Hdf5Object(h5py.h5g.open(self._file.id, b"/"))
        self._scales = DimensionScales(self._file.id)
        self._chains: OrderedDict[tuple[bytes, ...], tuple[Hdf5Object, ...]] = OrderedDict()

    def node(self, path: Sequence[bytes]) -> Json:
        """Return what is at *path*, with its attributes."""
        if path and not self._has(self._chain(path[:-1])[-1], path[-1]):
            raise AbsentName("there is no such name")
        try:
            chain = self._chain(path)
            node = chain[-1]
            described = {"kind": "group"} if node.is_group else self._dataset(node)
            if "reason" in described:
                return described
            attributes, skipped = self._attributes(node)
            dimensions = {} if node.is_group else {"dimensions": self._scales.names(chain)}
        except ERRORS as error:
            return {"damage": brief(error)}
        return {**described, **dimensions, "attributes": attributes, "skipped": skipped}

    def listing(self, path: Sequence[bytes], most: int) -> Iterator[Json]:
        """Yield names in the group *path*, each with what it is, or why it is skipped.

        Raises `AbsentName` if there are more than *most*.
        """
        above = self._chain(path)
        if not above[-1].is_group:
            raise AbsentName("it is no group")
        names = names_in(above[-1].id, most)
        part: list[Json] = []
        nbytes = 0
        for name in names:
            described = self._listed(above, name)
            part.append([as_text(name), described])
            nbytes += len(name) + len(json.dumps(described))
            if len(part) >= _PART_LENGTH or nbytes > _PART_SIZE:
                yield part
                part, nbytes = [], 0
        yield part

    def chunks(self, path: Sequence[bytes], grid: Sequence[int], most: int) -> Iterator[bytes]:
        """Yield the chunks of a dataset: see `chunks_of`."""
        return chunks_of(self._dataset_at(path), self._bytes, grid, most)

    def chunk(self, path: Sequence[bytes], start: Sequence[int]) -> Json:
        """Return offset, size and mask of the chunk that begins at *start*; None if it is not stored."""
        dataset = self._dataset_at(path)
        if any(at >= length for at, length in zip(start, dataset.shape, strict=True)):
            return None
        chunk = dataset.get_chunk_info_by_coord(tuple(start))
        return None if chunk.byte_offset is None else [chunk.byte_offset, chunk.size, chunk.filter_mask]

    def values(self, path: Sequence[bytes], start: Sequence[int], shape: Sequence[int]) -> bytes | memoryview:
        """Return the elements of a part of a dataset in C order, of the type that is said of it.

        Text comes as the length of each element, uint32, and then the UTF-8 of each. What is beyond the dataset, which
        netCDF makes longer, is its fill value.
        """
        identifier = self._dataset_at(path)
        descr, is_exact, inner = data_type(identifier.get_type())
        dataset = h5py.Dataset(identifier)
        stops = [min(at + n, length) for at, n, length in zip(start, shape, identifier.shape, strict=True)]
        found = np.asarray(dataset[tuple(map(slice, start, stops))], object if descr == "string" else None)
        if found.shape != (*shape, *inner):
            whole = np.full((*shape, *inner), not_written(identifier), found.dtype)
            whole[tuple(map(slice, found.shape))] = found
            found = whole
        if descr == "string":
            texts = [as_bytes(text) for text in found.reshape(-1)]
            return struct.pack(f"<{len(texts)}I", *map(len, texts)) + b"".join(texts)
        elements = np.ascontiguousarray(found if is_exact else found.astype(dtype_of(descr)))
        return memoryview(elements.reshape(-1).view(np.uint8))

    # Paths.

    def _chain(self, path: Sequence[bytes]) -> tuple[Hdf5Object, ...]:
        """Return the nodes from the root to that at *path*; raises `AbsentName`."""
        key = tuple(path)
        known = self._chains.get(key)
        if known is not None:
            self._chains.move_to_end(key)
            return known
        if not key:
            return (self._root,)
        if len(key) > MAX_DEPTH:
            raise AbsentName(f"groups are nested more than {MAX_DEPTH} deep")
        above = self._chain(key[:-1])
        chain = self._chains[key] = (*above, self._below(above, key[-1]))
        while len(self._chains) > _MAX_KEPT:
            self._chains.popitem(last=False)
        return chain

    def _dataset_at(self, path: Sequence[bytes]) -> Any:  # noqa: ANN401 - a DatasetID
        node = self._chain(path)[-1]
        if node.is_group:
            raise AbsentName("it is no dataset")
        return node.id

    def _listed(self, above: Sequence[Hdf5Object], name: bytes) -> Json:
        try:
            node = self._below(above, name)
            return {"kind": "group"} if node.is_group else self._dataset(node)
        except AbsentName as error:
            return {"reason": str(error)}
        except ERRORS as error:
            return {"damage": brief(error)}

    def _below(self, above: Sequence[Hdf5Object], name: bytes) -> Hdf5Object:
        """Return the node *name* in the last of the nodes *above*; raises `AbsentName`."""
        node, is_symbolic = self._linked(above[-1], name, [0])
        if not node.is_group:
            return node
        if any(node.address == each.address for each in above):
            raise AbsentName("the link leads to a group that it is in")
        is_alias = is_symbolic or h5py.h5o.get_info(node.id).rc > 1
        aliases = above[-1].aliases + is_alias
        if aliases > MAX_ALIASES:
            raise AbsentName(f"more than {MAX_ALIASES} links to groups with other names lead here")
        return Hdf5Object(node.id, node.address, aliases)

    def _has(self, group: Hdf5Object, name: bytes) -> bool:
        is_name = name not in (b"", b".") and b"/" not in name and b"\0" not in name
        return bool(group.is_group and is_name and group.id.links.exists(name))

    def _linked(self, group: Hdf5Object, name: bytes, nlinks: list[int]) -> tuple[Hdf5Object, bool]:
        """Return what a link in *group* leads to, and whether it is symbolic.

        Each step of a path is taken here, and not by libhdf5, which would follow links to other files.
        """
        if not self._has(group, name):
            raise AbsentName("there is no such name")
        kind = group.id.links.get_info(name).type
        if kind == h5py.h5l.TYPE_HARD:
            identifier = h5py.h5o.open(group.id, name)
            if not isinstance(identifier, h5py.h5g.GroupID | h5py.h5d.DatasetID):
                raise AbsentName("it is a data type, and no data")
            return Hdf5Object(identifier), False
        if kind == h5py.h5l.TYPE_EXTERNAL:
            raise AbsentName("it is a link to another file")
        if kind != h5py.h5l.TYPE_SOFT:
            raise AbsentName(f"it is a link of the kind {kind}, which only the program that made it knows")
        nlinks[0] += 1
        if nlinks[0] > MAX_LINKS:
            raise AbsentName(f"more than {MAX_LINKS} symbolic links lead from one to the next")
        target = group.id.links.get_val(name)
        node = self._root if target.startswith(b"/") else group
        for step in target.split(b"/"):
            if step not in (b"", b"."):
                try:
                    node = self._linked(node, step, nlinks)[0]
                except AbsentName as error:
                    raise AbsentName(f"it is a symbolic link: {error}") from None
        return node, True

    # What a node is.

    def _dataset(self, node: Hdf5Object) -> Json:
        """Describe a dataset without its attributes, or say why it is skipped."""
        identifier = node.id
        space = identifier.get_space()
        if space.get_simple_extent_type() == h5py.h5s.NULL:
            return {"reason": "it has no elements, and no shape (a null dataspace)"}
        if is_netcdf_dimension(identifier):
            return {"reason": "it is a dimension of netCDF without values"}
        try:
            descr, is_exact, inner = data_type(identifier.get_type())
            described: dict[str, Json] = {"kind": "dataset", "type": descr, "is_exact": is_exact, "inner": [*inner]}
            return described | self._layout(node) | {"fill": fill_value(identifier, descr)}
        except AbsentName as error:
            return {"reason": str(error)}

    def _layout(self, node: Hdf5Object) -> dict[str, Json]:
        """Say where the elements of a dataset are; raises `AbsentName` if that is in other files or datasets."""
        identifier = node.id
        properties = identifier.get_create_plist()
        layout = properties.get_layout()
        described: dict[str, Json] = {"shape": self._scales.shape(node), "extent": [*identifier.shape]}
        if layout == h5py.h5d.CHUNKED:
            maximum = identifier.get_space().get_simple_extent_dims(True)
            # See `chunks._locator`: where that is needed, chunks are not found one by one.
            has_lookup = h5py.h5s.UNLIMITED not in maximum[1:]
            described |= {"layout": "chunked", "chunks": [*properties.get_chunk()], "has_lookup": has_lookup}
        elif layout == h5py.h5d.CONTIGUOUS:
            if properties.get_external_count():
                raise AbsentName("its elements are in another file (external storage)")
            offset = identifier.get_offset()
            # The address of what is not stored is −1, to which libhdf5 adds what is before its signature.
            described |= {"layout": "contiguous", "offset": None if offset == self._before - 1 else offset}
        elif layout == h5py.h5d.COMPACT:
            described["layout"] = "compact"
        else:
            raise AbsentName("its elements are in other datasets (a virtual dataset)")
        filters = (properties.get_filter(number) for number in range(properties.get_nfilters()))
        described["filters"] = [[code, [*values], as_text(name)] for code, _, values, name in filters]
        return described

    def _attributes(self, node: Hdf5Object) -> tuple[dict[str, Json], list[list[str]]]:
        """Return the attributes of a node as JSON, and which are skipped, each with the reason."""
        attributes: dict[str, Json] = {}
        skipped: list[list[str]] = []
        names: list[bytes] = []
        h5py.h5a.iterate(node.id, lambda name, *_: names.append(name))
        hidden = OF_NETCDF | OF_SCALES | (NAMES_A_SCALE if is_scale(node.id) else frozenset())
        nbytes = 0
        for encoded in names:
            name = as_text(encoded)
            if name in hidden:
                continue
            try:
                value = self._value(node, encoded)
            except AbsentName as error:
                skipped.append([name[:200], str(error)])
                continue
            except ERRORS as error:
                skipped.append([name[:200], brief(error)])
                continue
            except MemoryError:
                skipped.append([name[:200], "it takes too much memory"])
                continue
            nbytes += len(name) + len(json.dumps(value))
            if nbytes > MAX_ATTRIBUTES_NBYTES:
                skipped.append([name[:200], f"all attributes have more than {MAX_ATTRIBUTES_NBYTES:,} bytes"])
                break
            attributes[name] = value
        if len(skipped) > _MAX_SKIPPED:
            skipped[_MAX_SKIPPED:] = [["and so on", f"{len(skipped) - _MAX_SKIPPED:,} more"]]
        return attributes, skipped

    def _value(self, node: Hdf5Object, name: bytes) -> Json:
        """Return an attribute; raises `AbsentName` if it is too large, or has no form in JSON."""
        found = h5py.h5a.open(node.id, name)
        nbytes = math.prod(found.shape or ()) * found.get_type().get_size()
        if nbytes > MAX_ATTRIBUTES_NBYTES:
            raise AbsentName(f"it has {nbytes:,} bytes")
        return attribute(h5py.AttributeManager(h5py.Group(node.id) if node.is_group else h5py.Dataset(node.id))[name])
