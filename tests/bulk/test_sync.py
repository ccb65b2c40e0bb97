"""`--sync`: an interrupted run goes on, what changed is done again, and the end is that of an undisturbed run."""

import errno
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import trio
import zarr

from shardfs.bulk.delivery import Job
from shardfs.bulk.engine import WorkerContext
from shardfs.bulk.pack import PackPlan
from shardfs.bulk.run import Plan, RunOptions, RunReport
from shardfs.bulk.run import fill as fill_with
from shardfs.bulk.unpack import Unpacking, UnpackPlan
from shardfs.errors import ShardfsError, UsageError
from shardfs.format.lens.packed import Packing
from shardfs.stores.local.syscalls import Syscalls
from shardfs.stores.local.tree import LocalStore
from shardfs.stores.url import StoreOptions
from tests.bulk.test_pack import pack, write_v3
from tests.support.commands import FAILED, SOURCE, WRONG_USAGE, one_line_of, run
from tests.support.damage import edit, flip, index
from tests.support.datasets import files_below
from tests.support.lossy_disk import Fault, Killed, LossyDisk, QuickDisk
from tests.support.mounting import Mounter, command, environment, eventually
from tests.support.places import Place, Places
from tests.support.processes import tied
from tests.support.users import NOBODY

QUICK = QuickDisk()
SHAPES = ("--shard-size", "20K")


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def kinds(*pairs: tuple[str, str]) -> list[Any]:
    return [pytest.param(pair, marks=pytest.mark.slow if "bucket" in pair else ()) for pair in pairs]


from_each_to_each = pytest.mark.parametrize(
    "places", kinds(*product(("directory", "bucket"), repeat=2)), indirect=True, ids=" to ".join
)
"""How a source is read does not depend on where the destination is: one test looks at all pairs."""


@pytest.fixture(params=kinds(("directory", "directory"), ("bucket", "bucket")), ids=" to ".join)
def places(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """Source and destination, each in a directory or in a bucket."""
    bucket = None
    if "bucket" in request.param:
        bucket = request.getfixturevalue("s3_bucket")
        monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint_url)
    source, made = (bucket if kind == "bucket" else None for kind in request.param)
    return Places(Place(tmp_path / "source", source), tmp_path, made)


def summary(*arguments: str | Path, status: int = 0) -> str:
    done = run(*arguments, *(() if "--jobs" in arguments else ("--jobs", "1")))
    assert done.returncode == status, str(done)
    return done.stdout.strip()


@pytest.mark.slow
@from_each_to_each
@pytest.mark.parametrize("command", [("pack", *SHAPES), ("unpack", "--view", "npy")], ids=" ".join)
def test_only_what_is_missing_or_changed_is_done_again(places: Places, command: tuple[str, ...]) -> None:
    source, made, fresh = places.source, places.made(), places.made("fresh")
    with source.edited() as path:
        write_v3(path)
    summary(*command, source.url, made.url)
    assert summary(*command, "--sync", source.url, made.url).startswith("0 objects stored")

    with source.edited() as path:
        image = zarr.open_group(path)["image"]
        image[:8, :8, :8] = 1
        image[32:, 48:, 24:] = image.fill_value  # zarr-python removes a chunk of fill values
        shutil.rmtree(path / "notes")
        (path / "new.txt").write_text("new")
    with made.edited() as path:
        (path / "empty/of/others").mkdir(parents=True)
        next(path / key for key in files_below(path) if key.startswith("below/table")).unlink()
    again = summary(*command, "--sync", source.url, made.url)
    summary(*command, source.url, fresh.url)
    assert made.files() == fresh.files()
    if made.bucket is None:
        assert not (made.path / "notes").exists()
        assert (made.path / "empty/of/others").is_dir()
    assert 1 <= int(again.split()[0]) <= 6
    assert summary(*command, "--sync", source.url, made.url).startswith("0 objects stored")


@pytest.mark.slow
def test_names_need_not_be_utf8(tmp_path: Path) -> None:
    source, made = tmp_path / os.fsdecode(b"source\xff"), tmp_path / os.fsdecode(b"made\xfe")
    write_small(tmp_path / "new")
    (tmp_path / "new").rename(source)
    (source / "a").rename(source / os.fsdecode(b"\xfd\n"))
    for words in (["pack"], ["pack", "--sync"], ["unpack", "--view", "npy"]):
        assert "stored" in summary(*words, source, made if "pack" in words else tmp_path / "arrays")
    assert set(files_below(made)) == set(files_below(source))


