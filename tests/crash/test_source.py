"""What is left of a dataset that was being written, wherever the process or the machine stopped.

Every call that changes the disk is one where it stops, those of a recovery too. After a kill all is there that was
published; after a power cut all that was published before a sync that returned; what came later is there or not, but
whole. Everything is in shards then that any reader understands, and nothing is left behind. The same is promised of
the chunk files of unsharded arrays.
"""

import random
from pathlib import Path

import pytest

from tests.crash.crashes import IS_LONG, Crashes
from tests.crash.histories import ARRAYS, INNER, SHAPE, Operation
from tests.support.lossy_disk import Machine, oldest

RANDOM_HISTORIES = 1500 if IS_LONG else 40

op = Operation

SHORT = {
    "append": [op("put", "{}", (1,), 10), op("sync"), op("put", "{}", (2, 5), 20), op("commit")],
    "overwrite a whole shard": [op("put", "{}", (0, 1, 2, 3), 10), op("commit")],
    "erase all of a shard": [
        op("put", "{}", (5,), 20),
        op("erase", "{}", (0, 1, 2, 5)),
        op("commit"),
        op("put", "{}", (1,), 10),
        op("commit"),
    ],
    "replace what is pending": [
        op("put", "{}", (1,), 10),
        op("sync"),
        op("put", "{}", (1,), 20),
        op("erase", "{}", (0,)),
        op("commit"),
    ],
    "shrink and grow": [
        op("put", "{}", (5,), 10),
        op("resize", "{}", shape=INNER + 5),
        op("resize", "{}", shape=SHAPE),
        op("put", "{}", (2,), 20),
        op("commit"),
    ],
    "carry forward": [
        op("put", "{}", (0, 3), 10),
        op("erase", "{}", (1,)),
        op("put", "{}", (0,), 20),
        op("sync"),
        op("clean"),
        op("put", "{}", (3,), 30),
        op("clean"),
        op("commit"),
    ],
    "beside and rename": [op("rename", "{}", (3,), 10), op("label", "{}", seed=7), op("commit")],
    "empty": [op("empty", "{}", (5,)), op("empty", "{}", (1,)), op("commit"), op("put", "{}", (1,), 10), op("commit")],
    "the same again": [op("put", "{}", (1,), 1), op("commit"), op("put", "{}", (1,), 10), op("put", "{}", (1,), 1)],
}
"""Histories of one array, which has the chunks 0, 1, 2 and 4 at the beginning."""


def of_array(name: str, path: str) -> list[Operation]:
    """A short history, of one array."""
    history = [Operation(o.what, path if o.path else "", o.chunks, o.seed, o.shape) for o in SHORT[name]]
    return [o for o in history if path != "unsharded" or o.what != "label"]


every_history = pytest.mark.parametrize(
    ("name", "path"),
    [
        ("append", "unchecked"),
        ("replace what is pending", "nested"),
        ("overwrite a whole shard", "encoded"),
        ("erase all of a shard", "unsharded"),
        ("shrink and grow", "start"),
        ("carry forward", "unsharded"),
        ("beside and rename", "unchecked"),
        ("empty", "end"),
        ("the same again", "unsharded"),
    ],
)


@every_history
def test_a_process_killed_at_any_call_leaves_what_it_published(
    template: Path, tmp_path: Path, name: str, path: str
) -> None:
    crashes = Crashes(tmp_path, template, of_array(name, path), random.Random(f"{name} {path}"))
    machine, book = crashes.whole()
    for at in crashes.kills(machine):
        crashes.check_state(machine.after_kill(at, crashes.any_part()), book.at(at), power_cut=False)


@every_history
def test_a_power_cut_at_any_call_leaves_what_was_synced(template: Path, tmp_path: Path, name: str, path: str) -> None:
    crashes = Crashes(tmp_path, template, of_array(name, path), random.Random(f"{name} {path}"))
    machine, book = crashes.whole()
    for at in range(len(machine.calls) + 1):
        is_written = "pwrite" in (call.name[:6] for call in machine.calls[at - 2 : at])  # and maybe not all of it
        for _ in range(20 if IS_LONG else 12 if is_written else 1):
            state = machine.after_power_cut(crashes.any_choice(), at, keeps_inodes=True)
            crashes.check_state(state, book.at(at), power_cut=True)


