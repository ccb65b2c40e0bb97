"""GET and HEAD: exact bytes, versions, ranges and conditions, in every view."""

import json
import os
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from pathlib import Path

import numpy as np
import pytest

import shardfs
from tests.support.corpus import CASES, LITTLE, ZSTD, array, sharding, write_case
from tests.support.damage import ENTRY_FAULTS, SHARD, SHARD_FAULTS, document, edit
from tests.support.datasets import age, files_below, store
from tests.support.serving import Served, served

GROUP = '{"zarr_format": 3, "node_type": "group"}'
NOTES = b"0123456789" * 10


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "data.zarr"
    store(directory / "image", document(LITTLE, ZSTD))
    store(directory / "plain", array((4, 6), (2, 3), LITTLE))
    (directory / "zarr.json").write_text(GROUP)
    (directory / "notes.txt").write_bytes(NOTES)
    (directory / "empty.bin").touch()
    age(directory)
    return directory


@pytest.mark.slow
def test_every_file_of_every_view_has_the_bytes_that_are_shown_without_http(source: Path, site: Served) -> None:
    client = site.connect()
    for prefix, view, decode in (
        ("-/v3", "v3", False),
        ("-/v2", "v2", False),
        ("-/decoded/v3", "v3", True),
        ("-/npy", "npy", False),
        ("", "v3", False),
    ):
        with shardfs.open(source, view=view, decode=decode) as dataset:
            fs = dataset.filesystem()
            names = fs.find("")
            assert len(names) > 3
            for name in names:
                reply = client.ask(f"/{prefix}/{name}".replace("//", "/"))
                assert (reply.status, reply.body) == (200, fs.cat_file(name)), (prefix, name)
                assert reply["Content-Length"] == str(len(reply.body))
                assert reply["Content-Encoding"] is None


@pytest.mark.slow
def test_every_inner_chunk_of_the_corpus_is_served(tmp_path: Path) -> None:
    encoded = {case.name: write_case(case, tmp_path / case.name) for case in CASES}
    with shardfs.open(tmp_path) as dataset, served(tmp_path) as site:
        client = site.connect()
        for case in CASES:
            names = dataset.filesystem().find(case.name)
            bodies = {client.ask(f"/-/v3/{name}").body for name in names}
            assert set(encoded[case.name].inner.values()) <= bodies


def test_a_chunk_that_was_never_written_is_404_and_so_is_every_other_name_that_is_not_there(site: Served) -> None:
    client = site.connect()
    for target in (
        "/image/c/9/9", "/-/v2/image/9.9", "/nowhere", "/notes.txt/x", "/-/v2/image/zarr.json", "/-/npy/image/c/0/0",
        "/image/zarr.json/", "/" + "x" * 300, "/-/", "/-/nothing",
    ):  # fmt: skip
        reply = client.ask(target)
        assert reply.status == 404, target
        assert reply["Content-Type"] == "text/plain; charset=utf-8"
        assert reply.body.endswith(b"\n")


@pytest.mark.parametrize("fault", SHARD_FAULTS | ENTRY_FAULTS)
def test_damage_is_500_with_the_reason_and_never_404(tmp_path: Path, fault: str) -> None:
    chunks = store(tmp_path, document())
    edit(tmp_path / SHARD, (SHARD_FAULTS | ENTRY_FAULTS)[fault])
    with served(tmp_path) as site:
        client = site.connect()
        for method in ("GET", "HEAD"):
            assert client.ask("/c/0/1", method).status == 500
        assert b"c/0/" in client.ask("/c/0/1").body
        assert client.ask("/c/0/2").body == chunks["c/0/2"]