@pytest.mark.slow
def test_what_was_damaged_behind_its_back_is_found_by_comparing_bytes(tmp_path: Path) -> None:
    source, made = tmp_path / "source", tmp_path / "made"
    write_v3(source)
    pack(source, made, *SHAPES)
    before = files_below(made)
    shard = made / "image/c/0/0/0"
    status = shard.stat()
    shard.write_bytes(shard.read_bytes()[::-1])
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert summary("pack", *SHAPES, "--sync", source, made).startswith("0 objects stored")
    assert summary("pack", *SHAPES, "--checksum", source, made).startswith("1 object stored")
    assert files_below(made) == before


@pytest.mark.slow
@pytest.mark.parametrize("how", ["--sync", "--checksum"])
@pytest.mark.parametrize("damaged", [["c/1"], ["c/0", "c/1"]])
def test_a_shard_that_was_stored_whole_is_kept_when_the_source_is_damaged(
    places: Places, how: str, damaged: list[str]
) -> None:
    source, made = places.source, places.made()
    with source.edited() as path:
        array = zarr.create_array(path, shape=(16,), chunks=(2,), shards=(4,), dtype="i4", fill_value=-1)
        array[...] = np.arange(16)
    summary("pack", "--shards", "4", source.url, made.url)
    before = made.files()
    with source.edited() as path:
        for key in damaged:
            edit(path / key, flip(-3))
    done = run("pack", "--shards", "4", how, source.url, made.url, "--jobs", "1")
    assert done.returncode == FAILED
    assert "c/0 of DEST stays as an earlier run stored it" in done.stderr
    assert made.files() == before
    with made.edited() as path:
        (path / "c/0").unlink()
    summary("pack", "--shards", "4", how, source.url, made.url, status=FAILED)
    with made.edited() as path:
        assert [*zarr.open_array(path)[:8]].count(-1) == 4 * len(damaged)


@pytest.mark.slow
def test_a_shard_of_other_codecs_is_made_again_also_if_the_source_is_damaged(places: Places) -> None:
    source, made, fresh = places.source, places.made(), places.made("fresh")
    words = ("pack", "--shards", "4", "--codecs", "gzip")
    with source.edited() as path:
        create = partial(zarr.create_array, path, shape=(16,), chunks=(2,), shards=(4,), dtype="i4", overwrite=True)
        create(compressors=None)[...] = 1
    summary(*words, source.url, made.url)
    with source.edited() as path:
        text = (path / "zarr.json").read_text()
        (path / "zarr.json").write_text(text.replace('"little"', '"big"', 1))
    summary(*words, "--sync", source.url, made.url)
    summary(*words, source.url, fresh.url)
    assert made.files() == fresh.files()
    with source.edited() as path:
        create()[...] = 2
        edit(path / "c/1", flip(-3))
    assert "stays as an earlier run" not in run(*words, "--sync", "--jobs", "1", source.url, made.url).stderr
    with made.edited() as path:
        assert [*zarr.open_array(path)[...]] == [2] * 4 + [0] * 4 + [2] * 8


@pytest.mark.slow
def test_after_an_interruption_no_old_document_describes_new_shards(places: Places) -> None:
    source, made = places.source, places.made()
    with source.edited() as path:
        create = partial(zarr.create_array, path, shape=(16,), chunks=(1,), dtype="i4", overwrite=True)
        create(compressors=None)[...] = 1
    summary("pack", "--shards", "8", source.url, made.url)

    def interrupt(report: RunReport) -> None:
        if report.stored:
            raise KeyboardInterrupt

    def begin() -> set[str]:
        plan, how = PackPlan(Packing(chunks_per_shard=(8,))), RunOptions(True, jobs=1, progress=interrupt)
        with pytest.raises(KeyboardInterrupt):
            trio.run(fill_with, source.url, made.url, plan, how, StoreOptions())
        return set(made.files())

    with source.edited():
        create()[...] = 2
    assert begin() == {"c/0", "c/1"}
    summary("pack", "--shards", "8", "--sync", source.url, made.url)
    with made.edited() as path:
        assert [*zarr.open_array(path)[...]] == [2] * 16
    with source.edited() as path:
        array = zarr.open_array(path)
        array.resize(32)
        array[:8] = 3
    assert begin() == {"zarr.json", "c/0", "c/1"}, "shards of both shapes are right in the old document"


