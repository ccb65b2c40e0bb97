"""What is looked at when a source is opened: names at its top, or what a file is that is given in place of a folder."""

from typing import Final

MAX_TOP: Final = 1000
"""How many names at the top of a source `Store.check` tells; it tells none if there are more."""

MAGIC_NBYTES: Final = 8
"""With how many bytes a file begins that tell its format."""


def file_format(name: str, first: bytes) -> str:
    """Say what a file is that was given as a source, and what to do; *first* are the `MAGIC_NBYTES` it begins with."""
    if first.startswith(b"PK"):
        return "a ZIP file; unpack it, and give the folder"
    if first.startswith(b"\x89HDF"):
        return "an HDF5 file; h5py and programs for netCDF read it without a mount"
    if name.rpartition("/")[2] in ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"):
        return "a document of Zarr; SOURCE is the folder that it is in"
    return "a file; SOURCE is the folder of an array, a group or several"
