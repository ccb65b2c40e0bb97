"""References, as kerchunk and VirtualiZarr write them: keys of Zarr whose bytes are ranges of other files, to be read.

- what a reference is, and many of them in little memory: `base`
- their two forms: `document` (JSON) and `records` (Parquet, read in parts)
- which files they may lead to, and through which readers: `targets`
- the store: `store`
"""

from importlib.util import find_spec
from os.path import isfile, join, realpath
from typing import Final

from shardfs.errors import SourceError
from shardfs.formats import Candidate, FileSource, Format
from shardfs.formats.references.records import DOCUMENTS
from shardfs.formats.references.store import ReferenceStore
from shardfs.formats.references.targets import TargetRoot, Targets
from shardfs.stores.base import Reader
from shardfs.stores.files import name_of
from shardfs.stores.url import ALLOW_TARGET, how_to_install

_IN_RECORDS: Final = (".parq", ".parquet")


class ReferencesFormat(Format):
    """References of kerchunk: a file of JSON, or a directory of Parquet."""

    name = "references"
    suffixes = (".json",)
    sources = "references (.json and .parq)"
    options = frozenset({"allow_target"})

    def takes(self, source: Candidate) -> bool:
        """Whether *source* may be references."""
        return _is_in_records(source) or super().takes(source)

    def open(self, source: FileSource) -> Reader:
        """Return the store of references."""
        in_records = source.name.endswith(_IN_RECORDS)
        if in_records and find_spec("pyarrow") is None:
            raise SourceError(f"{source.url} needs pyarrow; install it with: {how_to_install('parquet')}")
        roots = [_root(source, root) for root in source.options.allow_target]
        return ReferenceStore(
            source.url,
            source.files.address._replace(url=source.url),
            source.files,
            source.name,
            Targets(source.home, roots or [TargetRoot((name_of(source.home),), source.files)]),
            in_records=in_records,
            ttl=source.ttl,
        )


FORMAT: Final = ReferencesFormat()


def _is_in_records(source: Candidate) -> bool:
    if not (source.is_directory and source.name.endswith(_IN_RECORDS)):
        return False
    return source.path is None or isfile(join(source.path, DOCUMENTS))


def _root(source: FileSource, root: str) -> TargetRoot:
    """Open a location to which references may lead, as the user says."""
    try:
        location, files = source.open_location(root)
        names = {name_of(location): None} | ({realpath(location): None} if isinstance(location, str) else {})
        return TargetRoot(tuple(names), files)
    except SourceError as error:
        raise SourceError(f"{ALLOW_TARGET}: {error}") from None
