"""The metrics of a mount: one table, with name, unit and meaning of item.

`Statistics` holds the running counts, `StatisticsSnapshot` all metrics at one moment: `shardfs stats`, Prometheus, and
commands that wait for a daemon all show a snapshot.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

Kind = Literal["text", "gauge", "counter", "detail"]
Unit = Literal["", "bytes", "seconds", "time"]
Value = float | str | Mapping[str, float]

_MAX: Final = 2**63


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table: a *counter* only grows, a *gauge* varies, a *detail* is for our own programs only.

    A metric with a *label* has one number for each of its values. A *time* is in seconds since 1970.
    """

    name: str
    kind: Kind
    help: str
    unit: Unit = ""
    label: str = ""


def _metric(kind: Kind, meaning: str, unit: Unit = "", label: str = "", default: object = None) -> Any:  # noqa: ANN401 - a field of any type
    metadata = {"kind": kind, "help": meaning, "unit": unit, "label": label}
    if label:
        return field(default_factory=Counter, metadata=metadata)
    return field(default=0 if kind == "counter" else default, metadata=metadata)


@dataclass(slots=True)
class Statistics:
    """The counts of a running mount."""

    last_commit_timestamp_seconds: float | None = _metric("gauge", "Time of the last commit.", "time")
    last_error_timestamp_seconds: float | None = _metric("gauge", "Time of the last error in the log.", "time")
    last_error: str | None = _metric("text", "The last error in the log.")
    requests: Counter[str] = _metric("counter", "Requests of the kernel.", label="request")  # noqa: RUF009 - a field
    errors: Counter[str] = _metric("counter", "Requests answered with an error.", label="errno")  # noqa: RUF009
    bytes_read: int = _metric("counter", "Bytes given to readers.", "bytes")
    index_loads: int = _metric("counter", "Shard indexes read.")
    index_bytes: int = _metric("counter", "Bytes of these indexes.", "bytes")
    index_hits: int = _metric("counter", "Shards found open, with their index.")
    whole_shard_decodes: int = _metric("counter", "Shards decoded as a whole.")
    decoded_chunks: int = _metric("counter", "Chunks decoded, for views that show plain array bytes.")
    decoded_bytes: int = _metric("counter", "Bytes of these chunks.", "bytes")
    decode_hits: int = _metric("counter", "Chunks found in the cache of decoded chunks.")
    replaced_shards: int = _metric("counter", "Shards that another program replaced.")
    unsharded_arrays: int = _metric("counter", "New arrays that --shards does not fit, stored unsharded; see the log.")
    published: int = _metric("counter", "Changes of chunks published.")
    commits: int = _metric("counter", "Commits, each of one shard.")
    committed_chunks: int = _metric("counter", "Changes of chunks committed.")
    committed_bytes: int = _metric("counter", "Bytes written to shards.", "bytes")

    def note_error(self, message: str) -> None:
        """Remember the latest error."""
        self.last_error, self.last_error_timestamp_seconds = message, time.time()

    def counts(self) -> Mapping[str, Any]:
        """Return the counts as plain values that do not change any more."""
        counts = ((item.name, getattr(self, item.name)) for item in fields(self))
        return {name: dict(sorted(value.items())) if isinstance(value, Counter) else value for name, value in counts}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsSnapshot:
    """All metrics of a mount at one moment; *counts* are those of `Statistics`, *store* those of the store.

    A metric is None if it has no value, or is unknown to the version of shardfs that the daemon runs.
    """

    version: str | None = _metric("text", "Version of shardfs that the daemon runs.")
    source: str | None = _metric("text", "What is mounted.")
    mountpoint: str | None = _metric("text", "Where it is mounted.")
    view: str | None = _metric("text", "What arrays are shown as.")
    access: str | None = _metric("text", "Whether the mount is read-only or read-write.")
    pid: int | None = _metric("text", "Process id of the daemon.")
    log: str | None = _metric("text", "Log file of the daemon.")
    uptime_seconds: float = _metric("gauge", "How long the mount has been up.", "seconds", default=0.0)
    memory_bytes: int | None = _metric("gauge", "Resident memory of the daemon.", "bytes")
    open_files: int | None = _metric("gauge", "Files that programs have open on the mount.")
    pending_chunks: int = _metric("gauge", "Changes of chunks that are not committed yet.", default=0)
    pending_bytes: int = _metric("gauge", "Bytes of these chunks.", "bytes", default=0)
    pending_age_seconds: float | None = _metric("gauge", "How long the oldest of them has been waiting.", "seconds")
    pending_reason: str | None = _metric("text", "What keeps them from being committed.")
    other_sessions: int | None = _metric("gauge", "Other sessions that write the same source, at the last look.")
    file: int | None = _metric("detail", "Inode number of the file in which the daemon keeps its metrics.")
    is_committed: bool | None = _metric("detail", "At the end of the daemon: whether all that was written is stored.")
    is_journal_gone: bool | None = _metric("detail", "At the end of the daemon: whether somebody removed its journal.")
    counts: Mapping[str, Any] = field(default_factory=dict)
    store: Mapping[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the metrics as JSON for `parse`."""
        own = {item.name: getattr(self, item.name) for item in fields(self) if item.metadata}
        return json.dumps(own | dict(self.counts) | {"store": dict(self.store)}).encode()

    @classmethod
    def parse(cls, text: bytes) -> "StatisticsSnapshot":
        """Return a snapshot encoded by any version of shardfs; raises `ValueError`."""
        try:
            members = json.loads(text)
        except RecursionError:
            raise ValueError("metrics are not nested") from None
        if not isinstance(members, dict) or not isinstance(members.setdefault("store", {}), dict):
            raise ValueError("metrics are an object")  # noqa: TRY004 - as any other JSON that is none
        own = {item.name: members.pop(item.name) for item in fields(cls) if item.metadata and item.name in members}
        for item in fields(cls):
            if item.name in own and not _is_of(own[item.name], item.type):
                raise ValueError(f"metrics have another {item.name}")
        return cls(**own, store=members.pop("store"), counts=members)

    def metrics(self) -> Iterator[tuple[Metric, Value]]:
        """Yield the rows of the table that have a value, without details."""
        for metric in METRICS:
            if metric.name.startswith(_STORE):
                value = self.store.get(metric.name.removeprefix(_STORE))
            else:
                value = self.counts.get(metric.name, getattr(self, metric.name, None))
            if value is not None and metric.kind != "detail":
                yield metric, value


def _is_of(value: object, kinds: Any) -> bool:  # noqa: ANN401 - the type of a field
    """Whether *value* has the given type, where float includes all finite numbers."""
    if isinstance(value, int | float):
        return abs(value) < _MAX and (isinstance(value, kinds) or isinstance(1.0, kinds))
    return isinstance(value, kinds)


_STORE: Final = "store_"

METRICS: Final = (
    *(Metric(item.name, **item.metadata) for item in fields(StatisticsSnapshot) if item.metadata),
    *(Metric(item.name, **item.metadata) for item in fields(Statistics)),
    Metric("store_requests", "counter", "Requests to the store, each attempt.", label="operation"),
    Metric("store_bytes_received", "counter", "Bytes of objects received.", "bytes"),
    Metric("store_bytes_sent", "counter", "Bytes of objects sent.", "bytes"),
    Metric("store_retries", "counter", "Requests sent again."),
    Metric("store_conflicts", "counter", "Conditions that did not hold: another host was first."),
    Metric("store_cache_hits", "counter", "Pieces found in the cache on disk."),
    Metric("store_cache_bytes", "counter", "Bytes of these pieces.", "bytes"),
    Metric("store_cache_damaged", "counter", "Pieces of the cache with a wrong checksum."),
)
"""All metrics, in the order in which they are shown."""