def test_a_link_out_of_the_source_and_a_directory_in_place_of_a_shard_are_500(source: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (source / "way").symlink_to(tmp_path / "secret")
    os.remove(source / "image" / SHARD)
    os.mkdir(source / "image" / SHARD)
    with served(source) as site:
        for target in ("/way", "/image/c/0/0"):
            reply = site.ask(target)
            assert (reply.status, b"secret\n" in reply.body) == (500, False)


def test_head_says_what_get_says_and_sends_no_body(site: Served) -> None:
    client = site.connect()
    for target in ("/image/c/0/0", "/image/zarr.json", "/notes.txt", "/-/npy/image.npy", "/empty.bin", "/nowhere", "/"):
        head, get = client.ask(target, "HEAD"), client.ask(target)
        assert head.body == b""
        ignored = {"Date", "Cache-Control"}
        assert {*head.headers.items()} - {*get.headers.items()} == set() or ignored >= {
            name for name, value in head.headers.items() if get.headers[name] != value
        }


@pytest.mark.parametrize(
    ("asked", "status", "expected", "content_range"),
    [
        ("bytes=0-0", 206, NOTES[:1], "bytes 0-0/100"),
        ("bytes=10-19", 206, NOTES[10:20], "bytes 10-19/100"),
        ("bytes=90-", 206, NOTES[90:], "bytes 90-99/100"),
        ("bytes=-5", 206, NOTES[-5:], "bytes 95-99/100"),
        ("bytes=-500", 206, NOTES, "bytes 0-99/100"),
        ("bytes=95-500", 206, NOTES[95:], "bytes 95-99/100"),
        ("BYTES= 5-6 ", 206, NOTES[5:7], "bytes 5-6/100"),
        ("bytes=100-", 416, None, "bytes */100"),
        ("bytes=-0", 416, None, "bytes */100"),
        ("bytes=" + "9" * 5000 + "-", 416, None, "bytes */100"),
        ("bytes=0-1,5-6", 200, NOTES, None),
        ("bytes=6-5", 200, NOTES, None),
        ("bytes=-", 200, NOTES, None),
        ("bytes=a-b", 200, NOTES, None),
        ("bytes=+1-2", 200, NOTES, None),
        ("items=0-1", 200, NOTES, None),
    ],
)
def test_a_single_range_is_a_part_and_everything_else_is_all(
    site: Served, asked: str, status: int, expected: bytes | None, content_range: str | None
) -> None:
    reply = site.ask("/notes.txt", Range=asked)
    assert (reply.status, reply["Content-Range"]) == (status, content_range)
    assert expected is None or reply.body == expected
    assert site.ask("/notes.txt", "HEAD", Range=asked).status == 200  # a range is for GET alone


def test_ranges_are_exact_in_every_kind_of_file(site: Served) -> None:
    client = site.connect()
    for target in ("/image/c/0/1", "/-/decoded/v3/image/c/0/1", "/image/zarr.json", "/-/npy/image.npy", "/plain/c/0/0"):
        reply = client.ask(target)
        every = reply.body
        for start, stop in ((0, 1), (3, 17), (len(every) - 2, len(every))):
            part = client.ask(target, Range=f"bytes={start}-{stop - 1}")
            assert (part.status, part.body, part["ETag"]) == (206, every[start:stop], reply["ETag"])
        assert reply["Accept-Ranges"] == "bytes"


def test_an_empty_file_has_no_part(site: Served) -> None:
    assert site.ask("/empty.bin").body == b""
    assert site.ask("/empty.bin", Range="bytes=0-").status == 416
    assert site.ask("/empty.bin", Range="bytes=-5").status == 200


def test_a_version_that_the_client_has_is_304(site: Served) -> None:
    client = site.connect()
    for target in ("/image/c/0/0", "/image/zarr.json", "/-/v2/image/.zarray", "/notes.txt", "/empty.bin"):
        first = client.ask(target)
        tag = first["ETag"]
        assert tag.startswith('"')
        for value in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            for method in ("GET", "HEAD"):
                reply = client.ask(target, method, If_None_Match=value)
                assert (reply.status, reply.body, reply["ETag"]) == (304, b"", tag)
                assert reply["Cache-Control"]
        for value in ('"other"', tag.strip('"'), '""'):
            assert client.ask(target, If_None_Match=value).body == first.body
        assert client.ask(target, If_Match=tag).status == 200
        assert client.ask(target, If_Match='"other"').status == 412
        assert client.ask(target, If_Match=f"W/{tag}").status == 412


def test_conditions_come_before_ranges_and_in_their_order(site: Served) -> None:
    tag, other = site.ask("/notes.txt")["ETag"], '"other"'
    for status, fields in (
        (412, {"If_Match": other, "If_None_Match": tag, "Range": "bytes=0-1"}),
        (304, {"If_Match": tag, "If_None_Match": tag, "Range": "bytes=0-1"}),
        (304, {"If_None_Match": tag, "Range": "bytes=500-"}),
        (412, {"If_Match": other, "Range": "bytes=500-"}),
        (416, {"If_None_Match": other, "Range": "bytes=500-"}),
        (206, {"If_Match": f", ,{tag}", "If_None_Match": f",{other},,", "Range": "bytes=0-1", "If_Range": tag}),
        (200, {"If_Match": tag, "Range": "bytes=500-", "If_Range": other}),
        (200, {"If_Match": tag, "Range": "bytes=0-1", "If_Range": f"{tag}, {tag}"}),
        (304, {"If_None_Match": f" ,, {tag} ,"}),
    ):
        assert site.ask("/notes.txt", **fields).status == status, fields
    for target in ("/", "/image/", "/-/page.css"):
        for accept in ("text/html", "application/json"):
            assert site.ask(target, Accept=accept, If_None_Match="*").status == 304
            assert site.ask(target, Accept=accept, If_Match=other).status == 412
            assert site.ask(target, Accept=accept, If_Match="*", If_None_Match=other).status == 200
    assert site.ask("/nowhere", If_Match=other, If_None_Match="*").status == 404


def test_if_range_gives_a_part_of_that_version_or_all(site: Served) -> None:
    tag = site.ask("/notes.txt")["ETag"]
    assert site.ask("/notes.txt", Range="bytes=0-1", If_Range=tag).status == 206
    date = site.ask("/notes.txt")["Last-Modified"]
    for other in ('"other"', f"W/{tag}", date):
        reply = site.ask("/notes.txt", Range="bytes=0-1", If_Range=other)
        assert (reply.status, reply.body) == (200, NOTES)


def test_an_etag_outlives_a_restart_and_changes_of_other_chunks_and_ends_with_the_content(source: Path) -> None:
    targets = ("/image/c/0/0", "/-/decoded/v3/image/c/0/0", "/-/v2/image/0.0", "/image/zarr.json", "/notes.txt")

    def tags() -> list[str]:
        with served(source, metadata_ttl=0) as site:
            return [site.ask(target)["ETag"] for target in targets]

    before = tags()
    assert len({*before[:2], *before[3:]}) == 4
    with shardfs.open(source, write=True) as dataset:
        chunk = dataset["image"].read_chunk((0, 1))
        dataset["image"].write_chunk((1, 1), chunk)
    assert tags() == before
    with shardfs.open(source, write=True) as dataset:
        dataset["image"].write_chunk((0, 0), chunk)
    (source / "notes.txt").write_bytes(NOTES[::-1])
    after = tags()
    assert after[3] == before[3]
    assert all(one != other for one, other in zip(after[:3] + after[4:], before[:3] + before[4:], strict=True))


def test_an_etag_tells_two_contents_apart_that_were_written_within_one_tick(source: Path, tmp_path: Path) -> None:
    path = source / "notes.txt"
    with served(source, metadata_ttl=0) as site:
        first = site.ask("/notes.txt")
        path.write_bytes(NOTES[::-1])
        age(source)  # the same size and time
        second = site.ask("/notes.txt")
    assert second.body == first.body[::-1]
    assert second["ETag"] != first["ETag"]


def test_a_large_file_that_was_just_written_has_no_etag_until_its_time_tells(source: Path) -> None:
    large = source / "large.bin"
    large.write_bytes(bytes(3 * 2**20))
    with served(source, metadata_ttl=0) as site:
        assert site.ask("/large.bin", "HEAD")["ETag"] is None
        age(source)
        assert site.ask("/large.bin", "HEAD")["ETag"] is not None
        assert site.ask("/-/npy/image.npy")["ETag"] is None  # its chunks change apart


def test_last_modified_is_that_of_the_file_and_cache_control_what_is_left_of_the_ttl(source: Path) -> None:
    with served(source, metadata_ttl=1000) as site:
        for target in ("/image/c/0/0", "/image/zarr.json", "/notes.txt"):
            reply = site.ask(target)
            assert parsedate_to_datetime(reply["Last-Modified"]).timestamp() == 1_600_000_000
            name, _, seconds = reply["Cache-Control"].partition("=")
            assert name == "max-age"
            assert 900 <= int(seconds) <= 1000
    with served(source, metadata_ttl=0) as site:
        assert site.ask("/image/c/0/0")["Cache-Control"] == "no-cache"


def test_a_directory_is_json_with_names_sizes_and_kinds(site: Served) -> None:
    for target in ("/", "/-/v3/", "/-/v3", "/?x=y"):
        listing = json.loads(site.ask(target).body)
        assert listing["path"] == ""
        entries = {entry["name"]: entry for entry in listing["entries"]}
        assert entries["image"] == {"name": "image", "kind": "directory", "href": "image/"}
        assert entries["notes.txt"] == {"name": "notes.txt", "kind": "file", "size": 100, "href": "notes.txt"}
    names = [entry["name"] for entry in json.loads(site.ask("/-/v2/image").body)["entries"]]
    assert {".zarray", "0.0", "1.3"} <= set(names)


def test_names_that_are_not_utf_8_or_mean_something_in_a_url_are_reached_by_their_href(source: Path) -> None:
    names = [b"caf\xe9", "é?#%20".encode(), b"a b&c", b"+plus", b"quo\"te'", b"semi;colon"]
    for name in names:
        Path(os.fsdecode(os.fsencode(source) + b"/" + name)).write_bytes(name)
    with served(source) as site:
        entries = json.loads(site.ask("/").body)["entries"]
        bodies = [site.ask(f"/{entry['href']}").body for entry in entries if entry["kind"] == "file"]
    assert set(names) <= set(bodies)


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/../data.zarr/notes.txt", 404), ("/%2e%2e/data.zarr/notes.txt", 404), ("/image/../notes.txt", 404),
        ("/./notes.txt", 404), ("//notes.txt", 404), ("/image//zarr.json", 404), ("/image%2Fzarr.json", 404),
        ("/notes.txt%00", 404), ("/.shardfs/", 404), ("/%zz", 400), ("/%", 400), ("notes.txt", 400), ("*", 400),
        ("/notes.txt", 200), ("/n%6ftes.txt", 200), ("http://localhost/notes.txt", 200), ("/notes.txt?v=1&w", 200),
    ],
)  # fmt: skip
def test_a_target_is_resolved_by_the_tree_alone(site: Served, target: str, status: int) -> None:
    reply = site.ask(target)
    assert reply.status == status
    assert (reply.body == NOTES) == (status == 200)


