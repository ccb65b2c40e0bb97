"""The disk that fails and loses: faults, death, and what a power cut may leave."""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.lossy_disk import PAGE, Fault, LossyDisk, newest, oldest

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
        self.disk.after_power_cut(choose, calls, **how).build(directory)
        return tree(directory)

    def cuts_at_random(self, calls: int | None = None) -> Iterator[dict[str, bytes]]:
        for seed in range(60):
            yield self.cut(random.Random(seed).randrange, calls)


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "root")


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


def test_a_name_needs_a_sync_of_its_directory(scene: Scene) -> None:
    fd = scene.create("new")
    scene.disk.sync(fd)
    scene.disk.sync_directory(scene.below)
    assert {"new" in cut for cut in scene.cuts_at_random()} == {True, False}
    assert "new" in scene.cut(oldest, sync_keeps_name=True)
    scene.disk.sync_directory(scene.here)
    assert scene.cut(oldest)["new"] == b""
