"""Work on whole datasets, as the commands do it: pack, unpack, info, verify, compact and refs."""

import json
import logging
import os
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal, overload

import trio

from shardfs.bulk.compact import THRESHOLD, compact_source
from shardfs.bulk.engine import in_session
from shardfs.bulk.info import describe_source
from shardfs.bulk.pack import PackPlan
from shardfs.bulk.parquet import parquet_references
from shardfs.bulk.refs import JsonReferences, References, write_references
from shardfs.bulk.run import RunOptions, RunReport, fill
from shardfs.bulk.unpack import Unpacking, UnpackPlan
from shardfs.bulk.verify import verify_source
from shardfs.dataset.maintenance.walk import Progress, no_progress
from shardfs.errors import CorruptionError, UsageError
from shardfs.format.lens.packed import SHARD_NBYTES, Packing, parse_codecs_option
from shardfs.stores.url import StoreOptions

log = logging.getLogger(__name__)


def pack(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    shard_size: int = SHARD_NBYTES,
    shards: tuple[int, ...] | None = None,
    index_location: Literal["end", "start"] = "end",
    codecs: str | None = None,
    sync: bool = False,
    checksum: bool = False,
    executor: Executor | None = None,
    jobs: int | None = None,
    progress: Callable[[RunReport], None] = lambda report: None,
    store_options: StoreOptions | None = None,
) -> RunReport:
    """Pack the chunks of *source* into shards of a Zarr v3 dataset at *destination*, as `shardfs pack` does.

    *shards* is the number of chunks per shard along each axis, for arrays with that many axes; for others *shard_size*
    is the size of shards in bytes, before compression. An *executor*, such as that of a Dask client, does the work
    instead of *jobs* local processes. *progress* is called in this thread with the report so far.

    Returns the report, whose `problems` name what is missing from the destination. Raises the errors of
    `shardfs.errors`.
    """
    if index_location not in ("end", "start"):
        raise UsageError(f"index_location cannot be {index_location!r}: choose end or start")
    packing = Packing(
        shard_size, shards, index_location == "start", None if codecs is None else parse_codecs_option(codecs)
    )
    how = RunOptions(sync or checksum, checksum, executor, jobs, progress)
    plan, options = PackPlan(packing), store_options or StoreOptions()
    return trio.run(fill, os.fspath(source), os.fspath(destination), plan, how, options)


def unpack(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    view: Literal["v3", "v2", "npy"] = "v3",
    decode: bool = False,
    draft: str | None = None,
    sync: bool = False,
    checksum: bool = False,
    executor: Executor | None = None,
    jobs: int | None = None,
    progress: Callable[[RunReport], None] = lambda report: None,
    store_options: StoreOptions | None = None,
) -> RunReport:
    """Write the files that a mount of *source* would show to *destination*, as `shardfs unpack` does.

    Other arguments and the result are those of `pack`; *draft* is that of `info`.
    """
    how = RunOptions(sync or checksum, checksum, executor, jobs, progress)
    plan, options = UnpackPlan(Unpacking(view, decode, draft)), store_options or StoreOptions()
    return trio.run(fill, os.fspath(source), os.fspath(destination), plan, how, options)


def info(
    source: str | os.PathLike[str],
    array: str | None = None,
    *,
    draft: str | None = None,
    progress: Progress = no_progress,
    store_options: StoreOptions | None = None,
) -> dict[str, Any]:
    """Return what `shardfs info --json` prints of *source*, or of the one *array*; with *draft*, as `--draft` does."""
    work = partial(describe_source, array=array, progress=progress)
    return {"arrays": in_session(os.fspath(source), store_options or StoreOptions(), work, draft=draft)}


