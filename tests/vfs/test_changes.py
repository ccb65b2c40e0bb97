"""How long the kernel may believe what it was answered."""

from pathlib import Path

from tests.support.corpus import array, sharding
from tests.support.datasets import age, store
from tests.support.opened import find, in_trio, open_source, open_tree, rows


@in_trio
async def test_answers_carry_the_time_that_remains(tmp_path: Path) -> None:
    store(tmp_path / "a", array((8, 6), (4, 6), sharding((2, 3))))
    age(tmp_path)
    opened = open_source(tmp_path)
    fs = await open_tree(opened)
    await find(fs, "a/c/0/0")
    opened.clock.now += 0.25
    for path in ("a/c/0/0", "a/c/0", "a/c", "a/zarr.json", "a/c/0/1", "a/c/0/7", "a/c/9"):
        assert (await find(fs, path)).ttl == 0.75
    ino = (await find(fs, "a/c/0")).ino
    assert {each.ttl async for _, each in rows(fs, ino)} == {0.75}
