"""Whatever programs do to names and files, a bucket comes to what a local disk comes to."""

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardfs.errors import CrossDeviceError, NotADirectoryHereError, NotFoundError, ShardfsError
from shardfs.stores.base import ABSENT, ANY, Kept, Kind, Splice, Store, join_key
from tests.stores.conformance.conftest import Subject, local, s3
from tests.stores.local.splices import content
from tests.support.fake_s3 import FakeS3
from tests.support.opened import in_session

KEYS = ["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a"]


@dataclass(frozen=True)
class Step:
    """One request to a store."""

    name: str
    key: str
    to: str
    data: bytes
    exclusive: bool

    async def take(self, store: Store) -> None:
        match self.name:
            case "replace":
                await store.replace(self.key, self.data, ABSENT if self.exclusive else ANY)
            case "write":
                file = await store.create(self.key, 0o644, exclusive=self.exclusive)
                await file.write(2, self.data)
                await file.flush()
                await file.close()
            case "truncate":
                file = await store.open_to_write(self.key)
                await file.truncate(len(self.data))
                await file.close()
            case "append":
                async with store.edit(self.key) as edit:
                    size = edit.snapshot.size if edit.snapshot is not None else 0
                    await edit.splice(Splice((Kept(0, size), content(self.data))))
            case "rename":
                await store.rename(self.key, self.to, exclusive=self.exclusive)
            case "mkdir":
                await store.mkdir(self.key, 0o755)
            case "flush":
                await store.flush()
            case _:
                await getattr(store, self.name)(self.key)


NAMES = ["replace", "write", "write", "truncate", "append", "rename", "rename", "unlink", "mkdir", "rmdir"]
NAMES += ["make_directories", "flush", "stat", "list", "open"]
STEPS = st.builds(
    Step, st.sampled_from(NAMES), st.sampled_from(KEYS), st.sampled_from(KEYS), st.binary(max_size=5), st.booleans()
)


async def tree(store: Store, directory: str = "") -> dict[str, bytes | None]:
    """All that a store holds; directories have None."""
    found: dict[str, bytes | None] = {}
    for entry in await store.list(directory):
        key = join_key(directory, entry.name)
        if entry.name.startswith(".shardfs"):
            continue
        if entry.kind is Kind.DIRECTORY:
            found[key] = None
            found |= await tree(store, key)
        else:
            snapshot = await store.open(key)
            found[key] = bytes(await snapshot.read(0, snapshot.size))
    return found


async def outcome(store: Store, step: Step) -> type[ShardfsError] | None:
    try:
        await step.take(store)
    except NotADirectoryHereError:  # what lies below a file is not there: a bucket does not say why
        return NotFoundError
    except ShardfsError as error:
        return type(error)
    return None


async def is_below_file(store: Store, key: str) -> bool:
    try:
        await store.stat(key)
    except NotADirectoryHereError:
        return True
    except NotFoundError:
        pass
    return False


async def compare(subject: Subject, steps: list[Step], directory: Path) -> None:
    model, store = await local(directory).begin(), await subject.begin()
    for step in steps:
        if step.name == "append" and await is_below_file(model, step.key):
            continue  # nobody looks for shards there
        got = await outcome(store, step)
        if got is CrossDeviceError:  # programs copy and delete then, as is not done here
            assert step.name == "rename"
            continue
        assert got == await outcome(model, step), step
        assert await tree(store) == await tree(model), step
    stored = await tree(await subject.again(store))
    assert {key: data for key, data in stored.items() if data is not None} == {
        key: data for key, data in (await tree(model)).items() if data is not None
    }


@pytest.mark.slow
@given(steps=st.lists(STEPS, max_size=20))
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
def test_all_stores_come_to_the_same(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        subject = s3(FakeS3().client_at("data.zarr"), Path(directory, "state"))
        trio.run(in_session, partial(compare, subject, steps, Path(directory, "source")))
