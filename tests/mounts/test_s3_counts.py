"""How many requests reading a mounted bucket takes, and which bytes: exactly."""

import os
import shutil
import subprocess
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.commands import run_json
from tests.support.corpus import CRC32C, GZIP, LITTLE, array, sharding, transpose
from tests.support.s3_mounts import BYTES, CHUNK, DOCUMENT_HEAD, PAGE, Remote, bytes_of, fill, index_nbytes


def span(remote: Remote, name: str, shard: str, chunk: bytes) -> str:
    """Where a chunk lies in a shard, as requests say it."""
    start = (remote.local / name / shard).read_bytes().index(chunk)
    return f"{start}-{start + len(chunk) - 1}"


def test_the_very_first_chunk_costs_the_document_index_and_chunk(remote: Remote) -> None:
    chunks = fill(remote, "", bytes_of(32))
    root = remote.mount()
    assert (root / "c/9").read_bytes() == chunks["c/9"]
    place = span(remote, "", "c/0", chunks["c/9"])
    assert remote.asked() == [f"GET zarr.json {DOCUMENT_HEAD}", "GET c/0 -516", f"GET c/0 {place}"]


@pytest.mark.parametrize(("nbytes", "codec"), [(2**18, {"index_location": "start"}), (2**20, {}), (2**22, {})])
def test_a_chunk_that_is_read_in_pieces_takes_one_request_of_its_bytes(
    remote: Remote, nbytes: int, codec: dict[str, Any]
) -> None:
    chunks = fill(remote, "", bytes_of(5, nbytes, **codec))
    root = remote.mount()
    os.stat(root / "c/0")
    remote.taken()
    for number in (3, 0):
        with (root / f"c/{number}").open("rb", buffering=0) as file:
            pieces = [os.pread(file.fileno(), 2**17, offset) for offset in range(0, nbytes, 2**17)]
        assert b"".join(pieces) == chunks[f"c/{number}"]
        assert remote.asked() == [f"GET c/0 {span(remote, '', 'c/0', chunks[f'c/{number}'])}"]


@pytest.mark.parametrize("is_listed", [False, True])
def test_chunks_of_a_shard_that_is_absent_take_one_request_or_none(remote: Remote, is_listed: bool) -> None:
    remote.store("image", array((8, 8), (4, 4), sharding((2, 2))), absent=list(product((2, 3), (2, 3))))
    path = remote.mount() / "image"
    assert (path / "c/0/0").exists()
    assert not is_listed or sorted(os.listdir(path / "c/2")) == ["0", "1"]
    remote.taken()
    for name in ("c/2/2", "c/2/3", "c/3/2", "c/2/2"):
        assert not (path / name).exists()
    assert remote.asked() == ([] if is_listed else ["GET image/c/1/1 -68 404"])


SHARDS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "transposed": (array((8, 12), (8, 12), transpose(1, 0), sharding((3, 2))), ["-260", "0-23"]),
    "index-transposed": (
        array((8, 12), (8, 12), sharding((2, 3), index_codecs=[transpose(2, 0, 1), LITTLE, CRC32C])),
        ["-260", "0-23"],
    ),
    "index-without-checksum": (array((8, 8), (8, 8), sharding((2, 2), index_codecs=[LITTLE])), ["-256", "0-15"]),
    "nested": (array((16, 16), (16, 16), sharding((8, 8), sharding((2, 2)))), ["-68", "256-515", "0-15"]),
    "nested-encoded": (array((16, 16), (16, 16), sharding((8, 8), sharding((2, 2)), GZIP)), ["-68", "inner"]),
    "encoded-whole": (array((8, 8), (8, 8), sharding((2, 2)), GZIP), ["HEAD", "all"]),
}
"""Shards of chunks that lie next to each other, and what reading the chunk c/0/0 asks for."""


