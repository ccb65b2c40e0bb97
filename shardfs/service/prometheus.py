"""Figures in the text format of Prometheus."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from shardfs.dataset.statistics import Snapshot
from shardfs.errors import printable


class About(NamedTuple):
    """What a process does: the *name* and meaning of its first metric, which has texts that do not change as labels.

    *labels* are names of `Snapshot` by those of labels.
    """

    name: str
    meaning: str
    labels: Mapping[str, str]


_LABELS: Final = {name: name for name in ("version", "source", "view", "access")}
MOUNT: Final = About("shardfs_mount", "What is mounted where.", _LABELS | {"mountpoint": "mountpoint"})
SERVER: Final = About("shardfs_server", "What is served where.", _LABELS | {"url": "mountpoint"})

_USUAL: Final = {
    "errors": ("EACCES", "EDQUOT", "EINVAL", "EIO", "EMFILE", "ENOENT", "ENOSPC", "EPERM", "EROFS", "ESTALE")
}
"""Rows that are there from the start: Prometheus sees no increase in a series that begins with its first error."""


class _Figures(Collector):
    def __init__(self, latest: Callable[[], Snapshot], about: About, more: Callable[[], Iterable[Metric]]) -> None:
        self._latest = latest
        self._about = about
        self._more = more

    def collect(self) -> Iterable[Metric]:
        """Yield the figures of one snapshot."""
        snapshot = self._latest()
        name, meaning, labels = self._about
        texts = {label: printable(getattr(snapshot, field) or "") for label, field in labels.items()}
        yield InfoMetricFamily(name, meaning, texts)
        yield from self._more()
        for figure, value in snapshot.figures():
            if not isinstance(value, str) and figure.kind != "text":
                kind = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
                family = kind(f"shardfs_{figure.name}", figure.help, labels=[figure.label] if figure.label else [])
                rows: dict[str | None, float] = dict.fromkeys(_USUAL.get(figure.name, ()), 0)
                if isinstance(value, Mapping):
                    rows.update((label, number) for label, number in value.items())
                else:
                    rows[None] = value
                for label, number in rows.items():
                    family.add_metric([] if label is None else [label], number)
                yield family


def registry(
    latest: Callable[[], Snapshot], about: About, more: Callable[[], Iterable[Metric]] = tuple
) -> CollectorRegistry:
    """Return what generates the figures of the *latest* snapshot, and *more* of them."""
    found = CollectorRegistry(auto_describe=False)
    found.register(_Figures(latest, about, more))
    return found


def exposition(snapshot: Snapshot, about: About = MOUNT, more: Callable[[], Iterable[Metric]] = tuple) -> str:
    """Return the figures in the text format of Prometheus."""
    return generate_latest(registry(lambda: snapshot, about, more)).decode()
