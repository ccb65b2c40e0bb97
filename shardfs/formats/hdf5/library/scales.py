"""Dimension scales of HDF5, and what netCDF makes of them: names of axes, and their lengths."""

import math
from collections.abc import Sequence
from typing import Any, Final

import h5py
import numpy as np

from .elements import ERRORS, AbsentName, as_bytes, as_text

OF_SCALES: Final = frozenset({"DIMENSION_LIST", "REFERENCE_LIST", "DIMENSION_LABELS"})
"""Attributes that say what is shown as dimension names."""

OF_NETCDF: Final = frozenset({"_Netcdf4Dimid", "_Netcdf4Coordinates", "_nc3_strict", "_NCProperties"})
"""Attributes that programs for netCDF write for themselves, and show nobody."""

NAMES_A_SCALE: Final = frozenset({"CLASS", "NAME"})

_NO_VARIABLE: Final = b"This is a netCDF dimension but not a netCDF variable"
_MAX_KNOWN: Final = 100_000
_MAX_VALUES: Final = 100_000
_MAX_NAMES: Final = 100_000
"""In a group with more names, no scales are looked for."""


class Hdf5Object:
    """An object of the file: a group or a dataset, by its identifier and its address.

    *aliases* is how many links on the way are to groups with other names.
    """

    __slots__ = ("address", "aliases", "id", "is_group")

    def __init__(self, identifier: Any, address: int | None = None, aliases: int = 0) -> None:  # noqa: ANN401
        self.id = identifier
        self.is_group = isinstance(identifier, h5py.h5g.GroupID)
        self.address: int = h5py.h5o.get_info(identifier).addr if address is None else address
        self.aliases = aliases


def names_in(group: Any, most: int) -> list[bytes]:  # noqa: ANN401 - a GroupID
    """Return all names in a group; raises `AbsentName` if there are more than *most*."""
    names: list[bytes] = []

    def add(name: bytes) -> bool | None:
        names.append(name)
        return True if len(names) > most else None

    group.links.iterate(add)
    if len(names) > most:
        raise AbsentName(f"it has more than {most:,} names")
    return names


def is_scale(identifier: Any) -> bool:  # noqa: ANN401 - a DatasetID
    """Whether a dataset is a dimension scale."""
    return as_bytes(_attribute(identifier, b"CLASS")) == b"DIMENSION_SCALE"


def is_netcdf_dimension(identifier: Any) -> bool:  # noqa: ANN401
    """Whether a dataset is a dimension of netCDF, and no variable."""
    return is_scale(identifier) and as_bytes(_attribute(identifier, b"NAME")).startswith(_NO_VARIABLE)


