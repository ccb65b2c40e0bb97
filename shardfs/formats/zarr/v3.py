"""Zarr v3: what its documents say on web servers. All else of it is what shardfs is about, and in no format."""

from collections.abc import Mapping
from typing import Final

from shardfs.format.outline import ZARR_V3, Outline, outline_of_v3
from shardfs.formats import Format


class ZarrV3Format(Format):
    """Groups and arrays with a `zarr.json`."""

    name = "zarr3"
    documents = frozenset(ZARR_V3)
    web_source = "an array or a group itself"
    web = ((ZARR_V3, (ZARR_V3,)),)

    def outline(self, path: str, documents: Mapping[str, bytes]) -> Outline:
        """Return what a `zarr.json` says."""
        return outline_of_v3(documents)


FORMAT: Final = ZarrV3Format()
