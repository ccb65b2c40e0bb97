"""Zarr v2: what its documents say on web servers."""

from collections.abc import Mapping
from typing import Final

from shardfs.format.outline import CONSOLIDATED_V2, ZARR_V2, Outline, outline_of_v2
from shardfs.formats import Format


class ZarrV2Format(Format):
    """Groups and arrays with `.zarray`, `.zgroup`, `.zattrs` and `.zmetadata`."""

    name = "zarr2"
    web = tuple((row, ZARR_V2) for row in (CONSOLIDATED_V2, *ZARR_V2))

    def outline(self, path: str, documents: Mapping[str, bytes]) -> Outline:
        """Return what these documents say."""
        return outline_of_v2(documents)


FORMAT: Final = ZarrV2Format()
