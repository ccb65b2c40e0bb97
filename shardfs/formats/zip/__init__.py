"""ZIP files, with Zarr or another format in them, whose members are stored or deflated: each member is a file."""

from functools import partial

from shardfs.formats import FileSource, Format, Reader, TreeStore
from shardfs.formats.zip.directory import TAIL_NBYTES
from shardfs.formats.zip.members import load


class Zip(Format):
    """A ZIP file is a SOURCE: `.zip`, OME-Zarr's `.ozx`, or a file of any name that begins like one."""

    name = "zip"
    suffixes = (".zip", ".ozx")
    signatures = (b"PK\x03\x04", b"PK\x05\x06")

    def open(self, source: FileSource) -> Reader:
        """Return a reader of its members."""
        return TreeStore(
            source.url,
            source.files,
            source.name,
            partial(load, source.url),
            ttl=source.ttl,
            tail_nbytes=TAIL_NBYTES,
        )


FORMAT = Zip()
