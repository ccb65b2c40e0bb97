"""Metrics in the text format of Prometheus."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from shardfs.dataset.statistics import StatisticsSnapshot
from shardfs.errors import printable


class About(NamedTuple):
    """What processes do: the *name* and meaning of their first metric; the *label* of all series says where."""

    name: str
    meaning: str
    label: str


MOUNT: Final = About("shardfs_mount", "What is mounted where.", "mountpoint")
SERVER: Final = About("shardfs_server", "What is served where.", "url")

_LABELS: Final = ("version", "source", "view", "access")
"""Texts that do not change: labels of the first metric."""

Latest = Mapping[str, StatisticsSnapshot | None]
"""The latest snapshot of each mount or server by its mount point or URL; None for one that does not answer."""

_USUAL: Final = {
    "errors": ("EACCES", "EDQUOT", "EINVAL", "EIO", "EMFILE", "ENOENT", "ENOSPC", "EPERM", "EROFS", "ESTALE")
}
"""Rows that are there from the start: Prometheus sees no increase in a series that begins with its first error."""


class _Metrics(Collector):
    def __init__(self, latest: Callable[[], Latest], about: About, more: Callable[[], Iterable[Metric]]) -> None:
        self._latest = latest
        self._about = about
        self._more = more

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of one look at them."""
        name, meaning, label_of_all = self._about
        up = GaugeMetricFamily("shardfs_up", "Whether it answers.", labels=[label_of_all])
        info = InfoMetricFamily(name, meaning, labels=[label_of_all])
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for where, snapshot in self._latest().items():
            where = printable(where)
            up.add_metric([where], snapshot is not None)
            if snapshot is None:
                continue
            info.add_metric([where], {label: printable(getattr(snapshot, label) or "") for label in _LABELS})
            for metric, value in snapshot.metrics():
                if isinstance(value, str) or metric.kind == "text":
                    continue
                kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                labels = [label_of_all, metric.label] if metric.label else [label_of_all]
                new = kind(f"shardfs_{metric.name}", metric.help, labels=labels)
                family = families.setdefault(metric.name, new)
                if isinstance(value, Mapping):
                    for label, number in (dict.fromkeys(_USUAL.get(metric.name, ()), 0) | dict(value)).items():
                        family.add_metric([where, label], number)
                else:
                    family.add_metric([where], value)
        yield from (up, info, *self._more(), *families.values())


def registry(
    latest: Callable[[], Latest], about: About = MOUNT, more: Callable[[], Iterable[Metric]] = tuple
) -> CollectorRegistry:
    """Return what generates the *latest* metrics, and *more* of them."""
    found = CollectorRegistry(auto_describe=False)
    found.register(_Metrics(latest, about, more))
    return found


def exposition(latest: Latest, about: About = MOUNT, more: Callable[[], Iterable[Metric]] = tuple) -> str:
    """Return metrics in the text format of Prometheus."""
    return generate_latest(registry(lambda: latest, about, more)).decode()
