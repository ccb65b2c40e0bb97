"""The tree of every array of the corpus, without a mount: names, numbers, sizes, bytes and resumed listings."""

from __future__ import annotations

import json
import stat
from collections.abc import AsyncIterator

import pytest

from shardfs.errors import IsADirectoryHereError, NoAttributeError, NotADirectoryHereError
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.handles import Attributes
from shardfs.vfs.inodes import ROOT
from tests.support.corpus import Case
from tests.support.encoder import Encoded, chunk_key
from tests.support.opened import StoredCorpus, find, in_trio, list_directory, open_source, open_tree, read_file, rows
from tests.support.parametrize import every_case


async def opened(stored: StoredCorpus, case: Case) -> Filesystem:
    return await open_tree(open_source(stored.path(case)))


def chunks(case: Case, encoded: Encoded) -> dict[str, bytes]:
    return {chunk_key(case.document, coords): data for coords, data in encoded.inner.items()}


async def walk(fs: Filesystem, ino: int = ROOT, path: str = "") -> AsyncIterator[tuple[str, Attributes]]:
    """Every name below *ino*, with the attributes that its listing gives."""
    async for (name, *_), attributes in rows(fs, ino):
        below = f"{path}/{name.decode()}" if path else name.decode()
        yield below, attributes
        if stat.S_ISDIR(attributes.status.mode):
            async for inner in walk(fs, attributes.ino, below):
                yield inner


@every_case
@in_trio
async def test_the_tree_holds_the_inner_chunks_and_the_document(stored: StoredCorpus, case: Case) -> None:
    fs = await opened(stored, case)
    files = {path: each async for path, each in walk(fs) if stat.S_ISREG(each.status.mode)}
    document = await read_file(fs, files.pop("zarr.json").ino)
    assert json.loads(document)["chunk_grid"]["name"] == "regular"
    assert {path: await read_file(fs, each.ino) for path, each in files.items()} == chunks(
        case, stored.encoded[case.name]
    )


@every_case
@in_trio
async def test_a_listing_a_lookup_and_the_attributes_agree(stored: StoredCorpus, case: Case) -> None:
    fs = await opened(stored, case)
    numbers = {ROOT}
    async for path, listed in walk(fs):
        assert listed.ino not in numbers, "each has a number of its own"
        numbers.add(listed.ino)
        found = await find(fs, path)
        asked = await fs.attributes(listed.ino)
        for other in (found, asked):
            assert (other.ino, other.size, other.status) == (listed.ino, listed.size, listed.status)
            assert 0 < other.ttl <= 1.0
        if stat.S_ISREG(listed.status.mode):
            number, handle = await fs.open(listed.ino)
            assert (handle.attributes.ino, handle.attributes.size) == (listed.ino, listed.size)
            assert handle.is_direct == (path != "zarr.json")
            fs.open_files.pop(number)
            with pytest.raises(NotADirectoryHereError):
                await fs.lookup(listed.ino, b"x")
            with pytest.raises(NotADirectoryHereError):
                await list_directory(fs, listed.ino)
        else:
            with pytest.raises(IsADirectoryHereError):
                await fs.open(listed.ino)


@every_case
@in_trio
async def test_a_listing_resumes_at_every_cookie(stored: StoredCorpus, case: Case) -> None:
    fs = await opened(stored, case)
    directories = [ROOT, *[each.ino async for _, each in walk(fs) if stat.S_ISDIR(each.status.mode)]]
    for ino in directories:
        listed = await list_directory(fs, ino)
        cookies = [row[3] for row in listed]
        assert len(set(cookies)) == len(cookies)
        assert 0 not in cookies
        for i, cookie in enumerate(cookies):
            assert await list_directory(fs, ino, cookie) == listed[i + 1 :]


@every_case
@in_trio
async def test_names_outside_the_grid_and_chunks_that_are_absent_are_not_there(
    stored: StoredCorpus, case: Case
) -> None:
    fs = await opened(stored, case)
    encoded = stored.encoded[case.name]
    grid = (await fs.hierarchy.node("")).array.grid  # type: ignore[union-attr]
    for axis, n in enumerate(grid.grid_shape):
        for beyond in (n, n + 1, 10**18, 10**30):
            coords = [0] * grid.ndim
            coords[axis] = beyond
            assert (await find(fs, chunk_key(case.document, tuple(coords)))).ino == 0
    for coords in case.absent:
        absent = await find(fs, chunk_key(case.document, coords))
        assert absent.ino == 0
        assert 0 < absent.ttl <= 1.0
    for name in ("nothing", "c.x", "c0", "-1", "00", "0.0.0.0.0.0.0"):
        assert (await find(fs, name)).ino == 0
    assert len(encoded.inner) + len(case.absent) <= grid.nchunks


@every_case
@in_trio
async def test_chunks_say_where_they_lie(stored: StoredCorpus, case: Case) -> None:
    fs = await opened(stored, case)
    encoded = stored.encoded[case.name]
    array = (await fs.hierarchy.node("")).array
    assert array is not None
    for key, data in chunks(case, encoded).items():
        ino = (await find(fs, key)).ino
        names = await (await fs.entry(ino)).attribute_names()
        values = {name: await (await fs.entry(ino)).attribute(name) for name in names}
        assert int(values.pop(b"user.shardfs.nbytes")) == len(data)
        stored_shard = encoded.files[values.pop(b"user.shardfs.shard").decode()]
        if any(level.after for level in array.grid.levels):
            assert values == {}
        else:
            offset = int(values.pop(b"user.shardfs.offset"))
            assert stored_shard[offset : offset + len(data)] == data
        with pytest.raises(NoAttributeError):
            await (await fs.entry(ino)).attribute(b"user.other")


@in_trio
async def test_the_whole_corpus_is_one_tree(stored: StoredCorpus) -> None:
    fs = await open_tree(open_source(stored.root))
    arrays = [row[0].decode() for row in await list_directory(fs, ROOT)]
    assert arrays == sorted(stored.encoded)
    numbers = set()
    for name in arrays[::10]:
        async for path, attributes in walk(fs, (await find(fs, name)).ino, name):
            assert attributes.ino not in numbers
            numbers.add(attributes.ino)
            assert (await find(fs, path)).ino == attributes.ino


@in_trio
async def test_handles_are_not_used_again(stored: StoredCorpus) -> None:
    fs = await open_tree(open_source(stored.root))
    ino = (await find(fs, "2d/zarr.json")).ino
    first, _ = await fs.open(ino)
    fs.open_files.pop(first)
    second = fs.open_directory(ROOT)
    third, _ = await fs.open(ino)
    assert len({first, second, third}) == 3
    with pytest.raises(KeyError):
        fs.open_files[first]