@pytest.mark.slow
def test_a_destination_that_no_known_run_made_is_refused(places: Places) -> None:
    """It may be the only copy of something else, or have shards of what is gone from the source."""
    source, made, packed = places.source, places.made(), places.made("packed")
    for place in (source, made):
        with place.edited() as path:
            write_v3(path)
    summary("pack", *SHAPES, source.url, packed.url)
    before = made.files(), packed.files()
    unknown = "DEST is not empty, and no run is known on this machine that made it: choose another DEST"
    other = "DEST was made by another command: pack --shard-size 20480 "
    for words in ("pack --sync", "pack --checksum", "unpack --sync"):
        for destination, expected in ((made, unknown), (packed, other)):
            done = run(*words.split(), source.url, destination.url)
            assert (done.returncode, expected in done.stderr) == (WRONG_USAGE, True)
    assert (made.files(), packed.files()) == before


def test_a_run_that_finds_another_was_faster_takes_nothing_of_it(places: Places) -> None:
    """Both found DEST empty; what the first has noted of it stays, and it can be gone on with."""
    source, made = places.source, places.made()
    with source.edited() as path:
        write_small(path)

    class Overtaken(PackPlan):
        async def look(self, job: Job, context: WorkerContext) -> AsyncIterator[str]:
            async for line in super().look(job, context):
                yield line
            await trio.to_thread.run_sync(summary, "pack", "--shards", "4", source.url, made.url)

    plan, how = Overtaken(Packing(chunks_per_shard=(4,))), RunOptions(jobs=1)
    with pytest.raises(UsageError, match=f"^{made.url} is not empty"):
        trio.run(fill_with, source.url, made.url, plan, how, StoreOptions())
    assert summary("pack", "--shards", "4", "--sync", source.url, made.url).startswith("0 objects stored")


@pytest.mark.slow
def test_from_a_source_without_arrays_nothing_is_made_or_removed(places: Places) -> None:
    """As where the disk of the source is not mounted."""
    source, made, new = places.source, places.made(), places.made("new")
    with source.edited() as path:
        write_v3(path)
    summary("pack", *SHAPES, source.url, made.url)
    before = made.files()
    with source.edited() as path:
        shutil.rmtree(path)
        (path / "lost+found").mkdir(parents=True)
        (path / "lost+found/1").write_bytes(b"")
    for words in (["pack", *SHAPES, "--sync", source.url, made.url], ["unpack", source.url, new.url]):
        assert "has no Zarr arrays or groups" in one_line_of(run(*words), SOURCE)
    assert made.files() == before
    assert not new.path.exists() if new.bucket is None else not new.files()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["--sync", "--checksum"])
def test_a_name_that_is_a_folder_now_or_a_file_now_is_followed(places: Places, how: str) -> None:
    """In a bucket both exist until the old one is removed; a directory keeps what is there, and says so."""
    source, made, fresh = places.source, places.made(), places.made("fresh")
    words = ("pack", "--shards", "4")
    with source.edited() as path:
        write_small(path)
        (path / "to-folder").write_text("file")
        (path / "to-file").mkdir()
        (path / "to-file/more").write_text("more")
    summary(*words, source.url, made.url)
    with source.edited() as path:
        (path / "to-folder").unlink()
        zarr.create_array(path / "to-folder", shape=(3,), dtype="i4")
        shutil.rmtree(path / "to-file")
        (path / "to-file").write_text("file")
    if made.bucket is None:
        assert "to-file: DEST has a file where SOURCE" in run(*words, how, source.url, made.url).stderr
        (made.path / "to-folder").unlink()
        shutil.rmtree(made.path / "to-file")
    summary(*words, how, source.url, made.url)
    summary(*words, source.url, fresh.url)
    assert made.files() == fresh.files()
    assert summary(*words, how, source.url, made.url).startswith("0 objects stored")


