"""Sharded volumes of neuroglancer through a mount: unsharded volumes, which are only read."""

import errno
import gzip
import json
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import zarr

import shardfs
from tests.support.commands import run, run_json
from tests.support.corpus import LITTLE, array
from tests.support.corpus import sharding as sharded
from tests.support.datasets import files_below, store
from tests.support.mounting import Mounter
from tests.support.opened import find, in_trio, list_directory, open_source, open_tree
from tests.support.precomputed import (
    KEY,
    info,
    minishard_index,
    names_in,
    read_volume,
    scale,
    shard,
    sharding,
    write_volume,
)
from tests.support.s3_mounts import Remote

SIZE, CHUNK, OFFSET = (50, 41, 30), (8, 9, 10), [-7, 100, 0]
SPECIFICATIONS = {
    "identity raw": sharding(2, "identity", 2, 1),
    "murmur gzip": sharding(1, "murmurhash3_x86_128", 3, 2, "gzip", "gzip"),
    "one shard": sharding(0, "identity", 0, 0, "gzip", "raw"),
    "one minishard": sharding(0, "murmurhash3_x86_128", 0, 4, "raw", "gzip"),
    "all shifted": sharding(64, "identity", 3, 3),
}


def values_of(size: tuple[int, ...], channels: int = 1, data_type: str = "uint16") -> np.ndarray:
    return np.random.default_rng(7).integers(1, 250, (*size, channels)).astype(data_type)


