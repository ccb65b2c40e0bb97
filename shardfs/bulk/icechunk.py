"""References as virtual chunks of a new Icechunk repository in a directory: one for each inner chunk.

Readers need icechunk 1 and the permission to follow them, and refuse a chunk whose file was changed since.
"""

import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

from shardfs.bulk.refs import Add, Reference, References
from shardfs.dataset.node import Node
from shardfs.dataset.source import is_remote, url_of
from shardfs.errors import RefusedError, UsageError
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.stores.base import join_key
from shardfs.stores.url import StoreOptions, how_to_install
from shardfs.vfs.chunk_cache import ChunkView

_BATCH: Final = 100_000  # chunks that are told at once
_WAY_OUT: Final = "write JSON, or mount it"


@contextmanager
def icechunk_references(path: Path, source: str, options: StoreOptions) -> Iterator["IcechunkReferences"]:
    """Yield references to *source* that are a repository in the new directory *path* at the end of the block.

    After an error nothing is left of them. Raises `UsageError` if *path* exists, if icechunk is missing, and for a
    source that it cannot reach.
    """
    try:
        import icechunk
    except ImportError:
        raise UsageError(f"references for Icechunk need icechunk: {how_to_install('icechunk')}") from None
    url = url_of(source)
    prefix = f"{url}/" if is_remote(source) else f"file://{url}/"
    container: Any
    if prefix.startswith("s3://"):
        container = icechunk.s3_store(
            region=options.region,
            endpoint_url=options.endpoint_url,
            allow_http=(options.endpoint_url or "").startswith("http:"),
            anonymous=options.anonymous,
            force_path_style=options.endpoint_url is not None,
            requester_pays=options.request_payer,
        )
    elif prefix.startswith("file://"):
        container = icechunk.local_filesystem_store(url)
    else:
        raise UsageError("references for Icechunk are to directories and s3:// sources")
    if path.is_symlink() or path.exists():
        raise UsageError(f"{path} exists: name a new directory, or remove it first")
    partial = path.absolute().with_name(f".{path.absolute().name}.{secrets.token_hex(4)}")
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, container))
    icechunk.set_logs_filter("error")  # it warns of concurrent commits, on standard output
    try:
        partial.mkdir()
        try:
            repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(partial)), config=config)
            session = repository.writable_session("main")
            yield IcechunkReferences(session.store)
            session.commit(f"inner chunks of {url}")
            partial.rename(path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except icechunk.IcechunkError as error:
        raise UsageError(f"{path} cannot be written: {error}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


class IcechunkReferences(References):
    """References in a *store* of icechunk that can be written; valid for files that are not changed from now on."""

    has_sizes = True

    def __init__(self, store: Any) -> None:  # noqa: ANN401 - of a library without types
        self._store = store
        # Icechunk keeps whole seconds: with the present one, what was written in it before would count as changed.
        time.sleep(1 - time.time() % 1)
        self._since = datetime.now(UTC)

    @contextmanager
    def array(self, node: Node, chunks: ChunkView | None) -> Iterator[Add]:
        """Begin the references of an array; raises `RefusedError` for what Icechunk cannot hold."""
        import icechunk

        array = node.any_array
        if array is None:
            raise RefusedError(f"only its shards as a whole could be referenced: {_WAY_OUT}")
        encoding = array.layout.key_encoding if chunks is None else chunks.key_encoding
        if encoding != ChunkKeyEncoding("default", "/"):
            raise RefusedError(f"Icechunk knows only chunk keys such as c/0/1: {_WAY_OUT}")
        texts: list[tuple[str, str]] = []
        with tempfile.TemporaryFile("w+") as chunks_of_array:  # there may be millions

            def add(key: str, reference: Reference) -> None:
                if isinstance(reference, str):
                    texts.append((key, reference))
                    return
                url, offset, nbytes = reference
                coords = encoding.decode(key[len(join_key(node.path, "c")) - 1 :], array.grid.ndim)
                json.dump(([*(coords or ())], str(url), int(offset), int(nbytes)), chunks_of_array)
                chunks_of_array.write("\n")

            yield add
            for key, text in texts:
                self.add(key, text)
            chunks_of_array.seek(0)
            while lines := [*islice(chunks_of_array, _BATCH)]:
                specs = [
                    icechunk.VirtualChunkSpec(coords, url, offset, nbytes, None, self._since)
                    for coords, url, offset, nbytes in map(json.loads, lines)
                ]
                if self._store.set_virtual_refs(f"/{node.path}", specs, validate_containers=True):
                    raise RefusedError(f"Icechunk refuses the URLs of its shards: {_WAY_OUT}")

    def add(self, key: str, text: str) -> None:
        """Add a document."""
        from zarr.core.buffer import default_buffer_prototype
        from zarr.core.sync import sync

        sync(self._store.set(key, default_buffer_prototype().buffer.from_bytes(text.encode())))

    def finish(self) -> None:
        """Do nothing: all is in the store."""
