"""The disk that fails and loses: faults, death, and what a power cut may leave."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.lossy_disk import PAGE, Fault, Killed, LossyDisk, newest, oldest

OLD = b"o" * (2 * PAGE + 100)


class Scene:
    """A directory with a file `old`, changed through a disk by descriptors of both."""

    def __init__(self, root: Path, faults: dict[int, Fault] | None = None) -> None:
        self.root = root
        root.mkdir()
        (root / "old").write_bytes(OLD)
        (root / "d").mkdir()
        self.disk = LossyDisk(root, faults)
        self.here = os.open(root, os.O_RDONLY)
        self.below = os.open(root / "d", os.O_RDONLY)
        self.old = os.open(root / "old", os.O_RDWR)
        self.cuts = 0

    def create(self, name: str) -> int:
        return self.disk.create(name, os.O_RDWR | os.O_EXCL, 0o644, self.here)

    def cut(self, choose: Callable[[int], int], calls: int | None = None, **how: bool) -> dict[str, bytes]:
        self.cuts += 1
        directory = self.root.parent / f"cut{self.cuts}"
        self.disk.after_power_cut(directory, choose, calls, **how)
        return tree(directory)

    def cuts_at_random(self, calls: int | None = None) -> Iterator[dict[str, bytes]]:
        for seed in range(60):
            yield self.cut(random.Random(seed).randrange, calls)


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "root")


def test_a_write_may_fail_half_way(scene: Scene) -> None:
    scene.disk.faults = {0: Fault(OSError(errno.ENOSPC, "full"), written=4)}
    with pytest.raises(OSError, match="full"):
        scene.disk.pwrite(scene.old, [b"123456"], 0)
    assert (scene.root / "old").read_bytes() == b"1234" + OLD[4:]
    assert scene.cut(newest)["old"] == b"1234" + OLD[4:]


def test_who_is_killed_does_nothing_any_more(scene: Scene) -> None:
    scene.disk.faults = {1: Fault(Killed(), written=2)}
    scene.disk.pwrite(scene.old, [b"first"], 0)
    with pytest.raises(Killed):
        scene.disk.pwrite(scene.old, [b"second"], 10)
    for _ in range(2):
        with pytest.raises(Killed):
            scene.disk.pwrite(scene.old, [b"third"], 20)
        with pytest.raises(Killed):
            scene.disk.unlink("old", scene.here)
    assert (scene.root / "old").read_bytes() == b"first" + OLD[5:10] + b"se" + OLD[12:]
    assert len(scene.disk.calls) == 2


def test_what_was_not_synced_may_be_lost_or_kept(scene: Scene) -> None:
    scene.disk.pwrite(scene.old, [b"NEW"], 0)
    fd = scene.create("new")
    scene.disk.pwrite(fd, [b"content"], 0)
    assert scene.cut(oldest) == {"old": OLD}
    assert scene.cut(newest) == {"old": b"NEW" + OLD[3:], "new": b"content"} == tree(scene.root)
    seen = {(cut["old"], cut.get("new")) for cut in scene.cuts_at_random()}
    assert {old for old, _ in seen} == {OLD, b"NEW" + OLD[3:]}
    assert {new for _, new in seen} == {None, b"", b"content", bytes(7)}


def test_what_was_synced_is_kept(scene: Scene) -> None:
    fd = scene.create("new")
    scene.disk.pwrite(fd, [b"content"], 0)
    scene.disk.truncate(fd, 4)
    scene.disk.sync(fd)
    scene.disk.sync_directory(scene.here)
    scene.disk.pwrite(scene.old, [b"NEW"], 0)
    scene.disk.sync(scene.old)
    for cut in scene.cuts_at_random():
        assert cut == tree(scene.root) == {"old": b"NEW" + OLD[3:], "new": b"cont"}


def test_a_sync_covers_what_was_before_it(scene: Scene) -> None:
    scene.disk.pwrite(scene.old, [b"1"], 0)
    scene.disk.sync(scene.old)
    scene.disk.pwrite(scene.old, [b"2"], 0)
    assert {cut["old"][:1] for cut in scene.cuts_at_random()} == {b"1", b"2"}
    assert {cut["old"][:1] for cut in scene.cuts_at_random(calls=2)} == {b"1"}
    assert {cut["old"][:1] for cut in scene.cuts_at_random(calls=1)} == {b"o", b"1"}
    assert {cut["old"][:1] for cut in scene.cuts_at_random(calls=0)} == {b"o"}


def test_pages_are_lost_one_by_one(scene: Scene) -> None:
    scene.disk.pwrite(scene.old, [b"n" * len(OLD)], 0)
    seen = {bytes(cut["old"][at] for at in (0, PAGE, 2 * PAGE)) for cut in scene.cuts_at_random()}
    assert len(seen) == 8
    assert all(cut["old"][:PAGE] in (b"o" * PAGE, b"n" * PAGE) for cut in scene.cuts_at_random())


def test_an_append_may_grow_the_file_with_zeros_in_it_or_end_at_any_page(scene: Scene) -> None:
    scene.disk.pwrite(scene.old, [b"a" * (3 * PAGE)], len(OLD))
    seen = [cut["old"] for cut in scene.cuts_at_random()]
    assert {len(old) for old in seen} == {len(OLD), 3 * PAGE, 4 * PAGE, 5 * PAGE, len(OLD) + 3 * PAGE}
    assert all(old.startswith(OLD) and set(old[len(OLD) :]) <= {0, ord("a")} for old in seen)
    assert any(old[len(OLD) : 3 * PAGE] == bytes(PAGE - 100) and old.endswith(b"a") for old in seen)


def test_a_truncation_may_be_lost(scene: Scene) -> None:
    scene.disk.truncate(scene.old, 10)
    scene.disk.truncate(scene.old, 50)
    assert scene.cut(oldest)["old"] == OLD
    seen = {cut["old"] for cut in scene.cuts_at_random()}
    assert OLD[:10] in seen
    assert OLD[:10] + bytes(40) in seen
    assert {len(old) for old in seen} == {10, 50, len(OLD)}


def test_a_failed_sync_cannot_be_made_good_by_another(scene: Scene) -> None:
    scene.disk.faults = {1: Fault(OSError(errno.EIO, "broken"))}
    scene.disk.pwrite(scene.old, [b"NEW"], 0)
    with pytest.raises(OSError, match="broken"):
        scene.disk.sync(scene.old)
    scene.disk.sync(scene.old)
    assert {cut["old"] for cut in scene.cuts_at_random()} == {OLD, b"NEW" + OLD[3:]}
    scene.disk.pwrite(scene.old, [b"NEW"], 0)
    scene.disk.sync(scene.old)
    assert {cut["old"] for cut in scene.cuts_at_random()} == {b"NEW" + OLD[3:]}


def test_a_name_needs_a_sync_of_its_directory(scene: Scene) -> None:
    fd = scene.create("new")
    scene.disk.sync(fd)
    scene.disk.sync_directory(scene.below)
    assert {"new" in cut for cut in scene.cuts_at_random()} == {True, False}
    assert "new" in scene.cut(oldest, sync_keeps_name=True)
    scene.disk.sync_directory(scene.here)
    assert scene.cut(oldest)["new"] == b""


def test_a_rename_happens_or_not(scene: Scene) -> None:
    fd = scene.create("new")
    scene.disk.pwrite(fd, [b"new"], 0)
    scene.disk.sync(fd)
    scene.disk.sync_directory(scene.here)
    scene.disk.rename("new", "old", scene.here, scene.here)
    seen = [cut for cut in scene.cuts_at_random() if len(cut) == 1]
    assert all(cut in ({"old": b"new"}, {"old": OLD, "new": b"new"}) for cut in scene.cuts_at_random())
    assert 0 < len(seen) < 60
    scene.disk.sync_directory(scene.here)
    assert scene.cut(oldest) == {"old": b"new"}


def test_a_rename_between_directories_is_certain_when_both_are_synced(scene: Scene) -> None:
    scene.disk.rename("old", "moved", scene.here, scene.below)
    scene.disk.sync_directory(scene.below)
    assert {tuple(cut) for cut in scene.cuts_at_random()} == {("old",), ("d/moved",)}
    scene.disk.sync_directory(scene.here)
    assert scene.cut(oldest) == {"d/moved": OLD}


def test_removed_names_may_come_back(scene: Scene) -> None:
    scene.disk.link("old", "second", scene.here, scene.here)
    scene.disk.symlink(b"old", "soft", scene.here)
    scene.disk.sync_directory(scene.here)
    scene.disk.unlink("old", scene.here)
    scene.disk.rmdir("d", scene.here)
    assert scene.cut(oldest) == {"old": OLD, "second": OLD, "soft": OLD}
    assert scene.cut(newest) == {"second": OLD}
    assert not (scene.root.parent / "cut2" / "d").exists()


def test_a_number_that_is_used_again_stands_for_another_file(scene: Scene) -> None:
    for content in (b"a", b"bb", b"ccc"):
        fd = scene.create("new")
        scene.disk.pwrite(fd, [content], 0)
        os.close(fd)
        scene.disk.unlink("new", scene.here)
    assert {cut.get("new") for cut in scene.cuts_at_random()} >= {None, b"a", b"bb", b"ccc"}


def test_what_a_kill_leaves_can_be_seen_at_every_call(scene: Scene) -> None:
    before = os.fstat(scene.old)
    fd = scene.create("new")
    scene.disk.pwrite(fd, [b"new"], 0)
    scene.disk.rename("new", "old", scene.here, scene.here)
    mtime_ns = os.fstat(fd).st_mtime_ns
    seen = []
    for calls, written in ((0, 0), (1, 0), (1, 2), (2, 0), (3, 0)):
        directory = scene.root.parent / f"{calls}-{written}"
        scene.disk.after_kill(directory, calls, written)
        seen.append({path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()})
    old = {"old": OLD}
    assert seen == [old, old | {"new": b""}, old | {"new": b"ne"}, old | {"new": b"new"}, {"old": b"new"}]
    assert os.path.samestat((scene.root.parent / "0-0/old").stat(), before)
    assert (directory / "old").stat().st_mtime_ns == mtime_ns