class DimensionScales:
    """What is known of the scales of *file*, by their addresses."""

    def __init__(self, file: Any) -> None:  # noqa: ANN401 - a FileID
        self._file = file
        self._names: dict[int, dict[int, str]] = {}
        self._nknown = 0
        self._lengths: dict[int, int] = {}

    def names(self, chain: Sequence[Hdf5Object]) -> list[str | None]:
        """Return the names of the axes of the last in *chain*, a dataset; None for those that have none."""
        dataset = chain[-1]
        ndim = len(dataset.id.shape)
        names: list[str | None] = [None] * ndim
        for axis, scale in self._attached(dataset.id):
            names[axis] = self._name(chain, scale)
        if not any(names) and is_scale(dataset.id):
            numbers = _attribute(dataset.id, b"_Netcdf4Coordinates")
            if ndim > 1 and np.shape(numbers) == (ndim,):
                names = self._names_by_number(chain, [int(number) for number in numbers])
            elif ndim == 1:
                names[0] = self._names_in(chain[-2]).get(dataset.address)
        if not any(names):
            labels = _attribute(dataset.id, b"DIMENSION_LABELS")
            if np.shape(labels) == (ndim,):
                names = [as_bytes(label).decode(errors="replace") or None for label in labels]
        return names

    def shape(self, dataset: Hdf5Object) -> list[int]:
        """Return the shape of a dataset: in netCDF, an unlimited axis is as long as its dimension.

        What is not stored of it has the fill value there, as if the dataset had been extended.
        """
        shape = [*dataset.id.shape]
        maximum = dataset.id.get_space().get_simple_extent_dims(True) if shape else ()
        unlimited = [axis for axis, length in enumerate(maximum) if length == h5py.h5s.UNLIMITED]
        if not unlimited:
            return shape
        for axis, scale in self._attached(dataset.id):
            if axis in unlimited:
                shape[axis] = max(shape[axis], self._length(scale))
        if unlimited == [0] and len(shape) == 1 and is_scale(dataset.id):
            shape[0] = max(shape[0], self._length(dataset))
        return shape

    def _attached(self, identifier: Any) -> list[tuple[int, Hdf5Object]]:  # noqa: ANN401
        """Return the axes that have scales, each with its first one."""
        lists = _attribute(identifier, b"DIMENSION_LIST")
        if np.shape(lists) != (len(identifier.shape),):
            return []
        found = []
        for axis, references in enumerate(lists):
            scale = self._target(references[0]) if len(references) else None
            if scale is not None:
                found.append((axis, scale))
        return found

    def _target(self, reference: Any) -> Hdf5Object | None:  # noqa: ANN401
        identifier = h5py.h5r.dereference(reference, self._file) if reference else None
        return Hdf5Object(identifier) if isinstance(identifier, h5py.h5d.DatasetID) else None

    def _length(self, scale: Hdf5Object) -> int:
        """Return how long the longest axis is of those that have a scale of netCDF; 0 of another one."""
        known = self._lengths.get(scale.address)
        if known is None:
            known = 0
            if h5py.h5a.exists(scale.id, b"_Netcdf4Dimid"):
                known = scale.id.shape[0] if len(scale.id.shape) == 1 and not is_netcdf_dimension(scale.id) else 0
                users = _attribute(scale.id, b"REFERENCE_LIST")
                for reference, axis in users if np.ndim(users) == 1 else ():
                    user = self._target(reference)
                    if user is not None and 0 <= axis < len(user.id.shape):
                        known = max(known, user.id.shape[axis])
            if len(self._lengths) < _MAX_KNOWN:
                self._lengths[scale.address] = known
        return known

    def _name(self, chain: Sequence[Hdf5Object], scale: Hdf5Object) -> str | None:
        """Return the name of a scale: in a group above the dataset, or else the one that the file has first."""
        for group in reversed(chain[:-1]):
            name = self._names_in(group).get(scale.address)
            if name is not None:
                return name
        found = h5py.h5i.get_name(scale.id)  # which searches the file
        return as_text(found.rpartition(b"/")[2]) or None if found else None

    def _names_in(self, group: Hdf5Object) -> dict[int, str]:
        """Return the names of the scales in a group, by address."""
        known = self._names.get(group.address)
        if known is None:
            known = {}
            try:
                names = names_in(group.id, _MAX_NAMES)
            except AbsentName:
                names = []
            for name in names:
                if group.id.links.get_info(name).type == h5py.h5l.TYPE_HARD:
                    identifier = h5py.h5o.open(group.id, name)
                    if isinstance(identifier, h5py.h5d.DatasetID) and is_scale(identifier):
                        known.setdefault(h5py.h5o.get_info(identifier).addr, as_text(name))
            self._nknown += 1 + len(known)
            if self._nknown <= _MAX_KNOWN:
                self._names[group.address] = known
        return known

    def _names_by_number(self, chain: Sequence[Hdf5Object], numbers: Sequence[int]) -> list[str | None]:
        """Return the names of dimensions of netCDF by their numbers, as a scale with several axes has them."""
        found: dict[int, str] = {}
        for group in chain[:-1]:
            for name in self._names_in(group).values():
                number = _attribute(h5py.h5o.open(group.id, name.encode("utf-8", "surrogateescape")), b"_Netcdf4Dimid")
                if number is not None and np.shape(number) == ():
                    found[int(number)] = name
        return [found.get(number) for number in numbers]


def _attribute(identifier: Any, name: bytes) -> Any:  # noqa: ANN401
    """Return an attribute as NumPy has it; None if there is none, or none that is read."""
    if not h5py.h5a.exists(identifier, name):
        return None
    try:
        attribute = h5py.h5a.open(identifier, name)
        if math.prod(attribute.shape or ()) > _MAX_VALUES:
            return None
        value = np.empty(attribute.shape or (), attribute.dtype)
        attribute.read(value)
    except ERRORS:
        return None
    return value if value.shape else value[()]