def test_the_view_of_the_option_is_at_the_root_and_a_view_that_cannot_be_shown_says_why(tmp_path: Path) -> None:
    store(tmp_path / "a.zarr", document())
    with served(tmp_path / "a.zarr", view="v2") as site:
        assert site.ask("/.zarray").body == site.ask("/-/v2/.zarray").body != b""
        assert site.ask("/-/v3/zarr.json").status == 200
    transpose = {"name": "transpose", "configuration": {"order": [1, 0, 2]}}
    store(tmp_path / "b.zarr", array((4, 4, 4), (4, 4, 4), sharding((2, 2, 2), transpose, LITTLE)))
    with served(tmp_path / "b.zarr") as site:
        for target in ("/-/v2/", "/-/v2/.zarray", "/-/v2/0.0.0"):
            reply = site.ask(target)
            assert (reply.status, b"transpose" in reply.body) == (404, True)
        assert site.ask("/-/v3/c/0/0/0").status == 200


def test_all_views_share_decoded_chunks(source: Path, site: Served) -> None:
    site.ask("/-/decoded/v3/image/c/0/0")
    decoded = site.views.main.source.statistics.decoded_chunks
    assert decoded == 1
    with shardfs.open(source, view="npy") as dataset:
        expected = dataset.filesystem().cat_file("image.npy")
    assert site.ask("/-/npy/image.npy").body == expected
    assert np.load(__import__("io").BytesIO(expected)).shape == (8, 12)
    assert site.views.main.source.statistics.decoded_chunks == 8  # not nine


def test_a_bucket_is_served_like_a_directory(source: Path, in_bucket: Callable[[Path], str]) -> None:
    with served(source) as local, served(in_bucket(source)) as site:
        for name in files_below(source):
            if "/c/" not in name:
                assert site.ask(f"/{name}").body == local.ask(f"/{name}").body
        for target in ("/image/c/0/0", "/-/decoded/v3/image/c/1/3", "/-/npy/image.npy", "/notes.txt"):
            reply = site.ask(target)
            assert reply.body == local.ask(target).body
            assert "max-age" in reply["Cache-Control"]
            assert site.ask(target, If_None_Match=reply["ETag"] or "*").status == 304
        assert site.ask("/image/c/9/9").status == 404


def test_dates_are_those_of_http(site: Served) -> None:
    before = int(time.time())
    for target in ("/notes.txt", "/nowhere", "/%"):
        date = parsedate_to_datetime(site.ask(target)["Date"])
        assert before <= date.timestamp() <= time.time() + 1
