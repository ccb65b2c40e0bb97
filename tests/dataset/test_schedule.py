"""When shards are due to be committed: whatever happens to them, and without a look at each."""

import json
import math
import random
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
import trio
import trio.testing

from shardfs.dataset.layout import ShardQueue
from shardfs.dataset.schedule import Schedule
from shardfs.errors import StoreError
from tests.crash.harness import Process
from tests.crash.histories import INNER, PER_SHARD, make_source, payload_of
from tests.support.lossy_disk import QuickDisk
from tests.support.opened import in_trio


class Due:
    """What a schedule asks of a queue, and how often that was asked."""

    nlooks = 0

    def __init__(self, at: float) -> None:
        self.at = at

    @property
    def due_at(self) -> float:
        Due.nlooks += 1
        return self.at


def queue(at: float) -> Any:
    return cast("ShardQueue", Due(at))


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_what_a_look_at_every_shard_finds(seed: int) -> None:
    generator = random.Random(seed)
    schedule, pending, now = Schedule(), dict[Any, None](), 0.0
    for _ in range(500):
        now += generator.random()
        for one in [*pending]:
            if generator.random() < 0.2:  # published again, failed, given way
                one.at = now + generator.choice([-1, 0, 0.1, 2, 5, 30])
                schedule.update(one)
        if generator.random() < 0.4:
            one = generator.choice([*pending, queue(now + generator.choice([0, 2, 30]))])
            pending[one] = None
            schedule.add(one)
        assert schedule.first_at() == min((one.at for one in pending), default=math.inf)
        assert [*schedule] == [*pending]
        due = schedule.due(now)
        assert sorted(map(id, due)) == sorted(id(one) for one in pending if one.at <= now)
        for one in due:
            if generator.random() < 0.7:  # committed
                del pending[one]
                schedule.remove(one)
        schedule.update(queue(0))  # that of a shard without changes
    assert len(schedule._heap) <= 2 * len(schedule) + 200


def test_a_look_at_what_is_due_costs_no_more_for_many_shards() -> None:
    schedule = Schedule()
    for number in range(10_000):
        schedule.add(queue(100.0 + number))
    for number in range(10):
        schedule.add(queue(float(number)))
    Due.nlooks = 0
    for now in range(10):
        assert len(schedule.due(now)) == now + 1
    assert Due.nlooks <= 200


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    make_source(tmp_path / "source")
    return tmp_path / "source"


@pytest.mark.slow
@partial(in_trio, jump_after=5)  # the clock stands still while chunks are written
async def test_who_commits_what_is_due_looks_at_no_other_array(arrays: Path) -> None:
    document = json.loads((arrays / "end/zarr.json").read_text())
    names = [f"array-{number}" for number in range(100)]
    for name in names:
        (arrays / name).mkdir()
        (arrays / name / "zarr.json").write_text(json.dumps(document))
    process = await Process.start(arrays, QuickDisk())
    commits = process.writing.writer.commits
    due_at = ShardQueue.due_at.fget
    assert due_at is not None
    looks: list[ShardQueue] = []
    for npending in (10, 100):
        for name in names[len(commits.pending) : npending]:
            await process.write(name, 0, payload_of("end", 1))

        def count(one: ShardQueue) -> float:
            looks.append(one)
            return due_at(one)

        looks.clear()
        with patch.object(ShardQueue, "due_at", property(count)):
            commits.pending.first_at()
            assert commits._due() == []
            assert len(looks) <= 4, f"{npending} pending"
    await process.writing.finish()


@pytest.mark.parametrize("how", ["committed", "removed"])
@in_trio
async def test_a_shard_that_could_not_be_committed_is_named_no_longer_once_it_is(arrays: Path, how: str) -> None:
    process = await Process.start(arrays, QuickDisk())
    commits = process.writing.writer.commits
    for number in range(PER_SHARD):
        await process.write("end", number, payload_of("end", number + 1))
    with patch.object(commits.planner, "plan", side_effect=StoreError("the disk is away")), pytest.raises(StoreError):
        await process.commit()
    assert [one.key for one in commits.failing] == ["end/c/0"]
    if how == "committed":
        await process.commit()
    else:
        await process.edit("end", lambda document: document.update(shape=[INNER // 2]))
    assert not commits.failing
    assert all(one.error is None for one in commits.pending)
    await process.writing.finish()
    process.check_done()


@in_trio
async def test_a_session_that_waits_for_requests_wakes_when_something_is_pending(arrays: Path) -> None:
    """Another one may ask for it to be committed from that moment on."""
    process = await Process.start(arrays, QuickDisk())
    pending = process.writing.writer.commits.pending
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(pending.until_any)
        await trio.testing.wait_all_tasks_blocked()
        await process.write("end", 0, b"new")
    await pending.until_any()
    await process.writing.finish()
    with trio.move_on_after(0) as waiting:
        await pending.until_any()
    assert waiting.cancelled_caught
