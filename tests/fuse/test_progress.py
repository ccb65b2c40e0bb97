"""What commands say while they wait for a daemon, and at its end."""

from typing import Any

import pytest

from shardfs.dataset.statistics import StatisticsSnapshot
from shardfs.fuse.progress import CommitProgress
from shardfs.fuse.unmount import what_stays

WHO = "/data.zarr: process 7 on node2 does not answer, so what it published is not in the shards yet"


def snapshot(**metrics: Any) -> StatisticsSnapshot:
    return StatisticsSnapshot(log="/log", **metrics)


def test_who_waits_for_other_sessions_reports_that() -> None:
    progress = CommitProgress()
    assert progress.describe(snapshot()) == "nothing is pending"
    assert progress.describe(snapshot(other_sessions=0)) == "nothing is pending"
    alone = progress.describe(snapshot(other_sessions=2))
    assert alone == "nothing is pending here; 2 other sessions may have to commit"
    assert progress.describe(snapshot(other_sessions=2, pending_chunks=1)) == "1 chunk is pending (0 B)"


@pytest.mark.parametrize(
    ("latest", "expected"),
    [
        (None, "the rest stays in the journal, for the next mount with --write or `shardfs recover`; its log says why"),
        (snapshot(pending_chunks=1, counts={"last_error": "no"}), " (1 chunk is pending (0 B)): the rest stays in"),
        (snapshot(counts={"last_error": WHO}), f": {WHO}; what is in a journal stays there; /log says why"),
        (snapshot(is_journal_gone=True, counts={"last_error": "no"}), ": the rest is lost: somebody removed"),
    ],
)
def test_the_end_of_a_daemon_reports_what_stays_and_why(latest: StatisticsSnapshot | None, expected: str) -> None:
    assert expected in what_stays(latest)
