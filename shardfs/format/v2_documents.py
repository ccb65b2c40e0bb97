"""Zarr v2 documents of arrays and groups that are stored as Zarr v3.

Chunks stay as they are, byte for byte: a v3 codec chain either has a v2 form with the same bytes, or none.

Source: Zarr storage specification 2; `dimension_names` as `_ARRAY_DIMENSIONS`, as xarray reads and writes it.
"""

from collections.abc import Callable
from typing import Any, Final

from shardfs.format.metadata import ArrayMetadata, GroupMetadata, Json

ZARRAY: Final = ".zarray"
ZGROUP: Final = ".zgroup"
ZATTRS: Final = ".zattrs"
ZMETADATA: Final = ".zmetadata"
V2_NAMES: Final = frozenset({ZARRAY, ZGROUP, ZATTRS, ZMETADATA})


def array_documents(array: ArrayMetadata, separator: str) -> dict[str, dict[str, Any]]:
    """Return `.zarray`, and `.zattrs` if there are attributes, of an unsharded v3 array with a regular chunk grid.

    *separator* is the dimension separator.  Raises `NotShownError` with the reason why the array has no v2 form.
    """
    raise NotImplementedError


def group_documents(
    group: GroupMetadata, separator: str, present: Callable[[ArrayMetadata], Json]
) -> dict[str, dict[str, Any]]:
    """Return `.zgroup`, `.zattrs` if there are attributes, and `.zmetadata` if the group is consolidated.

    *present* gives the unsharded v3 document that stands for the copy of an array, or raises `NotShownError` or
    `NotUnshardable`; a copy without a v2 form is left out.
    """
    raise NotImplementedError