def test_a_chunk_takes_the_index_of_each_level_and_what_is_encoded_comes_whole_once(remote: Remote) -> None:
    stored = {name: remote.store(name, document) for name, (document, _) in SHARDS.items()}
    root = remote.mount()
    for name, (_, expected) in SHARDS.items():
        chunks = stored[name]
        (root / name / "zarr.json").read_bytes()
        remote.taken()
        assert (root / name / "c/0/0").read_bytes() == chunks["c/0/0"]
        shard = (remote.local / name / "c/0/0").read_bytes()
        offset, nbytes = np.frombuffer(shard[-68:-4], "<u8")[:2].tolist()
        parts = {"all": f"0-{len(shard) - 1}", "inner": f"{offset}-{offset + nbytes - 1}"}
        asked = [words.replace(f" {name}/c/0/0", "") for words in remote.asked()]
        assert asked == ["HEAD" if part == "HEAD" else f"GET {parts.get(part, part)}" for part in expected]
        if "encoded" in name:
            for key in ("c/0/1", "c/3/3", "c/1/2"):
                assert (root / name / key).read_bytes() == chunks[key]
            assert remote.asked() == []


def test_directories_above_the_leaves_are_answered_from_listings_alone(remote: Remote) -> None:
    count = PAGE + 50
    document = array((count, 1, 2), (1, 1, 2), sharding((1, 1, 1), BYTES), data_type="uint8")
    remote.store("image", document)
    root = remote.mount()
    assert sorted(os.listdir(root / "image")) == ["c", "zarr.json"]
    remote.taken()
    names = os.listdir(root / "image/c")
    assert sorted(map(int, names)) == list(range(count))
    assert all(os.path.isdir(root / "image/c" / name) for name in names)
    assert remote.asked() == ["LIST image/c/"] * 2
    assert os.listdir(root / "image/c/7") == ["0"]
    assert remote.asked() == ["LIST image/c/7/"]
    assert sorted(os.listdir(root / "image/c/7/0")) == ["0", "1"]
    assert remote.asked() == ["LIST image/c/7/0/", "GET image/c/7/0/0 -36"]


def test_a_leaf_takes_the_index_of_each_of_its_shards_once(remote: Remote) -> None:
    remote.store("image", array((8, 24), (4, 4), sharding((2, 2))))
    root = remote.mount()
    for _ in range(3):
        subprocess.run(["ls", "-lR", root], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["find", root, "-size", "+1"], check=True, stdout=subprocess.DEVNULL)
    requests = Counter(remote.asked())
    indexes = [f"GET image/c/{row}/{column} -68" for row in range(2) for column in range(6)]
    listings = [f"LIST {name}" for name in ("/", "image/", "image/c/", "image/c/0/", "image/c/1/")]
    documents = [f"GET zarr.json {DOCUMENT_HEAD} 404", f"GET image/zarr.json {DOCUMENT_HEAD}"]
    assert requests == Counter([*indexes, *listings, *documents])


def test_a_directory_that_is_no_node_takes_its_listing_and_at_first_one_request_more(
    remote: Remote,
) -> None:
    fill(remote, "plain/image", bytes_of(16))
    root = remote.mount()
    (root / "plain/image").stat()
    asked = [words for words in remote.asked() if "image" not in words]
    first = [f"GET zarr.json {DOCUMENT_HEAD} 404", "LIST /", f"GET plain/zarr.json {DOCUMENT_HEAD} 404", "LIST plain/"]
    assert asked == first
    assert (os.listdir(root), os.listdir(root / "plain")) == (["plain"], ["image"])
    assert remote.asked() == []
    root = remote.mount(metadata_ttl=0)
    (root / "plain/image").stat()
    remote.taken()
    (root / "plain/image").stat()
    assert {words for words in remote.asked() if "image" not in words} == {"LIST /", "LIST plain", "LIST plain/"}


def test_within_the_metadata_ttl_known_names_take_no_request(remote: Remote, tmp_path: Path) -> None:
    fill(remote, "image", bytes_of(16, nshards=3))
    remote.put("notes.txt", b"notes")
    root = remote.mount(metadata_ttl=3600)
    shutil.copytree(root, tmp_path / "copy")
    remote.taken()
    for _ in range(2):
        subprocess.run(["ls", "-lR", root], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["diff", root / "image/zarr.json", tmp_path / "copy/image/zarr.json"], check=True)
    assert not (root / "other").exists()
    assert not (root / "image/c/48").exists()
    assert remote.asked() == []


