"""HDF5 and netCDF-4: a file whose groups and datasets are shown as Zarr v3, with chunks as they are stored.

- the process in which h5py and libhdf5 run, beside shardfs: `library`, and its other end, `process`
- a dataset as an array, and its filters as codecs: `arrays`, `filters`
- groups and datasets, by keys of Zarr: `nodes`
"""

from functools import partial
from importlib.util import find_spec
from typing import Final

import trio

from shardfs.errors import CorruptionError, MetadataError, SourceError
from shardfs.formats import Candidate, FileSource, Format, TreeStore
from shardfs.formats.hdf5.nodes import Hdf5Contents
from shardfs.stores.base import Reader, Snapshot
from shardfs.stores.url import how_to_install

_SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
_AT: Final = (0, 512, 1024, 2048)
"""Where the signature may be, as far as the first bytes of a file reach: what is before it is of a user."""

_CONVERT: Final = "it is netCDF-3, which is no HDF5: convert it by `nccopy -k nc4 OLD NEW`"
_OTHERS: Final = {
    **dict.fromkeys((b"CDF\1", b"CDF\2", b"CDF\5"), _CONVERT),
    b"\x0e\x03\x13\x01": "it is HDF4, which is no HDF5: convert it by `h4toh5 OLD NEW`",
    b"version https://git-lfs": "it stands for a file of Git LFS: fetch that by `git lfs pull`",
}
"""What files with names of HDF5 begin with that are none."""

_OTHERS_NBYTES: Final = 64


class Hdf5(Format):
    """Files of HDF5."""

    name = "hdf5"
    suffixes = (".h5", ".hdf5", ".he5", ".nc", ".nc4")

    def takes(self, source: Candidate) -> bool:
        """Whether *source* may be of HDF5: by its name, as there may be much before its signature, or by that."""
        return super().takes(source) or (
            source.is_file and any(source.first.startswith(_SIGNATURE, start) for start in _AT)
        )

    def open(self, source: FileSource) -> Reader:
        """Return what is in the file."""
        if find_spec("h5py") is None:
            raise SourceError(f"{source.url} needs h5py; install it with: {how_to_install('hdf5')}")
        load = partial(_load, source.session)
        return TreeStore(source.url, source.files, source.name, load, ttl=source.ttl, part="part")


async def _load(session: trio.Nursery, snapshot: Snapshot) -> Hdf5Contents:
    contents = Hdf5Contents(snapshot, session)
    try:
        await contents.begin()
    except CorruptionError:
        first = bytes(await snapshot.read(0, min(snapshot.size, _OTHERS_NBYTES)))
        for other, what in _OTHERS.items():
            if first.startswith(other):
                raise MetadataError(what) from None
        raise
    return contents


FORMAT: Final = Hdf5()