@pytest.mark.parametrize("path", ["start", "encoded", "unsharded"])
def test_a_recovery_killed_at_any_call_is_done_by_the_next(template: Path, tmp_path: Path, path: str) -> None:
    crashes = Crashes(tmp_path, template, of_array("replace what is pending", path), random.Random(path))
    killed, book = crashes.whole()
    kills = crashes.kills(killed)
    for at in kills if IS_LONG else crashes.chance.sample(kills, 4):
        root = crashes.after("killed")
        killed.after_kill(at, crashes.any_part()).build(root)
        machine = Machine(root, **crashes.kind)
        assert not crashes.recover(root, machine)
        for stop in crashes.kills(machine):
            crashes.check_state(machine.after_kill(stop, crashes.any_part()), book.at(at), power_cut=False)


@pytest.mark.parametrize("name", ["append", "erase all of a shard"])
def test_what_a_recovery_brought_into_shards_is_durable(template: Path, tmp_path: Path, name: str) -> None:
    crashes = Crashes(tmp_path, template, of_array(name, "end"), random.Random(name))
    whole, _ = crashes.whole()
    for at in range(len(whole.calls)):
        root, machine, book = crashes.begin()
        assert crashes.live(root, machine, book, at)
        assert not crashes.recover(root, machine)
        book.sync()
        crashes.check_state(machine.after_power_cut(oldest, keeps_inodes=True), book, power_cut=True)


def test_random_histories_of_kills_recoveries_and_power_cuts(template: Path, tmp_path: Path) -> None:
    for seed in range(RANDOM_HISTORIES):
        stop_somewhere(template, tmp_path, seed)


def stop_somewhere(template: Path, directory: Path, seed: int) -> None:
    chance = random.Random(seed)
    crashes = Crashes(directory, template, random_history(chance), chance)
    root, machine, book = crashes.begin()
    try:
        killed = crashes.live(root, machine, book, chance.randrange(10, 220))
        stop = len(machine.calls) - killed
        while killed and chance.random() < 0.6:
            killed = crashes.recover(root, machine, chance.randrange(30) if chance.random() < 0.6 else None)
            if not killed:
                book.sync()  # a recovery that ends leaves nothing to be lost
            stop = len(machine.calls) - killed
        power_cut = chance.random() < 0.6
        if power_cut:
            root = crashes.after()
            keeps = chance.choice([False, True])
            choose = crashes.any_choice()
            machine.after_power_cut(choose, stop, sync_keeps_name=keeps, keeps_inodes=True).build(root)
        crashes.check(root, book, power_cut=power_cut)
    except BaseException as error:
        error.add_note(f"seed {seed}, history {crashes.history}")
        raise


def random_history(chance: random.Random) -> list[Operation]:
    history: list[Operation] = []
    shapes = dict.fromkeys(ARRAYS, SHAPE)
    paths = chance.sample(list(ARRAYS), chance.choice([1, 2, 5]))
    changes = ["put", "put", "put", "full", "erase", "rename", "sync", "commit", "label", "resize", "clean"]
    if "unsharded" in paths:
        changes = [change for change in changes if change not in ("label", "resize")]
    for step in range(chance.randrange(4, 20)):
        path = chance.choice(paths)
        chunks = range(-(-shapes[path] // INNER))
        seed = 100 * (step + 1)
        what = chance.choice(changes)
        match what:
            case "put" | "erase":
                some = tuple(sorted(chance.sample(chunks, chance.randrange(1, min(4, len(chunks)) + 1))))
                history.append(Operation(what, path, some, seed))
            case "full":
                some = tuple(n for n in chunks if n // 4 == 0)
                history.append(Operation("put", path, some, seed))
            case "rename":
                history.append(Operation(what, path, (chance.choice(chunks),), seed))
            case "label":
                history.append(Operation(what, path, seed=seed))
            case "resize":
                shapes[path] = chance.choice([SHAPE, SHAPE, INNER * 4, INNER + 5, INNER * 6 - 1])
                history.append(Operation(what, path, shape=shapes[path]))
            case _:
                history.append(Operation(what))
    return history