def volume(specification: dict[str, Any], **members: Any) -> dict[str, Any]:
    half = tuple(-(-length // 2) for length in SIZE)
    return info(
        scale(SIZE, CHUNK, specification, voxel_offset=OFFSET),
        scale(half, CHUNK, specification, key="16_16_40", resolution=[16, 16, 40]),
        **members,
    )


@pytest.fixture(params=SPECIFICATIONS.values(), ids=SPECIFICATIONS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    document = volume(request.param, num_channels=2)
    write_volume(tmp_path / "volume", document, [values_of(each["size"], 2) for each in document["scales"]])
    return tmp_path / "volume"


def succeed(*arguments: str | Path) -> str:
    """Run a command, which must succeed; returns what it prints."""
    done = run(*arguments)
    assert done.returncode == 0, str(done)
    return done.stdout + done.stderr


def document_of(source: Path) -> Any:
    return json.loads((source / "info").read_bytes())


def test_each_chunk_is_a_file(mount: Mounter, source: Path) -> None:
    root, document = mount(source).path, document_of(source)
    for index, members in enumerate(document["scales"]):
        values, names = values_of(members["size"], 2), names_in(document, index)
        directory = root / members["key"]
        assert sorted(os.listdir(directory)) == sorted(names)
        for name, box in names.items():
            data = values[box].tobytes(order="F")
            assert (directory / name).read_bytes() == data
            assert (directory / name).stat().st_size == len(data)
        del members["sharding"]
    assert json.loads((root / "info").read_bytes()) == document
    assert (root / "info").stat().st_size == len((root / "info").read_bytes())
    assert sorted(os.listdir(root)) == sorted([*(each["key"] for each in document["scales"]), "info"])
    assert np.array_equal(read_volume(root), read_volume(source))


def test_commands_see_a_sharded_array(source: Path, tmp_path: Path) -> None:
    document = document_of(source)
    described = run_json("info", "--json", source)["arrays"]
    assert [item["path"] for item in described] == ["8_8_40", "16_16_40"][::-1]
    (item,) = run_json("info", "--json", source, KEY)["arrays"]
    assert item["shape"] == [*SIZE, 2]
    assert item["inner_chunk_shape"] == [*CHUNK, 2]
    assert item["inner_chunks"] == len(names_in(document))
    assert item["sharded"] is True
    assert item["reason"] is None
    assert item["stored_shards"] == len(os.listdir(source / KEY))
    assert item["stored_nbytes"] == sum(path.stat().st_size for path in (source / KEY).iterdir())
    (found,) = run_json("map", "--json", source, KEY)["arrays"]
    assert sum(each["chunks"] for each in found["shards"]) == len(names_in(document))
    assert {each["dead"] for each in found["shards"]} == {0}
    assert {each["capacity"] for each in found["shards"]} == {0}
    pages = tmp_path / "map.html"
    for text in (succeed("map", source, KEY), succeed("map", "--html", pages, source, KEY) + pages.read_text()):
        count = len(names_in(document))
        assert f"stored; {count:,} of {count:,} chunks; " in text
        assert re.search(r"[ >]live", text)
        # How many chunks belong to a shard is not known: none is said to be partly stored.
        assert not re.search(r"[░▒▓]", text.replace("░▒▓ partly", ""))
        assert 'class="part"' not in text
        assert "% full" not in text
    for options in ([], ["--data"]):
        report = run_json("verify", "--json", *options, source)
        assert report["sound"]
        assert report["arrays"] == 2
    succeed("unpack", source, tmp_path / "unpacked")
    assert np.array_equal(read_volume(tmp_path / "unpacked"), read_volume(source))
    with shardfs.open(source) as dataset:
        chunk = dataset[KEY].read_chunk((0, 0, 0, 0))
        assert chunk == (tmp_path / "unpacked" / KEY / next(iter(names_in(document)))).read_bytes()
        assert dataset[KEY].shards()


def test_programs_that_know_volumes_are_told_how_to_open_one(mount: Mounter, tmp_path: Path) -> None:
    source, document = tmp_path / "source", volume(SPECIFICATIONS["one shard"])
    write_volume(source / "em/volume", document, [values_of(each["size"]) for each in document["scales"]])
    store(source / "image", array((8, 12), (4, 6), sharded((2, 3), LITTLE)))
    advice = {found["tool"]: found for found in run_json("info", "--tools", "--json", source)["tools"]}
    known = {name: found["volume"] for name, found in advice.items() if found["volume"] is not None}
    opens = '{"driver": "neuroglancer_precomputed", "kvstore": "file:///MNT/em/volume/"}'
    assert known == {
        "cloud-volume 12": 'CloudVolume("precomputed://file:///MNT/em/volume")',
        "neuroglancer": "precomputed://http://127.0.0.1:8000/em/volume",
        "tensorstore, driver neuroglancer_precomputed": opens,
    }
    for name in known:
        assert not [path for path in advice[name]["missing"] if path.startswith("em/")]
    mounting = advice["tensorstore, driver neuroglancer_precomputed"]["mount"].split()
    assert mounting[:4] == ["shardfs", "mount", str(source), "MNT"]
    root = mount(source, arguments=mounting[4:]).path
    spec = json.loads(opens.replace("/MNT", str(root)))
    shown = tensorstore.open(spec, read=True, open=True).result().read().result()
    assert np.array_equal(shown, read_volume(source / "em/volume"))
    text = succeed("info", "--tools", source)
    for line in known.values():
        assert f" then {line}; it reads the sharded volume, too\n" in text


def test_programs_for_volumes_alone_are_named_if_there_is_one(tmp_path: Path) -> None:
    store(tmp_path / "image", array((8, 12), (4, 6), sharded((2, 3), LITTLE)))
    advice = run_json("info", "--tools", "--json", tmp_path)["tools"]
    assert {found["volume"] for found in advice} == {None}
    assert "tensorstore, driver neuroglancer_precomputed" not in {found["tool"] for found in advice}


@pytest.fixture
def sparse(tmp_path: Path) -> Callable[..., tuple[Path, dict[str, Any]]]:
    """`sparse(chunks, **how)` writes a volume in which only these chunks, of 2×2×2 bytes, are stored."""

    def make(chunks: dict[int, bytes], size: tuple[int, ...] = (32, 32, 32), **how: Any) -> tuple[Path, dict[str, Any]]:
        specification = sharding(0, "identity", 2, 0, **how)
        document = info(scale(size, (2, 2, 2), specification), data_type="uint8")
        minishards: list[list[tuple[int, bytes]]] = [[] for _ in range(4)]
        for chunk_id, data in chunks.items():
            minishards[chunk_id % 4].append((chunk_id, data))
        put(tmp_path / "sparse", document, {"0.shard": shard(minishards, index=how.get("index") == "gzip")})
        return tmp_path / "sparse", document

    return make


def put(source: Path, document: Any, shards: dict[str, bytes]) -> None:
    (source / KEY).mkdir(parents=True, exist_ok=True)
    (source / "info").write_text(json.dumps(document))
    for name, data in shards.items():
        (source / KEY / name).write_bytes(data)


def test_chunks_that_are_not_stored_have_no_files(mount: Mounter, sparse: Any) -> None:
    source, _ = sparse({0: b"a" * 8, 5: b"b" * 8, 2048: b"c" * 8})
    root = mount(source).path / KEY
    stored = {"0-2_0-2_0-2": b"a" * 8, "2-4_0-2_2-4": b"b" * 8, "0-2_0-2_16-18": b"c" * 8}
    assert {path.name: path.read_bytes() for path in root.iterdir()} == stored
    for name in ("0-2_0-2_2-4", "0-3_0-2_0-2", "64-66_0-2_0-2", "0.shard"):
        with pytest.raises(FileNotFoundError):
            (root / name).read_bytes()


@in_trio
async def test_a_cookie_leads_back_to_the_next_name(sparse: Any) -> None:
    """Large directories are read in pieces, each from where the last one ended."""
    chunks = {number: bytes([number % 251]) * 8 for number in range(0, 4096, 3)}
    source, _ = sparse(chunks)
    opened = open_source(source)
    fs = await open_tree(opened)
    directory = (await find(fs, KEY)).ino
    every = await list_directory(fs, directory)
    assert len({row[0] for row in every}) == len({row[3] for row in every}) == len(every) == len(chunks)
    for at in (0, 1, 500, 1023, 1024, 1025, len(every) - 2, len(every) - 1):
        assert await list_directory(fs, directory, every[at][3]) == every[at + 1 :]
    for name, ino, size, _ in every[::100]:
        assert ino == (await find(fs, f"{KEY}/{name.decode()}")).ino
        assert size == 8


def listed_before_an_error(directory: Path) -> list[str]:
    """The names that a listing has before it ends with an error."""
    names: list[str] = []
    with os.scandir(directory) as entries, pytest.raises(OSError, match="Input/output"):
        any(names.append(entry.name) for entry in entries)  # type: ignore[func-returns-value]
    return names


def test_damage_is_an_error_for_what_it_touches(mount: Mounter, tmp_path: Path) -> None:
    """The chunk of a minishard that cannot be read, a chunk beyond the shard, a chunk that does not decode."""
    document = info(scale((8, 2, 2), (2, 2, 2), sharding(0, "identity", 2, 0, "raw", "gzip")), data_type="uint8")
    good = gzip.compress(b"good" * 2)
    payload = good + b"no gzip"
    listed = [
        minishard_index([(0, 0, len(good))]),
        minishard_index([(1, len(good), 7)]),
        minishard_index([(2, 0, 2**40)]),
        b"\xff" * 23,
    ]
    table, at = b"", len(payload)
    for index in listed:
        table += struct.pack("<QQ", at, at + len(index))
        at += len(index)
    source = tmp_path / "source"
    put(source, document, {"0.shard": table + payload + b"".join(listed)})
    mounted = mount(source)
    mounted.expect(r"EIO|unreadable|does not|names bytes|minishard|gzip|cut short")
    root = mounted.path / KEY
    assert (root / "0-2_0-2_0-2").read_bytes() == b"good" * 2
    for name in ("2-4_0-2_0-2", "4-6_0-2_0-2", "6-8_0-2_0-2"):
        with pytest.raises(OSError, match="Input/output") as raised:
            (root / name).read_bytes()
        assert raised.value.errno == errno.EIO
    assert listed_before_an_error(root) == ["0-2_0-2_0-2", "2-4_0-2_0-2", "4-6_0-2_0-2"]
    report = run_json("verify", "--json", source, status=1)
    assert [each["chunk"] for each in report["problems"]] == ["4-6_0-2_0-2", None]
    assert "minishard 3" in report["problems"][1]["message"]
    report = run_json("verify", "--json", "--data", source, status=1)
    assert {each["chunk"] for each in report["problems"]} == {"2-4_0-2_0-2", "4-6_0-2_0-2", None}


@pytest.mark.parametrize("damaged", ["shard", "minishard"])
@pytest.mark.parametrize("number", range(4))
def test_a_listing_ends_with_an_error_wherever_the_damage_is(
    mount: Mounter, tmp_path: Path, damaged: str, number: int
) -> None:
    """Names that can be read are listed first, in several replies if they are many, and the error is not lost."""
    document = info(scale((4096, 2, 2), (2, 2, 2), sharding(8, "identity", 1, 2)), data_type="uint8")
    ids = range(2048)
    # Bits of an id: 8 tell chunks of one minishard apart, then one tells minishards, then two tell shards.
    parts = [[(i, b"12345678") for i in ids[first : first + 256]] for first in range(0, 2048, 256)]
    shards = {f"{s}.shard": shard(parts[2 * s : 2 * s + 2]) for s in range(4)}
    name = f"{number}.shard"
    if damaged == "shard":
        shards[name], lost = b"", 512
    else:
        begin, end = struct.unpack_from("<QQ", shards[name])
        shards[name] = struct.pack("<QQ", begin, end - 1) + shards[name][16:]
        lost = 256
    put(tmp_path / "source", document, shards)
    mounted = mount(tmp_path / "source")
    mounted.expect("no space for its index|unreadable|minishard|multiple of 24")
    assert len(listed_before_an_error(mounted.path / KEY)) == 2048 - lost
    copy = ["cp", "-r", mounted.path / KEY, tmp_path / "copy"]
    assert subprocess.run(copy, stderr=subprocess.DEVNULL, check=False).returncode == 1


def test_a_shard_that_is_cut_off_is_an_error_and_harms_no_other(mount: Mounter, tmp_path: Path) -> None:
    document = info(scale((4, 2, 2), (2, 2, 2), sharding(0, "identity", 1, 1)), data_type="uint8")
    document["scales"][0]["sharding"]["minishard_bits"] = 0
    shards = {"0.shard": shard([[(0, b"12345678")]]), "1.shard": b"short"}
    put(tmp_path / "source", document, shards)
    mounted = mount(tmp_path / "source")
    mounted.expect("no space for its index|unreadable")
    root = mounted.path / KEY
    assert (root / "0-2_0-2_0-2").read_bytes() == b"12345678"
    with pytest.raises(OSError, match="Input/output"):
        (root / "2-4_0-2_0-2").read_bytes()
    with pytest.raises(OSError, match="Input/output"):
        os.listdir(root)
    (problem,) = run_json("verify", "--json", tmp_path / "source", status=1)["problems"]
    assert problem["shard"] == f"{KEY}/1.shard"
    # `shardfs recover` leaves the format alone.
    assert re.search(r"unreadable shard: 8_8_40/1\.shard: .*; it is only read: copy it again from where", mounted.log)
    assert "recover" not in mounted.log


@pytest.mark.parametrize("view", ["v3", "v2"])
def test_refs_leave_out_volumes_and_say_so_in_every_view(tmp_path: Path, view: str) -> None:
    document = volume(SPECIFICATIONS["one shard"])
    write_volume(tmp_path / "source", document, [values_of(each["size"]) for each in document["scales"]])
    done = run("refs", "--view", view, tmp_path / "source")
    reason = "shardfs writes references only to arrays that are stored as Zarr"
    assert f"{KEY} cannot be referenced: {reason};" in done.stderr
    assert "--decode" not in done.stderr
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize(("encoding", "way_out"), [("raw", "; a mount with --decode shows them"), ("jpeg", "")])
def test_decode_is_the_way_out_for_chunks_that_are_cut_off_if_they_can_be_decoded(
    tmp_path: Path, encoding: str, way_out: str
) -> None:
    document = volume(sharding(), data_type="uint8")
    document["scales"][0]["encoding"] = encoding
    put(tmp_path / "source", document, {"0.shard": shard([[(0, b"chunk")], [], [], []])})
    (described,) = run_json("info", "--json", tmp_path / "source", KEY)["arrays"]
    reason = "its chunks are cut off at its edge, which those of Zarr are not"
    assert described["left_out"]["--view v2"] == f"{reason}{way_out}"


def test_ids_that_do_not_belong_are_not_shown_and_are_reported(mount: Mounter, tmp_path: Path) -> None:
    document = info(scale((4, 2, 2), (2, 2, 2), sharding(0, "identity", 1, 0)), data_type="uint8")
    put(tmp_path / "source", document, {"0.shard": shard([[(0, b"1" * 8), (1, b"2" * 8), (2, b"3" * 8)], []])})
    root = mount(tmp_path / "source").path / KEY
    assert os.listdir(root) == ["0-2_0-2_0-2"]
    with pytest.raises(FileNotFoundError):
        (root / "2-4_0-2_0-2").read_bytes()
    problems = run_json("verify", "--json", tmp_path / "source", status=1)["problems"]
    assert [each["message"] for each in problems] == [
        f"minishard 0 lists chunk {number}, which does not belong there" for number in (1, 2)
    ]


def test_a_bomb_costs_no_memory(mount: Mounter, tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(2**30), 1)
    document = info(scale((4, 2, 2), (2, 2, 2), sharding(0, "identity", 1, 0, "raw", "gzip")), data_type="uint8")
    put(tmp_path / "source", document, {"0.shard": shard([[(0, bomb)], [(1, gzip.compress(b"x" * 8))]])})
    mounted = mount(tmp_path / "source")
    mounted.expect("decodes to more than")
    with pytest.raises(OSError, match="Input/output"):
        (mounted.path / KEY / "0-2_0-2_0-2").read_bytes()
    assert (mounted.path / KEY / "2-4_0-2_0-2").read_bytes() == b"x" * 8
    assert mounted.peak_memory() < 250 * 2**20


@pytest.mark.parametrize("members", [{"minishard_bits": 63}, {"shard_bits": 62}, {"hash": "md5"}, {"@type": "v2"}])
def test_a_scale_that_cannot_be_read_is_as_stored(mount: Mounter, tmp_path: Path, members: dict[str, Any]) -> None:
    document = info(
        scale((4, 2, 2), (2, 2, 2), sharding(0, "identity", 1, 0) | members, key="bad"),
        scale((4, 2, 2), (2, 2, 2), sharding(0, "identity", 1, 0)),
        data_type="uint8",
    )
    put(tmp_path / "source", document, {"0.shard": shard([[(0, b"1" * 8)], []])})
    (tmp_path / "source" / "bad").mkdir()
    (tmp_path / "source" / "bad" / "0.shard").write_bytes(b"as stored")
    mounted = mount(tmp_path / "source")
    assert (mounted.path / "bad" / "0.shard").read_bytes() == b"as stored"
    assert os.getxattr(mounted.path / "bad", "user.shardfs.reason")
    assert "bad is shown as stored" in mounted.log
    shown = json.loads((mounted.path / "info").read_bytes())
    assert shown["scales"][0] == document["scales"][0]
    assert "sharding" not in shown["scales"][1]
    assert os.listdir(mounted.path / KEY) == ["0-2_0-2_0-2"]
    (item,) = run_json("info", "--json", tmp_path / "source", "bad")["arrays"]
    assert item["reason"]


def test_a_writing_mount_changes_nothing_of_a_volume(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    document = info(scale((4, 2, 2), (2, 2, 2), sharding(0, "identity", 1, 0)), data_type="uint8")
    put(source / "volume", document, {"0.shard": shard([[(0, b"1" * 8)], []])})
    store(source / "image", array((4, 4), (4, 4), sharded((2, 2), LITTLE)))
    before = files_below(source)
    mounted = mount(source, write=True)
    mounted.expect("only read|not shown")
    root = mounted.path / "volume"
    chunk, missing = root / KEY / "0-2_0-2_0-2", root / KEY / "2-4_0-2_0-2"
    (mounted.path / "note").write_text("x")
    refused: list[Callable[[], object]] = [
        lambda: chunk.write_bytes(b"2"),
        lambda: missing.write_bytes(b"2"),
        chunk.unlink,
        lambda: os.truncate(chunk, 0),
        lambda: os.utime(chunk),
        lambda: chunk.chmod(0o600),
        lambda: chunk.rename(root / "elsewhere"),
        lambda: (mounted.path / "note").rename(chunk),
        lambda: missing.mkdir(),
        lambda: os.link(mounted.path / "note", missing),
        lambda: (root / "info").write_text("{}"),
        (root / "info").unlink,
        lambda: (root / "info").rename(root / "other"),
        lambda: (mounted.path / "note").rename(root / "info"),
        lambda: (root / "info").chmod(0o600),
        lambda: os.setxattr(root / "info", "user.x", b"1"),
        lambda: (root / KEY).rename(root / "moved"),
        lambda: (root / KEY).rmdir(),
        lambda: (root / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}'),
        lambda: (root / KEY / "zarr.json").write_text(json.dumps(array((4,), (4,), LITTLE))),
        lambda: (root / KEY / "0.shard").write_bytes(b""),
        lambda: shutil.rmtree(root),
    ]
    for change in refused:
        with pytest.raises(OSError, match="Read-only") as raised:
            change()
        assert raised.value.errno == errno.EROFS
    assert chunk.read_bytes() == b"1" * 8
    (root / "provenance").write_text("by hand")
    (mounted.path / "image" / "c" / "0" / "1").write_bytes(b"new!" * 2)
    mounted.unmount()
    after = files_below(source)
    assert {path: data for path, data in after.items() if "volume" in str(path)} == {
        path: data for path, data in before.items() if "volume" in str(path)
    } | {path: b"by hand" for path in after if str(path).endswith("provenance")}
    assert after != before


def test_compact_and_recover_leave_it_alone(tmp_path: Path) -> None:
    source = tmp_path / "source"
    document = info(scale((4, 2, 2), (2, 2, 2), sharding(0, "identity", 1, 0)), data_type="uint8")
    put(source, document, {"0.shard": shard([[(0, b"1" * 8)], []]) + bytes(10_000)})
    before = files_below(source)
    report = run_json("compact", "--json", source)
    assert report["compacted"] == 0
    assert "only read" in report["left"][0]["reason"]
    succeed("recover", source)
    assert {path: data for path, data in files_below(source).items() if ".shardfs" not in str(path)} == before


def test_a_volume_that_is_replaced_is_seen(mount: Mounter, tmp_path: Path) -> None:
    document = info(scale((4, 2, 2), (2, 2, 2), sharding(0, "identity", 1, 0)), data_type="uint8")
    put(tmp_path / "source", document, {"0.shard": shard([[(0, b"1" * 8)], []])})
    root = mount(tmp_path / "source", metadata_ttl=0).path
    chunk = root / KEY / "0-2_0-2_0-2"
    with chunk.open("rb", buffering=0) as opened:
        assert opened.read(4) == b"1111"
        new = tmp_path / "new"
        new.write_bytes(shard([[(0, b"22222222")], [(1, b"3" * 8)]]))
        new.rename(tmp_path / "source" / KEY / "0.shard")
        assert opened.read() == b"1111"
    assert chunk.read_bytes() == b"22222222"
    assert len(os.listdir(root / KEY)) == 2
    document["scales"][0]["voxel_offset"] = [10, 0, 0]
    changed = tmp_path / "changed"
    changed.write_text(json.dumps(document))
    changed.rename(tmp_path / "source" / "info")
    assert sorted(os.listdir(root / KEY)) == ["10-12_0-2_0-2", "12-14_0-2_0-2"]
    assert json.loads((root / "info").read_bytes())["scales"][0]["voxel_offset"] == [10, 0, 0]


def test_a_scale_may_be_deep_below_its_volume(mount: Mounter, tmp_path: Path) -> None:
    document = info(scale((4, 2, 2), (2, 2, 2), sharding(0, "identity", 1, 0), key="a/b/c"), data_type="uint8")
    put(tmp_path / "source" / "group", document, {})
    (tmp_path / "source" / "group" / "a" / "b" / "c").mkdir(parents=True)
    data = shard([[(0, b"1" * 8)], []])
    (tmp_path / "source" / "group" / "a" / "b" / "c" / "0.shard").write_bytes(data)
    root = mount(tmp_path / "source").path / "group"
    assert (root / "a" / "b" / "c" / "0-2_0-2_0-2").read_bytes() == b"1" * 8
    assert os.listdir(root / "a" / "b") == ["c"]


def test_other_files_of_this_name_pass_through(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    texts = {
        "text": b"about this",
        "list": b"[]",
        "empty": b"",
        "segments": b'{"@type": "neuroglancer_segment_properties"}',
    }
    for name, text in texts.items():
        (source / name).mkdir(parents=True)
        (source / name / "info").write_bytes(text)
    (source / "directory" / "info").mkdir(parents=True)
    document = array((4, 4), (4, 4), sharded((2, 2), LITTLE))
    store(source / "zarr", document)
    (source / "zarr" / "info").write_text(json.dumps(info(scale((4, 2, 2), (2, 2, 2), sharding()))))
    mounted = mount(source, write=True)
    for name, text in texts.items():
        assert (mounted.path / name / "info").read_bytes() == text
        (mounted.path / name / "info").write_bytes(b"changed")
        assert (source / name / "info").read_bytes() == b"changed"
    assert os.listdir(mounted.path / "directory" / "info") == []
    assert (mounted.path / "zarr" / "info").read_bytes() == (source / "zarr" / "info").read_bytes()
    assert (mounted.path / "zarr" / "c" / "0" / "0").exists()


def test_a_volume_in_a_bucket(remote: Remote) -> None:
    """Each chunk takes one request, once the index of its minishard is known."""
    document = volume(sharding(3, "identity", 2, 2, "gzip", "gzip"))
    write_volume(remote.local / "volume", document, [values_of(each["size"]) for each in document["scales"]])
    remote.upload("volume")
    root = remote.mount() / "volume"
    for index in (0, 1):
        assert np.array_equal(read_volume(root, index), read_volume(remote.local / "volume", index))
    fresh, names = remote.mount() / "volume" / KEY, list(names_in(document))
    (fresh / names[0]).read_bytes()
    remote.taken()
    (fresh / names[1]).read_bytes()  # the neighbour along z is in the same minishard
    assert [request.method for request in remote.taken()] == ["GET"]


VIEWS = {"--decode": "zarr3", "--view=v2 --decode": "zarr", "--view=v2": "zarr"}


@pytest.mark.parametrize("options", VIEWS)
@pytest.mark.parametrize("name", ["identity raw", "murmur gzip"])
def test_raw_scales_are_arrays_in_views_of_zarr(mount: Mounter, tmp_path: Path, name: str, options: str) -> None:
    document = volume(SPECIFICATIONS[name], num_channels=2)
    document["scales"][1]["size"] = [3 * edge for edge in CHUNK]  # no chunk of which is cut off
    write_volume(tmp_path / "source", document, [values_of(each["size"], 2) for each in document["scales"]])
    mounted = mount(tmp_path / "source", arguments=options.split())
    root, decodes = mounted.path, "--decode" in options
    shown = [each for each in document["scales"] if decodes or each is document["scales"][1]]
    assert {each.name for each in root.iterdir() if each.is_dir()} == {each["key"] for each in shown}
    assert not (root / "info").exists()
    group = zarr.open_group(str(root), mode="r")
    for each in shown:
        values, array = values_of(each["size"], 2), group[each["key"]]
        assert np.array_equal(np.asarray(array), values)
        assert array.attrs["voxel_offset"] == each["voxel_offset"]
        spec = {"driver": VIEWS[options], "kvstore": {"driver": "file", "path": str(root / each["key"])}}
        assert np.array_equal(tensorstore.open(spec, read=True).result().read().result(), values)
        for file in (root / each["key"]).iterdir():
            assert file.stat().st_size == len(file.read_bytes())
    if not decodes:
        assert "cut off" in mounted.log


def test_chunks_that_zarr_has_no_codec_for_are_skipped(mount: Mounter, tmp_path: Path) -> None:
    document = volume(sharding(), data_type="uint8")
    for each in document["scales"]:
        each["encoding"] = "jpeg"
    put(tmp_path / "source", document, {"0.shard": shard([[(0, b"jpeg")], [], [], []])})
    mounted = mount(tmp_path / "source", arguments=["--decode"])
    assert KEY not in os.listdir(mounted.path)
    assert "neuroglancer.jpeg" in mounted.log
    done = run("pack", tmp_path / "source", tmp_path / "packed")
    assert done.returncode != 0
    assert "neuroglancer.jpeg" in done.stdout + done.stderr
    assert not (tmp_path / "packed" / KEY).exists()


def test_views_of_zarr_are_only_read(mount: Mounter, tmp_path: Path) -> None:
    document = info(scale((4, 2, 2), (2, 2, 2), sharding(0, "identity", 1, 0)), data_type="uint8")
    put(tmp_path / "source", document, {"0.shard": shard([[(0, b"1" * 8)], []])})
    before = files_below(tmp_path / "source")
    mounted = mount(tmp_path / "source", write=True, arguments=["--decode"])
    mounted.expect("only read")
    for name in ("zarr.json", f"{KEY}/zarr.json", f"{KEY}/c.0.0.0.0", f"{KEY}/c.1.0.0.0"):
        with pytest.raises(OSError, match="Read-only"):
            (mounted.path / name).write_bytes(b"{}")
    for name in ("zarr.json", f"{KEY}/zarr.json", f"{KEY}/c.0.0.0.0"):
        with pytest.raises(OSError, match="Read-only"):
            (mounted.path / name).unlink()
        with pytest.raises(OSError, match="Read-only"):
            (mounted.path / name).chmod(0o600)
    mounted.unmount()
    assert {name: data for name, data in files_below(tmp_path / "source").items() if name in before} == before


@pytest.mark.parametrize("options", [[], ["--codecs=zstd"]], ids=["as they are", "zstd"])
def test_pack_makes_sharded_arrays_of_scales(source: Path, tmp_path: Path, options: list[str]) -> None:
    packed, document = tmp_path / "packed", document_of(source)
    (source / "note").write_text("beside")
    assert "raw of neuroglancer precomputed" in succeed("pack", "--dry-run", *options, source, packed)
    assert not packed.exists()
    succeed("pack", *options, source, packed)
    group = zarr.open_group(str(packed), mode="r")
    for each in document["scales"]:
        array = group[each["key"]]
        assert array.shards is not None
        assert array.chunks == (*CHUNK, 2)
        assert np.array_equal(np.asarray(array), values_of(each["size"], 2))
        assert array.metadata.dimension_names == ("x", "y", "z", "channel")
    assert (packed / "note").read_text() == "beside"
    assert not (packed / "info").exists()
    succeed("verify", source, packed)
    assert "0 objects stored" in succeed("pack", "--sync", *options, source, packed)


def test_pack_leaves_out_and_reports_damaged_chunks(tmp_path: Path) -> None:
    document = info(scale((64, 2, 2), (2, 2, 2), sharding(0, "identity", 0, 0)), data_type="uint8")
    chunks = {number: bytes([number]) * 8 for number in range(32)} | {5: b"short"}
    put(tmp_path / "source", document, {"0.shard": shard([list(chunks.items())])})
    done = run("pack", "--shards=8", tmp_path / "source", tmp_path / "packed")
    assert done.returncode == 1
    assert "5 bytes instead of 8" in done.stdout + done.stderr
    values = np.asarray(zarr.open_group(str(tmp_path / "packed"), mode="r")[KEY])[:, 0, 0, 0]
    assert values.tolist() == [0 if number == 5 else number for number in range(32) for _ in range(2)]


def test_a_volume_of_a_hundred_million_chunks_costs_no_memory(mount: Mounter, tmp_path: Path) -> None:
    """Nothing is as large as the grid: 134,217,728 chunks, of which one shard of 32,768 is stored."""
    document = info(scale((1024,) * 3, (2,) * 3, sharding(9, "identity", 6, 12, "gzip")), data_type="uint8")
    minishards = [[(number << 9 | i, bytes([i % 251]) * 8) for i in range(512)] for number in range(64)]
    put(tmp_path / "source", document, {"000.shard": shard(minishards, index=True)})
    mounted = mount(tmp_path / "source")
    assert (mounted.path / KEY / "2-4_0-2_0-2").read_bytes() == b"\1" * 8
    with pytest.raises(FileNotFoundError):
        (mounted.path / KEY / "1022-1024_1022-1024_1022-1024").read_bytes()
    assert len(os.listdir(mounted.path / KEY)) == 2**15
    assert mounted.peak_memory() < 250 * 2**20