def verify(
    source: str | os.PathLike[str],
    *,
    data: bool = False,
    draft: str | None = None,
    executor: Executor | None = None,
    jobs: int | None = None,
    progress: Progress = no_progress,
    store_options: StoreOptions | None = None,
) -> dict[str, Any]:
    """Check every shard of *source*, with *data* every inner chunk too, and return what `shardfs verify --json` prints.

    Its `problems` name what is damaged. *draft* is that of `info`, *executor* and *jobs* are those of `pack`.
    """
    work = partial(verify_source, data=data, executor=executor, jobs=jobs, progress=progress)
    return in_session(os.fspath(source), store_options or StoreOptions(), work, draft=draft).as_dict()


def compact(
    source: str | os.PathLike[str],
    *,
    threshold: float = THRESHOLD,
    force: bool = False,
    single_writer: bool = False,
    executor: Executor | None = None,
    jobs: int | None = None,
    progress: Progress = no_progress,
    store_options: StoreOptions | None = None,
) -> dict[str, Any]:
    """Rewrite the shards of *source* that have many dead bytes, and return what `shardfs compact --json` prints.

    Options are those of `shardfs compact` with the same names; *executor* and *jobs* are those of `pack`.
    """
    if not 0 <= threshold <= 1:
        raise UsageError(f"threshold cannot be {threshold}: it is a share, from 0 to 1")
    work = partial(
        compact_source,
        threshold=threshold,
        force=force,
        single_writer=single_writer,
        executor=executor,
        jobs=jobs,
        progress=progress,
    )
    return in_session(os.fspath(source), store_options or StoreOptions(), work).as_dict()


@overload
def refs(
    source: str | os.PathLike[str],
    *,
    view: Literal["v3", "v2"] | None = None,
    parquet: None = None,
    skip_encoded: bool = False,
    draft: str | None = None,
    progress: Progress = no_progress,
    store_options: StoreOptions | None = None,
) -> dict[str, Any]: ...


@overload
def refs(
    source: str | os.PathLike[str],
    *,
    view: Literal["v2"] | None = None,
    parquet: str | os.PathLike[str],
    skip_encoded: bool = False,
    progress: Progress = no_progress,
    store_options: StoreOptions | None = None,
) -> None: ...


def refs(
    source: str | os.PathLike[str],
    *,
    view: Literal["v3", "v2"] | None = None,
    parquet: str | os.PathLike[str] | None = None,
    skip_encoded: bool = False,
    draft: str | None = None,
    progress: Progress = no_progress,
    store_options: StoreOptions | None = None,
) -> dict[str, Any] | None:
    """Return the kerchunk references that `shardfs refs` prints, for `fsspec.filesystem("reference", fo=...)`.

    They are to *view* v3, unless another one is given. With *parquet*, they are to view v2, and written as Parquet to
    that new directory, for millions of chunks; then nothing is returned.

    Raises `CorruptionError` if an array could not be read or referenced: its chunks would be missing, and read as fill
    value; nothing is written then. Arrays that the view does not show are skipped, and a warning in the log names
    them. `shardfs refs` needs less memory than references that are returned.
    """
    if view not in (None, "v3", "v2"):
        raise UsageError(f"there are no references to view {view!r}: choose v3 or v2")
    if parquet is not None and view == "v3":
        raise UsageError("references as Parquet are to view v2: leave out view='v3', or parquet")
    skipped: list[str] = []

    def write(references: References, shown: str) -> None:
        work = partial(
            write_references,
            references=references,
            view_name=shown,
            skip_encoded=skip_encoded,
            warn=skipped.append,
            progress=progress,
        )
        if in_session(os.fspath(source), store_options or StoreOptions(), work, draft=draft):
            raise CorruptionError(f"references would not be complete: {'; '.join(skipped)}")

    found: dict[str, Any] | None = None
    if parquet is not None:
        with parquet_references(Path(parquet)) as files:
            write(files, "v2")
    else:
        with TemporaryFile("w+", encoding="utf-8", errors="surrogateescape", newline="") as file:
            write(JsonReferences(file), view or "v3")
            file.seek(0)
            found = json.load(file)
    for line in skipped:
        log.warning("%s", line)
    return found