@pytest.mark.slow
def test_what_somebody_else_put_in_the_way_is_named_and_stays_and_stops_nothing_else(tmp_path: Path) -> None:
    source, made, fresh = tmp_path / "source", tmp_path / "made", tmp_path / "fresh"
    write_v3(source)
    (source / "n").write_text("file")
    pack(source, made, *SHAPES)
    shutil.rmtree(source / "notes")
    (source / "n").unlink()
    zarr.create_array(source / "n", shape=(3,), dtype="i4")
    pack(source, fresh, *SHAPES)
    expected, document, gone = files_below(fresh), made / "image/zarr.json", made / "notes/more.bin"
    document.unlink()
    document.mkdir()
    (document / "mine").write_text("mine")
    gone.write_text("mine")
    sync = ("pack", *SHAPES, "--sync", "--json", "--jobs", "1", source, made)
    report = json.loads(run(*sync).stdout)
    way = "DEST has a file where SOURCE has a directory, or the reverse: remove that, and go on with --sync"
    assert sorted(report["problems"]) == [
        "nothing was removed: 2 objects of DEST that SOURCE has no more stay until a run ends without problems",
        f"skipped: image/zarr.json: {way}",
        f"skipped: n/zarr.json: {way}",
    ]
    assert report["unchanged"] == len(expected) - 2
    assert (document / "mine").read_text() == "mine"
    shutil.rmtree(document)
    (made / "n").unlink()
    done = run(*sync)
    assert done.returncode == FAILED
    assert (
        "notes/more.bin is not in SOURCE any more, and cannot be removed: it was changed since it was stored"
        in done.stderr
    )
    assert files_below(made) == expected | {"notes/more.bin": b"mine"}
    gone.unlink()
    summary(*sync)
    assert files_below(made) == expected
    assert not (made / "notes").exists()


@pytest.mark.slow
def test_a_destination_that_is_in_the_source_by_another_mount_is_refused(tmp_path: Path) -> None:
    source, place = tmp_path / "source", tmp_path / "a place"
    write_v3(source)
    place.mkdir()
    before = files_below(source)
    subprocess.run(["mount", "--bind", source, place], check=True)
    try:
        for destination in (place, place / "within", place / "notes/within"):
            assert "overlap" in one_line_of(run("pack", "--sync", source, destination), WRONG_USAGE)
        assert "overlap" in run("unpack", "--sync", place, source).stderr
        subprocess.run(["umount", place], check=True)
        subprocess.run(["mount", "--bind", tmp_path, place], check=True)
        assert "overlap" in one_line_of(run("pack", "--sync", place / "source", source / "new"), WRONG_USAGE)
        pack(place / "source", tmp_path / "beside")
    finally:
        subprocess.run(["umount", place], check=True)
    assert files_below(source) == before


def test_after_a_full_disk_what_is_stored_stays_and_the_next_run_goes_on(tmp_path: Path) -> None:
    source, disk = tmp_path / "source", tmp_path / "disk"
    array = zarr.create_array(source, shape=(32, 2**16), chunks=(1, 2**16), dtype="u1", compressors=None)
    array[...] = 1
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4M", "none", disk], check=True)
    try:
        (disk / "else").write_bytes(bytes(3 * 2**20))
        done = run("pack", "--shards", "4,1", "--jobs", "1", source, disk / "made")
        assert done.returncode == FAILED
        assert "No space left on device; what is stored stays" in done.stderr
        (disk / "else").unlink()
        stored = len(list((disk / "made/c").iterdir()))
        assert 1 <= stored < 8
        report = json.loads(summary("pack", "--shards", "4,1", "--json", "--sync", source, disk / "made"))
        assert (report["unchanged"], report["stored"]) == (stored, 8 - stored + 1)
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.slow
def test_chunks_that_wait_in_a_journal_are_missed_until_they_are_committed(tmp_path: Path, mount: Mounter) -> None:
    source, made = tmp_path / "source", tmp_path / "made"
    write_small(tmp_path / "plain")
    pack(tmp_path / "plain", source, "--shards", "3")
    mounted = mount(source, write=True)
    (mounted.path / "a/c/0").write_bytes((mounted.path / "a/c/1").read_bytes())
    done = run("pack", "--shards", "3", "--jobs", "1", source, made)
    assert done.returncode == FAILED
    assert "SOURCE has a journal of chunks that may not be committed" in done.stderr
    assert zarr.open_group(made)["a"][:4].tolist() == [1, 2, 3, 4]
    done = run("verify", "--jobs", "1", source, made)
    assert done.returncode == FAILED
    assert "SOURCE has a journal of chunks that may not be committed yet, which are not compared" in done.stdout
    done = run("refs", source)
    assert done.returncode == FAILED
    assert "a journal of chunks that may not be committed yet, which nothing refers to" in done.stderr
    mounted.unmount()
    summary("pack", "--shards", "3", "--sync", source, made)
    assert run("verify", "--jobs", "1", source, made).returncode == run("refs", source).returncode == 0
    assert zarr.open_group(made)["a"][:4].tolist() == [3, 4, 3, 4]


