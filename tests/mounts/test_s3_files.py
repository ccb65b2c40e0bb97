"""Documents and plain files in a bucket: what is closed is stored, and nobody's work is lost in silence."""

import errno
import json
import mmap
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import FAILED
from tests.support.hosts import DOCUMENT, PREFIX, Host, kill, make_host
from tests.support.mounting import PATIENCE, Mount, Mounter, eventually, refuses
from tests.support.s3_faults import Hang, Reply
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import S3Server

MIB = 2**20
CHANGED = "was changed by another program"
KEPT = "is kept in"


def key(name: str) -> str:
    return f"{PREFIX}/{name}"


def in_place(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def by_rename(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    temporary.replace(path)


def refused(change: Callable[[], Any]) -> None:
    with refuses(errno.ESTALE):
        change()


def attributes(document: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(document)["attributes"]
    return found


# What is closed is stored


@pytest.fixture(scope="module")
def shared(s3_server: S3Server, module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory) -> Host:
    """A machine whose bucket tests share, each with a file of its own."""
    host = make_host(s3_server.make_bucket(), tmp_path_factory.mktemp("shared"), module_mount)
    for name in ("in-place", "open", "mapped", "stored", "removed"):
        host.bucket.put(key(f"{name}.txt"), b"0123456789", ContentType="text/x-notes", Metadata={"owner": "me"})
    return host


@pytest.fixture(scope="module")
def mounted(shared: Host) -> Mount:
    return shared.mount()


@pytest.mark.parametrize("nbytes", [0, 3 * MIB])
def test_a_file_is_in_the_bucket_when_it_is_closed(shared: Host, mounted: Mount, nbytes: int) -> None:
    (mounted.path / "notes").mkdir(exist_ok=True)
    path = mounted.path / "notes" / f"{nbytes}.bin"
    with path.open("wb") as file:
        file.write(bytes(nbytes))
        file.flush()
        assert path.stat().st_size == nbytes
        assert key(f"notes/{nbytes}.bin") not in shared.bucket.keys(PREFIX)
    # The kernel may say that it is closed after the program went on.
    eventually(lambda: key(f"notes/{nbytes}.bin") in shared.bucket.keys(PREFIX))
    assert shared.bucket.get(key(f"notes/{nbytes}.bin")) == bytes(nbytes)


def test_a_file_that_is_written_in_place_is_stored_at_each_close_and_sync(shared: Host, mounted: Mount) -> None:
    with (mounted.path / "in-place.txt").open("r+b", buffering=0) as file:
        file.seek(3)
        file.write(b"abc")
        assert shared.bucket.get(key("in-place.txt")) == b"0123456789"
        os.fsync(file.fileno())
        assert shared.bucket.get(key("in-place.txt")) == b"012abc6789"
        file.truncate(5)
        assert (mounted.path / "in-place.txt").read_bytes() == b"012ab"
        os.close(os.dup(file.fileno()))
        assert shared.bucket.get(key("in-place.txt")) == b"012ab"
        file.seek(5)
        file.write(b"!")
    assert shared.bucket.get(key("in-place.txt")) == b"012ab!"
    os.truncate(mounted.path / "in-place.txt", 2)
    assert shared.bucket.get(key("in-place.txt")) == b"01"
    with (mounted.path / "in-place.txt").open("ab") as file:
        file.write(b"more")
    head = shared.bucket.head(key("in-place.txt"))
    assert shared.bucket.get(key("in-place.txt")) == b"01more"
    assert (head["ContentType"], head["Metadata"]["owner"]) == ("text/x-notes", "me")


def test_programs_that_have_a_file_open_see_what_one_of_them_writes(shared: Host, mounted: Mount) -> None:
    path = mounted.path / "open.txt"
    with path.open("r+b", buffering=0) as one, path.open("r+b", buffering=0) as other:
        one.write(b"abc")
        other.seek(8)
        other.write(b"XYZ")
        one.seek(0)
        assert one.read() == path.read_bytes() == b"abc34567XYZ"
        assert path.stat().st_size == 11
    assert shared.bucket.get(key("open.txt")) == b"abc34567XYZ"


def test_writes_through_a_mapping_are_stored_when_it_ends(shared: Host, mounted: Mount) -> None:
    with (mounted.path / "mapped.txt").open("r+b") as file:
        mapping = mmap.mmap(file.fileno(), 0)
    mapping[2:4] = b"ab"
    mapping.close()
    eventually(lambda: shared.bucket.get(key("mapped.txt")) == b"01ab456789")


def test_a_file_that_is_removed_while_it_is_open_is_not_sent(shared: Host, mounted: Mount) -> None:
    for name in ("new.txt", "stored.txt"):
        with (mounted.path / name).open("a+b", buffering=0) as file:
            file.write(b" and written")
            (mounted.path / name).unlink()
            file.write(b" again")
            os.fsync(file.fileno())
            assert os.pread(file.fileno(), 100, 0).endswith(b" and written again")
        assert not (mounted.path / name).exists()
    assert not {key("new.txt"), key("stored.txt")} & {*shared.bucket.keys(PREFIX)}


def test_a_file_is_removed_whatever_version_another_host_has_stored(shared: Host, mounted: Mount) -> None:
    assert (mounted.path / "removed.txt").read_bytes() == b"0123456789"
    shared.bucket.put(key("removed.txt"), b"of another host")
    (mounted.path / "removed.txt").unlink()
    assert key("removed.txt") not in shared.bucket.keys(PREFIX)


def test_a_file_that_is_renamed_while_it_is_open_is_stored_under_its_new_name(shared: Host, mounted: Mount) -> None:
    with (mounted.path / "draft.txt").open("wb", buffering=0) as file:
        file.write(b"one")
        (mounted.path / "draft.txt").rename(mounted.path / "final.txt")
        assert shared.bucket.get(key("final.txt")) == b"one"
        file.write(b" two")
    assert shared.bucket.get(key("final.txt")) == b"one two"
    assert key("draft.txt") not in shared.bucket.keys(PREFIX)


def test_a_file_that_another_host_changed_can_be_edited_while_a_program_has_it_open(host: Host) -> None:
    mounted = host.mount(expect=(CHANGED, "was replaced while it was open"))
    path = mounted.path / "notes.txt"
    in_place(path, b"ours")
    files = [os.open(path, os.O_RDWR) for _ in range(2)]
    host.bucket.put(key("notes.txt"), b"of another host")
    refused(lambda: os.pwrite(files[0], b"O", 0))
    assert path.read_bytes() == b"of another host"
    with open(path, "r+b") as edited:
        edited.write(b"OF")
    assert host.bucket.get(key("notes.txt")) == b"OF another host"
    for change in (lambda: os.ftruncate(files[0], 0), lambda: os.pwrite(files[1], b"O", 0)):
        refused(change)
    for file in files:
        os.close(file)
    assert path.read_bytes() == host.bucket.get(key("notes.txt")) == b"OF another host"


def test_a_file_that_another_host_changed_can_be_moved(host: Host) -> None:
    mounted = host.mount(expect=(CHANGED,))
    in_place(mounted.path / "notes.txt", b"ours")
    host.bucket.put(key("notes.txt"), b"of another host")
    (mounted.path / "notes.txt").rename(mounted.path / "moved.txt")
    assert host.bucket.get(key("moved.txt")) == b"of another host"
    assert key("notes.txt") not in host.bucket.keys(PREFIX)


@pytest.mark.parametrize("nbytes", [10, 5 * MIB])
def test_a_moved_file_keeps_its_metadata(host: Host, nbytes: int) -> None:
    data = os.urandom(nbytes)
    host.bucket.put(key("one.bin"), data, ContentType="text/x-notes", Metadata={"owner": "me"})
    host.bucket.put(key("two.bin"), b"in its way")
    mounted = host.mount()
    (mounted.path / "one.bin").replace(mounted.path / "two.bin")
    assert host.bucket.get(key("two.bin")) == data
    head = host.bucket.head(key("two.bin"))
    assert (head["ContentType"], head["Metadata"]["owner"]) == ("text/x-notes", "me")
    assert key("one.bin") not in host.bucket.keys(PREFIX)
    assert not host.bucket.uploads()
    assert not (mounted.path / "one.bin").exists()
    assert (mounted.path / "two.bin").read_bytes() == data


# Nobody's work is lost in silence


def probe_with_sqlite(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("select * from sqlite_master").fetchall() == []


@pytest.mark.parametrize("make", [lambda path: path.open("ab").close(), probe_with_sqlite], ids=["append", "sqlite"])
def test_an_unwritten_file_is_not_kept_if_another_host_made_it(host: Host, make: Callable[[Path], None]) -> None:
    mounted = host.mount(expect=(CHANGED, "journal.txt"))
    path, theirs = mounted.path / "journal.txt", b"of another host"
    assert not path.exists()
    host.bucket.put(key("journal.txt"), theirs)
    make(path)
    deadline, found = time.monotonic() + PATIENCE, b""
    while found != theirs and time.monotonic() < deadline:  # the kernel closes it after the program went on
        with suppress(OSError):
            found = path.read_bytes()
    assert found == theirs
    mounted.unmount()
    assert host.recover() == host.recover(host.url) == []
    assert host.bucket.get(key("journal.txt")) == theirs


@pytest.mark.parametrize(("name", "write"), [("notes.txt", in_place), ("zarr.json", by_rename)])
def test_a_refused_file_is_not_kept_once_a_program_has_written_it_again(
    host: Host, name: str, write: Callable[[Path, bytes], None]
) -> None:
    stored = json.loads(host.bucket.get(key("zarr.json")))
    host.bucket.put(key(name), json.dumps(stored).encode())
    mounted = host.mount(expect=(CHANGED, KEPT))
    path = mounted.path / name
    document = json.loads(path.read_bytes())
    host.bucket.put(key(name), json.dumps(stored | {"attributes": {"n": 1}}).encode())
    refused(lambda: in_place(path, json.dumps(document | {"attributes": {"n": 2}}).encode()))
    kept = Path(mounted.log.partition(f"{name} {KEPT} ")[2].split(":")[0])
    assert attributes(kept.read_bytes()) == {"n": 2}
    assert attributes(path.read_bytes()) == {"n": 1}
    write(path, json.dumps(document | {"attributes": {"n": 3}}).encode())
    assert not kept.exists()
    mounted.unmount()
    assert host.recover(host.url) == []
    assert attributes(host.bucket.get(key(name))) == {"n": 3}


def test_what_an_earlier_mount_has_kept_stays_and_never_replaces_a_later_version(host: Host) -> None:
    mounted = host.mount(expect=(CHANGED, KEPT))
    assert not (mounted.path / "notes.txt").exists()
    host.bucket.put(key("notes.txt"), b"theirs")
    refused(lambda: in_place(mounted.path / "notes.txt", b"ours"))
    mounted.unmount()
    mounted = host.mount()
    in_place(mounted.path / "notes.txt", b"later")
    mounted.unmount()
    assert "is older than what is stored" in mounted.log
    for arguments in ((), ("--apply",)):
        (kept,) = host.recover(*arguments, host.url, status=FAILED)
        assert "a later version was stored from here since" in kept["message"]
        assert Path(kept["path"]).read_bytes() == b"ours"
    assert host.bucket.get(key("notes.txt")) == b"later"
    Path(kept["path"]).unlink()
    assert host.recover(host.url) == []


def test_of_two_hosts_that_edit_a_document_the_second_is_refused(host: Host) -> None:
    one, other = host.mount(), host.elsewhere().mount(expect=(CHANGED, KEPT))
    documents = [json.loads((mounted.path / "zarr.json").read_bytes()) for mounted in (one, other)]
    texts = [
        json.dumps(document | {"attributes": {name: 1}}).encode()
        for document, name in zip(documents, ("one", "other"), strict=True)
    ]
    by_rename(one.path / "zarr.json", texts[0])
    refused(lambda: by_rename(other.path / "zarr.json", texts[1]))
    assert attributes(host.bucket.get(key("zarr.json"))) == {"one": 1}
    seen = json.loads((other.path / "zarr.json").read_bytes())
    assert seen["attributes"] == {"one": 1}
    seen["attributes"]["other"] = 1
    by_rename(other.path / "zarr.json", json.dumps(seen).encode())
    assert attributes(host.bucket.get(key("zarr.json"))) == {"one": 1, "other": 1}


def test_a_refused_rename_keeps_one_version(host: Host) -> None:
    mounted = host.mount(expect=(CHANGED, KEPT))
    ours = json.loads((mounted.path / "zarr.json").read_bytes()) | {"attributes": {"ours": 1}}
    host.bucket.put(key("zarr.json"), json.dumps(ours | {"attributes": {"theirs": 1}}).encode())
    refused(lambda: by_rename(mounted.path / "zarr.json", json.dumps(ours).encode()))
    mounted.unmount()
    (left,) = host.recover(host.url, status=FAILED)
    assert attributes(Path(left["path"]).read_bytes()) == {"ours": 1}


def test_an_edit_is_compared_with_what_its_program_read(host: Host) -> None:
    other = host.elsewhere()
    mounted = host.mounter(
        host.url, write=True, state=other.state, env=host.bucket.environment, expect=(CHANGED, KEPT), metadata_ttl=0
    )
    host.bucket.put(key("notes.txt"), b"first")
    assert (mounted.path / "notes.txt").read_bytes() == b"first"
    document = json.loads((mounted.path / "zarr.json").read_bytes())
    host.bucket.put(key("notes.txt"), b"of another host")
    theirs = json.dumps(document | {"attributes": {"theirs": 1}}).encode()
    host.bucket.put(key("zarr.json"), theirs)
    assert (mounted.path / "notes.txt").stat().st_size == len(b"of another host")  # to look is not to read
    ours = json.dumps(document | {"attributes": {"ours": 1}}).encode()
    for write in (in_place, by_rename):
        refused(lambda write=write: write(mounted.path / "zarr.json", ours))  # type: ignore[misc]
    by_rename(mounted.path / "notes.txt", b"ours")  # which is no document
    assert host.bucket.get(key("notes.txt")) == b"ours"
    assert host.bucket.get(key("zarr.json")) == theirs


@pytest.mark.parametrize("is_looked_for", [False, True])
def test_a_document_that_is_removed_and_created_anew_is_stored(host: Host, is_looked_for: bool) -> None:
    """As `tar -x` and `cp --remove-destination` do, which read no document."""
    mounted = host.mount()
    shown = json.loads((mounted.path / "zarr.json").read_bytes())
    mounted.unmount()
    mounted = host.mount()
    (mounted.path / "zarr.json").unlink()
    if is_looked_for:
        assert not (mounted.path / "zarr.json").exists()
    (mounted.path / "zarr.json").write_text(json.dumps(shown | {"attributes": {"anew": 1}}))
    assert attributes(host.bucket.get(key("zarr.json"))) == {"anew": 1}


@pytest.mark.parametrize(
    ("name", "write"), [("notes.txt", in_place), ("new/zarr.json", in_place), ("new/zarr.json", by_rename)]
)
def test_a_file_created_after_enoent_never_replaces_another(
    host: Host, write: Callable[[Path, bytes], None], name: str
) -> None:
    mounted = host.mount(expect=(CHANGED, KEPT))
    (mounted.path / "new").mkdir()
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    ours, theirs = (json.dumps(group | {"attributes": {name: 1}}).encode() for name in ("ours", "theirs"))
    assert not (mounted.path / name).exists()
    host.bucket.put(key(name), theirs)
    refused(lambda: write(mounted.path / name, ours))
    assert host.bucket.get(key(name)) == theirs
    assert (mounted.path / name).read_bytes() == theirs
    write(mounted.path / name, ours)
    assert host.bucket.get(key(name)) == ours


def test_in_the_v2_view_an_edit_of_a_document_that_another_host_changed_is_refused(host: Host) -> None:
    mounted = host.mounter(
        host.url,
        write=True,
        state=host.state,
        env=host.bucket.environment,
        expect=(CHANGED, KEPT),
        arguments=["--view=v2"],
    )
    (mounted.path / ".zattrs").write_text('{"a": 1}')  # what is not there is made of the document that is
    assert json.loads((mounted.path / ".zattrs").read_text()) == {"a": 1}
    theirs = json.loads(host.bucket.get(key("zarr.json")))
    theirs["attributes"]["theirs"] = 1
    host.bucket.put(key("zarr.json"), json.dumps(theirs).encode())
    refused(lambda: (mounted.path / ".zattrs").write_text('{"a": 1, "b": 2}'))
    assert attributes(host.bucket.get(key("zarr.json"))) == {"a": 1, "theirs": 1}


def test_own_changes_need_no_look_at_the_store(host: Host) -> None:
    mounted = host.mount()
    path = mounted.path / "zarr.json"
    document = json.loads(path.read_bytes())
    for number in range(3):
        by_rename(path, json.dumps(document | {"attributes": {"n": number}}).encode())
        in_place(mounted.path / "notes.txt", str(number).encode())
        by_rename(mounted.path / "notes.txt", str(-number).encode())
    path.unlink()
    in_place(path, json.dumps(document | {"attributes": {"n": 3}}).encode())
    (mounted.path / "notes.txt").unlink()
    in_place(mounted.path / "notes.txt", b"3")
    assert attributes(host.bucket.get(key("zarr.json"))) == {"n": 3}
    assert host.bucket.get(key("notes.txt")) == b"3"


@pytest.mark.parametrize("name", ["notes.txt", "zarr.json"])
def test_refused_files_are_kept_named_and_stored_with_apply(host: Host, s3_proxy: S3Proxy, name: str) -> None:
    host = host.behind(s3_proxy.url)
    first = json.loads(host.bucket.get(key("zarr.json")))
    host.bucket.put(key(name), json.dumps(first).encode())
    mounted = host.mount(expect=(CHANGED, KEPT))
    ours = json.loads((mounted.path / name).read_bytes()) | {"attributes": {"ours": 1}}
    host.bucket.put(key(name), json.dumps(first | {"attributes": {"theirs": 1}}).encode())
    refused(lambda: in_place(mounted.path / name, json.dumps(ours).encode()))
    assert attributes((mounted.path / name).read_bytes()) == {"theirs": 1}
    kept = Path(mounted.log.partition(f"{name} {KEPT} ")[2].split(":")[0])
    assert attributes(kept.read_bytes()) == {"ours": 1}
    (found,) = [item for item in host.recover(host.url, status=FAILED) if item["kind"] != "slot"]
    assert (found["kind"], found["key"]) == ("file", name)
    mounted.unmount()
    (listed,) = host.recover(status=FAILED)
    assert listed["message"].startswith(f"{host.url} at ")
    assert f"; {name}, which is not stored; " in listed["message"]
    assert attributes(host.bucket.get(key(name))) == {"theirs": 1}
    s3_proxy.fail("PutObject", Reply(403, "AccessDenied"), key=key(name))
    (left,) = host.recover("--apply", host.url, status=FAILED)
    assert (left["key"], left["path"]) == (name, str(kept))
    assert len(list(kept.parent.iterdir())) == 2, "the file and its note"
    host.recover("--apply", host.url)
    stored = json.loads(host.bucket.get(key(name)))
    assert (stored["attributes"], stored["codecs"]) == ({"ours": 1}, first["codecs"])
    assert host.recover() == []


def test_what_is_kept_is_stored_however_much_it_is_and_the_last_version_stays(host: Host) -> None:
    mounted = host.mount(expect=(CHANGED, KEPT))
    assert not (mounted.path / "notes.txt").exists()
    host.bucket.put(key("notes.txt"), b"theirs")
    refused(lambda: in_place(mounted.path / "notes.txt", b"ours"))
    mounted.unmount()
    kept = Path(mounted.log.partition(f"notes.txt {KEPT} ")[2].split(":")[0])
    slot = kept.parents[2]
    shutil.copytree(slot, slot.with_name("1"))  # what another mount at the same time has kept
    earlier = slot.with_name("1") / kept.relative_to(slot)
    earlier.write_bytes(b"earlier")
    os.utime(earlier, (1, 1))
    with open(kept.with_name("large"), "wb") as large:
        large.truncate(2**30)
    note = {"key": "large", "reason": "refused too", "superseded": True}
    kept.with_name("large.json").write_text(json.dumps(note))
    (left,) = [item for item in host.recover("--apply", host.url, status=FAILED) if item["left"]]
    assert left["key"] == "large"
    assert host.bucket.get(key("notes.txt")) == b"ours"


def test_closed_files_survive_a_killed_mount_and_replace_nothing(host: Host, s3_proxy: S3Proxy) -> None:
    host.bucket.put(key("stored.txt"), b"first")
    behind = host.behind(s3_proxy.url)
    mounted = behind.mount()
    in_place(mounted.path / "notes.txt", b"closed")
    by_rename(mounted.path / "other.txt", b"closed too")
    names = ("synced.txt", "open.txt", "stored.txt")
    files = [os.open(mounted.path / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for name in names]
    for file in files:
        os.write(file, b"written")
    os.fsync(files[0])
    hang = Hang()
    rule = s3_proxy.fail("PutObject", hang, key=key("late.txt"))
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(in_place, mounted.path / "late.txt", b"of a killed mount")
        rule.wait()
        kill(mounted)
        assert isinstance(writing.exception(), OSError)
    for file in files:
        with pytest.raises(OSError):
            os.close(file)
    for name in ("notes.txt", "late.txt"):
        host.bucket.put(key(name), b"of another host")
    behind.mount().unmount()
    hang.release()  # what was under way all the time is refused by now
    assert host.recover() == []
    for name, data in (
        ("notes.txt", b"of another host"),
        ("other.txt", b"closed too"),
        ("synced.txt", b"written"),
        ("stored.txt", b"first"),
        ("late.txt", b"of another host"),
    ):
        assert host.bucket.get(key(name)) == data, name
    assert key("open.txt") not in host.bucket.keys(PREFIX)


def test_of_several_exclusive_creations_one_succeeds(host: Host) -> None:
    mounts = [host.mount(expect=(CHANGED, KEPT)), host.elsewhere().mount(expect=(CHANGED, KEPT))]
    files = [os.open(mounted.path / "lock", os.O_WRONLY | os.O_CREAT | os.O_EXCL) for mounted in mounts]
    for number, file in enumerate(files):
        os.write(file, str(number).encode())
    os.close(files[0])
    refused(lambda: os.close(files[1]))
    assert host.bucket.get(key("lock")) == b"0"
    for mounted in mounts:
        with pytest.raises(FileExistsError):
            os.open(mounted.path / "lock", os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def test_chunk_files_of_an_unsharded_array_are_never_replaced_by_those_of_a_killed_mount(host: Host) -> None:
    document = {**DOCUMENT, "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}
    host.bucket.put(key("plain/zarr.json"), json.dumps(document).encode())
    nbytes = 4 * 6 * 4
    host.bucket.put(key("plain/c/0/0"), b"f" * nbytes)

    def mounted(*expect: str) -> Mount:
        return host.mounter(
            host.url,
            write=True,
            state=host.state,
            env=host.bucket.environment,
            expect=expect,
            arguments=["--view=v2"],
        )

    killed = mounted()
    (killed.path / "plain/0.0").write_bytes(b"k" * nbytes)
    (killed.path / "plain/1.1").write_bytes(b"k" * nbytes)
    kill(killed)
    host.bucket.put(key("plain/c/0/0"), b"o" * nbytes)
    host.bucket.put(key("plain/c/1/1"), b"o" * nbytes)
    again = mounted("another program has changed the chunk")
    assert (again.path / "plain/0.0").read_bytes() == b"o" * nbytes
    again.unmount()
    assert host.bucket.get(key("plain/c/0/0")) == host.bucket.get(key("plain/c/1/1")) == b"o" * nbytes
    found = host.recover(host.url, status=FAILED)
    assert {item["kind"] for item in found} == {"conflict"}
    host.recover("--apply", host.url)
    assert host.bucket.get(key("plain/c/0/0")) == host.bucket.get(key("plain/c/1/1")) == b"k" * nbytes