def test_after_the_ttl_only_changed_indexes_are_fetched_again(remote: Remote) -> None:
    chunks = fill(remote, "", bytes_of(64))
    root = remote.mount(metadata_ttl=0)
    assert (root / "c/9").read_bytes() == chunks["c/9"]
    remote.taken()
    for number in (60, 30):
        assert (root / f"c/{number}").read_bytes() == chunks[f"c/{number}"]
        asked = remote.asked()
        payloads = [words for words in asked if words.startswith("GET")]
        assert payloads == [f"GET c/0 {span(remote, '', 'c/0', chunks[f'c/{number}'])}"]
        assert "HEAD c/0" in asked
    for _ in range(2):
        assert len(os.listdir(root / "c")) == 64
        assert not [words for words in remote.asked() if words.startswith("GET")]


def test_statistics_say_what_the_log_of_the_server_says(remote: Remote, tmp_path: Path) -> None:
    chunks = fill(remote, "image", bytes_of(16, nshards=3))
    remote.put("notes.txt", b"notes")
    root = remote.mount()
    before = run_json("stats", "--json", root)["store"]
    shutil.copytree(root, tmp_path / "copy")
    assert not (root / "missing").exists()
    counts = run_json("stats", "--json", root)
    asked = remote.taken()
    operations = Counter(request.operation for request in asked)
    assert Counter(counts["store"]["requests"]) - Counter(before["requests"]) == operations
    answered = [request for request in asked if request.status in (200, 206) and request.operation == "GetObject"]
    assert counts["store"]["bytes_received"] - before["bytes_received"] == sum(
        request.bytes_out for request in answered
    )
    assert counts["bytes_read"] >= sum(map(len, chunks.values()))
    assert (counts["index_loads"], counts["index_bytes"]) == (3, 3 * index_nbytes(16))
    assert [counts["store"][name] for name in ("retries", "conflicts", "bytes_sent")] == [0, 0, 0]


def test_without_a_metadata_ttl_one_request_of_the_kernel_asks_for_a_name_once(remote: Remote) -> None:
    remote.put("zarr.json", b'{"zarr_format": 3, "node_type": "group"}')
    chunks = fill(remote, "a/b", bytes_of(32))
    path = remote.mount(metadata_ttl=0) / "a/b/c/9"
    with path.open("rb") as file:
        assert os.fstat(file.fileno()).st_size == CHUNK
        remote.taken()
        os.fstat(file.fileno())
        assert remote.asked() == ["LIST a/b", "LIST a/b/zarr.json", "HEAD a/b/c/0"]
        os.fstat(file.fileno())
        assert len(remote.taken()) == 3
        assert file.read() == chunks["c/9"]


@pytest.mark.parametrize("name", ["plain", "image/c"])
def test_a_directory_of_many_files_is_listed_once_without_a_metadata_ttl(remote: Remote, name: str) -> None:
    """One of any files, and one of the chunks of an array without shards."""
    remote.store("image", array((600,), (1,)), absent=[(number,) for number in range(600)])
    for number in range(600):
        remote.put(f"{name}/{number}", b"x")
    path = remote.mount(metadata_ttl=0) / name
    remote.taken()
    assert len(os.listdir(path)) == 600
    assert Counter(remote.asked())[f"LIST {name}/"] <= 2, "to look the directory up, and to list it"


def test_info_lists_and_asks_for_no_shard(remote: Remote) -> None:
    for name in ("a", "b"):
        fill(remote, name, bytes_of(16, nshards=20))
    (item, _) = run_json("info", "--json", remote.url, **remote.bucket.through(remote.proxy.url).environment)["arrays"]
    assert (item["stored_shards"], item["shards"]) == (20, 20)
    assert item["stored_nbytes"] == sum(file.stat().st_size for file in (remote.local / "a/c").iterdir())
    asked = remote.asked()
    assert [each for each in asked if "/c/" in each and "LIST" not in each] == ["GET a/c/0 -1"]  # can objects be read?
    assert Counter(asked)["LIST a/c/"] == Counter(asked)["LIST b/c/"] == 1