@pytest.mark.parametrize("decode", [(), ("--decode",)])
def test_missing_chunks_that_are_written_as_files_are_written_anew_when_the_document_says_another_value(
    tmp_path: Path, decode: tuple[str, ...]
) -> None:
    source, made = tmp_path / "source", tmp_path / "made"
    attributes = {"_FillValue": "AAAAAAAA+H8="}  # xarray's way to write NaN
    options: dict[str, Any] = {"dimension_names": ["x"], "attributes": attributes, "compressors": None}
    zarr.create_array(source / "a", shape=(8,), chunks=(2,), shards=(4,), dtype="f8", fill_value=0, **options)[:2] = 5
    how = ("unpack", "--view", "v2", *decode)
    summary(*how, source, made)
    assert np.frombuffer((made / "a/1").read_bytes()).tolist() == [0, 0]
    before = (made / "a/0").stat().st_mtime_ns
    edit(source / "a/zarr.json", lambda text: json.dumps(json.loads(text) | {"fill_value": 7.0}).encode())
    summary(*how, "--sync", source, made)
    assert [np.frombuffer((made / f"a/{number}").read_bytes()).tolist() for number in range(4)] == [
        [5, 5],
        *[[7, 7]] * 3,
    ]
    assert (made / "a/0").stat().st_mtime_ns == before


BOUND_BY_MODES = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
"""Root, who may read as little as others do."""


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [".shardfs", ".shardfs/0"])
def test_a_journal_that_cannot_be_read_may_have_chunks_that_are_missed(
    tmp_path: Path, mount: Mounter, hidden: str
) -> None:
    """As where another user writes through a mount, which may be that of a third one."""
    if os.geteuid() != 0:
        pytest.skip("only root can own files of others")
    source, made = tmp_path / "source", tmp_path / "made"
    write_small(tmp_path / "plain")
    pack(tmp_path / "plain", source, "--shards", "3")
    mounted = mount(source, write=True)
    (mounted.path / "a/c/0").write_bytes((mounted.path / "a/c/1").read_bytes())
    for directory, _, _ in os.walk(source / hidden):
        os.chmod(directory, 0o700)
        os.chown(directory, NOBODY, NOBODY)
    reason = f"a journal that cannot be read, and may have chunks that are not committed yet ({source}/.shardfs"
    for words in (["pack", "--shards", "3"], ["unpack"]):
        done = run(*words, "--jobs", "1", source, made / words[0], prefix=BOUND_BY_MODES)
        assert done.returncode == FAILED
        assert f"SOURCE has {reason}" in done.stderr
    reader = mount(source, bound_by_modes=True, expect=("a journal that cannot be read",))
    assert f"it has {reason}" in reader.log
    mounted.unmount()
    summary("pack", "--shards", "3", "--sync", source, made / "pack")


@pytest.mark.slow
def test_a_destination_that_is_mounted_to_write_is_refused(tmp_path: Path, mount: Mounter) -> None:
    source, made = tmp_path / "source", tmp_path / "made"
    write_small(source)
    pack(source, made, "--shards", "4")
    mount(made, write=True)
    (source / "file").write_text("changed")
    before = files_below(made)
    done = run("pack", "--shards", "4", "--sync", "--jobs", "1", source, made)
    assert done.returncode == SOURCE
    assert "is already being written by" in done.stderr
    assert files_below(made) == before


