"""ZIP files, with Zarr or another format in them, whose members are stored or deflated: each member is a file."""

from functools import partial
from typing import Final

from shardfs.formats import Candidate, FileSource, Format, Reader, TreeStore
from shardfs.formats.zip.directory import TAIL_NBYTES
from shardfs.formats.zip.members import load

_FIRST: Final = (b"PK\x03\x04", b"PK\x05\x06")


class Zip(Format):
    """A ZIP file is a SOURCE: `.zip`, OME-Zarr's `.ozx`, or a local file of any name that begins like one."""

    name = "zip"
    suffixes = (".zip", ".ozx")

    def takes(self, source: Candidate) -> bool:
        """Whether it is named, or begins, like a ZIP file."""
        return source.is_file and (source.name.lower().endswith(self.suffixes) or source.first.startswith(_FIRST))

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
