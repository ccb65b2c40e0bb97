"""References as Parquet, for arrays of millions of chunks: readers load the records that they need.

A directory has `.zmetadata`, with all documents, and `PATH/refs.N.parq` with the references of `RECORD` chunks of the
array PATH, in C order; where no chunk of a record is stored there is no file, and a chunk that is not stored has no
path. Only Zarr v2 fits, with chunk keys separated by dots, and no array at the root.

Source: `fsspec.implementations.reference.LazyReferenceMapper`, which kerchunk uses.
"""

import json
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Final, TextIO

from shardfs.bulk.refs import Add, Reference, References
from shardfs.dataset.node import Node
from shardfs.errors import RefusedError, UsageError
from shardfs.format.document import parse_json
from shardfs.format.grid import index_in_c_order
from shardfs.format.lens.v2 import ZMETADATA
from shardfs.stores.url import how_to_install
from shardfs.vfs.chunk_cache import ChunkView

RECORD: Final = 10_000
"""How many references are in a file: some 100 KiB, and as many as kerchunk writes."""
_WAY_OUT: Final = "write JSON, or mount it"


@contextmanager
def parquet_references(path: Path) -> Iterator["ParquetReferences"]:
    """Yield references that are the new directory *path* at the end; after an error nothing is left of them.

    Raises `UsageError` if *path* exists and is not empty, or cannot be written, or if pyarrow is missing.
    """
    try:
        import pyarrow.parquet  # noqa: F401 - only here: it takes long, and need not be installed
    except ImportError:
        raise UsageError(f"references as Parquet need pyarrow: {how_to_install('parquet')}") from None
    partial = path.absolute().with_name(f".{path.absolute().name}.{secrets.token_hex(4)}")
    try:
        if path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
            raise UsageError(f"{path} exists: name a new directory, or remove it first")
        partial.mkdir()
        try:
            with (partial / ZMETADATA).open("x", encoding="utf-8") as documents:
                yield ParquetReferences(partial, documents)
            partial.rename(path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


class ParquetReferences(References):
    """References as Parquet in the directory *root*, whose `.zmetadata` is *documents*."""

    def __init__(self, root: Path, documents: TextIO) -> None:
        self._root = root
        self._documents = documents
        self._separator = ""
        documents.write(f'{{"zarr_consolidated_format": 1, "record_size": {RECORD}, "metadata": {{')

    @contextmanager
    def array(self, node: Node, chunks: ChunkView | None) -> Iterator[Add]:
        """Begin the references of an array; raises `RefusedError` for what this layout cannot hold."""
        if not node.path:
            raise RefusedError(f"its readers find no array at the root: refer to the directory above it, or {_WAY_OUT}")
        if any(name.startswith(".z") for name in node.path.split("/")):
            raise RefusedError(f"its readers take a name that begins with .z for a document: {_WAY_OUT}")
        if chunks is None or chunks.key_encoding.separator != ".":
            raise RefusedError(f"its readers know only chunk keys with dots, and OME-Zarr has others: {_WAY_OUT}")
        directory = self._root / node.path
        texts: list[tuple[str, str]] = []
        records = _Records(directory, chunks.array.grid.grid_shape)

        def add(key: str, reference: Reference) -> None:
            if isinstance(reference, str):
                texts.append((key, reference))
            else:
                records.add(key.rpartition("/")[2], reference)

        try:
            yield add
            records.write()
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        for key, text in texts:
            self.add(key, text)

    def add(self, key: str, text: str) -> None:
        """Add a document; copies of documents are skipped, as all documents are in one file."""
        if key.rpartition("/")[2] != ZMETADATA:
            self._documents.write(f"{self._separator}{json.dumps(key)}: {json.dumps(parse_json(text.encode()))}")
            self._separator = ",\n"

    def finish(self) -> None:
        """End the file of documents."""
        self._documents.write("\n}}\n")


class _Records:
    """The references of an array in *directory*, added in C order, of which one record is in memory."""

    def __init__(self, directory: Path, grid_shape: tuple[int, ...]) -> None:
        self._directory = directory
        self._grid_shape = grid_shape
        self._nchunks = prod(grid_shape)
        self._number = 0
        self._rows: dict[int, tuple[str, int, int]] = {}

    def add(self, name: str, reference: list[str | int]) -> None:
        """Add the reference of the chunk with this *name*."""
        url, offset, nbytes = (*reference, 0, 0)[:3]
        if len(reference) > 1 and not offset and not nbytes:
            raise RefusedError(f"chunk {name} is empty, and its readers would read the whole shard: {_WAY_OUT}")
        if not _is_text(str(url)):
            raise RefusedError(f"the name of its files is not UTF-8, as text in Parquet is: {_WAY_OUT}")
        coords = tuple(map(int, name.split("."))) if self._grid_shape else ()
        number, row = divmod(index_in_c_order(coords, self._grid_shape), RECORD)
        if number != self._number:
            self.write()
            self._number = number
        self._rows[row] = str(url), int(offset), int(nbytes)

    def write(self) -> None:
        """Write the record that is in memory, unless none of its chunks is stored."""
        if not self._rows:
            return
        import pyarrow.parquet

        missing = None, 0, 0
        rows = [self._rows.get(row, missing) for row in range(min(RECORD, self._nchunks - self._number * RECORD))]
        paths, offsets, sizes = zip(*rows, strict=True)
        table = pyarrow.table(
            {
                "path": pyarrow.array(paths, pyarrow.string()),
                "offset": pyarrow.array(offsets, pyarrow.int64()),
                "size": pyarrow.array(sizes, pyarrow.int64()),
            }
        )
        self._directory.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(table, self._directory / f"refs.{self._number}.parq", compression="zstd")
        self._rows.clear()


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