def write_small(path: Path) -> None:
    group = zarr.open_group(path, mode="w", zarr_format=3, attributes={"a": 1})
    group.create_array("a", shape=(12,), chunks=(2,), dtype="i4")[...] = np.arange(1, 13)
    (path / "file").write_text("file")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "fault"),
    [("pack", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))), ("unpack", Killed())],
    ids=["full", "killed"],
)
def test_whatever_call_of_the_store_fails_the_next_run_ends_as_if_none_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, fault: BaseException
) -> None:
    """Every call of a second run: it stores, stores again, removes, and removes emptied folders."""
    old, source, fresh = tmp_path / "old", tmp_path / "source", tmp_path / "fresh"
    disks: dict[str, Syscalls] = {}
    write_small(source)
    zarr.create_array(source / "gone", shape=(8, 2), chunks=(2, 2), dtype="i4")[...] = 1

    def open_on_disk(session: trio.Nursery, url: str, options: StoreOptions, ttl: float, **_: object) -> LocalStore:
        return LocalStore(url, disks.get(url, QUICK), ttl=ttl)

    def fill(made: Path, syncs: bool = True) -> RunReport:
        plan: Plan = UnpackPlan(Unpacking()) if what == "unpack" else PackPlan(Packing(chunks_per_shard=(4,)))
        return trio.run(fill_with, str(source), str(made), plan, RunOptions(syncs, jobs=1), StoreOptions())

    def begin(made: Path, faults: dict[int, Fault]) -> LossyDisk:
        """Fill DEST from the old SOURCE, and let calls fail from then on."""
        shutil.rmtree(source)
        shutil.copytree(old, source)
        assert not fill(made, syncs=False).problems
        shutil.rmtree(source / "gone")
        (source / "a/c/0").unlink()
        (source / "file").write_text("changed")
        return disks.setdefault(str(made), LossyDisk(made, faults))

    monkeypatch.setattr("shardfs.bulk.engine.open_store_in", open_on_disk)
    shutil.copytree(source, old)
    disk = begin(fresh, {})
    assert not fill(fresh).problems
    expected, ncalls = files_below(fresh), len(disk.calls)
    assert {"rmdir", "unlink", "rename"} <= set(disk.names)
    stored = [call.files[-1] for call in disk.calls if call.name == "rename"]
    synced = disk.names[: disk.names.index("sync_file_system")].count("rename")
    assert [name == "zarr.json" for name in stored] == [number >= synced for number in range(len(stored))]
    for number in range(ncalls):
        made = tmp_path / f"made-{number}"
        disk = begin(made, {number: Fault(fault)})
        before = files_below(made)
        with suppress(Killed, ShardfsError):
            report = fill(made)
            assert report.problems or disk.names[number] in ("unlink", "rmdir")
        for name, data in files_below(made).items():
            assert data in (before.get(name), expected.get(name)) or name.startswith(".shardfs/"), name
        disks[str(made)] = QUICK
        assert not fill(made).problems
        assert files_below(made) == expected, (number, disk.names[number])
        assert not (made / "gone").exists() or what == "pack"  # an empty folder that cannot be removed is left
        shutil.rmtree(made)


@pytest.mark.slow
def test_a_run_whose_processes_are_killed_is_finished_by_the_next(tmp_path: Path) -> None:
    source, made, fresh = tmp_path / "source", tmp_path / "made", tmp_path / "fresh"
    write_v3(source)

    def written() -> int:
        return sum(len(names) for _, _, names in os.walk(made))

    for count in (2, 7, 20, 35):
        killed = subprocess.Popen(
            tied(*command("pack", *SHAPES, "--jobs", "2", "--sync", source, made)),
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        eventually(lambda killed=killed, count=count: killed.poll() is not None or written() >= count)
        killed.kill()
        killed.wait()
    summary("pack", *SHAPES, "--jobs", "2", "--sync", source, made)
    pack(source, fresh, *SHAPES)
    assert files_below(made) == files_below(fresh)


def fill_while(
    change: Callable[[], object], source: Place, made: Place, *, syncs: bool = False, plan: Plan | None = None
) -> RunReport:
    """Pack; the source is changed when all was looked at, and nothing is stored yet."""
    changes = iter([change])

    def progress(_: RunReport) -> None:
        for each in changes:
            each()

    plan = plan or PackPlan(Packing(shard_nbytes=128))
    with ThreadPoolExecutor(1) as others:  # which have not looked at it
        how = RunOptions(syncs, executor=others, progress=progress)
        return trio.run(fill_with, source.url, made.url, plan, how, StoreOptions())


@pytest.mark.slow
def test_an_array_that_grows_after_it_was_looked_at_is_left_for_the_next_run(places: Places) -> None:
    source, made, fresh = places.source, places.made(), places.made("fresh")
    with source.edited() as path:
        array = zarr.create_array(path, shape=(16,), chunks=(1,), dtype="i4", compressors=None)
        array[...] = np.arange(16)

    def grow() -> None:
        with source.edited() as path:
            zarr.open_array(path).append(np.arange(200))

    report = fill_while(grow, source, made)
    assert report.problems == [
        "skipped: c/0: the array at the root was changed meanwhile; go on with --sync",
        "zarr.json of SOURCE was changed or removed meanwhile; go on with --sync",
    ]
    assert set(made.files()) == {"zarr.json"}
    summary("pack", "--shard-size", "128", "--sync", source.url, made.url)
    summary("pack", "--shard-size", "128", source.url, fresh.url)
    assert made.files() == fresh.files()


@pytest.mark.slow
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("make", [lambda: PackPlan(Packing(shard_nbytes=128)), lambda: UnpackPlan(Unpacking())])
def test_of_an_array_that_is_removed_meanwhile_nothing_is_removed(
    places: Places, make: Callable[[], Plan], zarr_format: Literal[2, 3]
) -> None:
    """Else its document would speak of fill values."""
    source, made, plan = places.source, places.made(), make()
    with source.edited() as path:
        group = zarr.open_group(path, mode="w", zarr_format=3)
        group.create_group("kept")
        zarr.create_array(path / "image", shape=(16,), chunks=(1,), dtype="i4", zarr_format=zarr_format)[...] = 1

    def remove() -> None:
        with source.edited() as path:
            shutil.rmtree(path / "image")

    assert not fill_while(lambda: None, source, made, plan=make()).problems
    before = made.files()
    report = fill_while(remove, source, made, syncs=True, plan=plan)
    if zarr_format == 3 or isinstance(plan, PackPlan):
        document = "zarr.json" if zarr_format == 3 else ".zarray"
        assert f"image/{document} of SOURCE was changed or removed meanwhile; go on with --sync" in report.problems
        assert made.files() == before


@pytest.mark.slow
def test_nothing_is_removed_or_called_complete_if_the_source_is_another_directory_now(places: Places) -> None:
    source, made = places.source, places.made()
    with source.edited() as path:
        write_v3(path)
    assert not fill_while(lambda: None, source, made).problems
    before = made.files()

    def replace() -> None:
        with source.edited() as path:
            shutil.rmtree(path)
            path.mkdir()

    with pytest.raises(ShardfsError, match=r"is another directory now|nothing is stored at"):
        fill_while(replace, source, made, syncs=True)
    assert made.files() == before


@pytest.mark.slow
def test_what_was_changed_since_stays_also_if_a_run_could_not_store_it_again(tmp_path: Path) -> None:
    source, made = tmp_path / "source", tmp_path / "made"
    write_small(source)
    sync = ("pack", "--shards", "4", "--sync", "--jobs", "1", source, made)
    summary(*sync)
    (made / "file").write_text("mine")
    (source / "file").unlink()
    (source / "file").symlink_to("nowhere")
    assert "skipped: file" in run(*sync).stderr
    (source / "file").unlink()
    assert "file is not in SOURCE any more, and cannot be removed: it was changed" in run(*sync).stderr
    assert (made / "file").read_text() == "mine"


def test_what_somebody_changed_is_not_removed(places: Places) -> None:
    source, made = places.source, places.made()
    with source.edited() as path:
        write_small(path)
    sync = ("pack", "--shards", "4", "--sync", "--jobs", "1", source.url, made.url)
    summary(*sync)
    with source.edited() as path:
        (path / "file").unlink()
    with made.edited() as path:
        (path / "file").write_text("mine")
    assert "file is not in SOURCE any more, and cannot be removed: it was changed" in run(*sync).stderr
    assert made.files()["file"] == b"mine"


@pytest.mark.slow
def test_a_shard_that_left_the_source_is_removed_also_if_it_could_not_be_stored_again_before(places: Places) -> None:
    source, made = places.source, places.made()
    with source.edited() as path:
        zarr.create_array(path, shape=(24,), chunks=(2,), shards=(8,), dtype="i4")[...] = 1
    sync = ("pack", "--shards", "4", "--sync", "--jobs", "1", source.url, made.url)
    summary(*sync)
    with source.edited() as path:
        shard = path / "c/1"
        shard.write_bytes(bytes(len(shard.read_bytes())))
    assert "skipped" in run(*sync).stderr
    with source.edited() as path:
        (path / "c/1").unlink()
        for number in range(4):  # a shard without chunks
            edit(path / "c/2", index(number, 2**64 - 1, 2**64 - 1))
    summary(*sync)
    assert set(made.files()) == {"zarr.json", "c/0"}
