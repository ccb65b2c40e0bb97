"""Bytes that are damaged on their way from the server: they are fetched once more, and never remembered."""

import errno
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.corpus import CRC32C, GZIP, LITTLE, array, sharding
from tests.support.mounting import eventually, refuses
from tests.support.s3_faults import Changed
from tests.support.s3_mounts import Remote

INDEXED = array((8, 12), (4, 6), sharding((2, 3), index_codecs=(LITTLE, CRC32C)))
CHECKED = array((8, 12), (4, 6), sharding((2, 3), LITTLE, CRC32C, index_codecs=(LITTLE, CRC32C)))
ENCODED = array((8, 12), (4, 6), sharding((2, 3)), GZIP)
NESTED = array((8, 12), (4, 12), sharding((4, 6), sharding((2, 3), index_codecs=(LITTLE, CRC32C))))


def flipped(_: dict[str, str], body: bytes) -> bytes:
    """What came, with one bit changed in the middle of its last bytes."""
    place = len(body) - min(len(body), 8) // 2 - 1
    return body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]


def broken(_: dict[str, str], body: bytes) -> bytes:
    return b"\xff" * len(body)


CASES = {
    "index": (INDEXED, [], flipped, 0),
    "index of a decoded chunk": (CHECKED, ["--decode"], flipped, 0),
    "decoded chunk": (CHECKED, ["--decode"], flipped, 1),
    "encoded shard": (ENCODED, [], broken, 0),
    "outer index": (NESTED, [], flipped, 0),
    "inner index": (NESTED, [], flipped, 1),
}
"""An array, options, and which of the requests for a shard gets damaged bytes, all of which are checked."""


@pytest.mark.parametrize("cached", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("name", CASES)
def test_bytes_that_fail_a_check_are_fetched_once_more(remote: Remote, tmp_path: Path, name: str, cached: bool) -> None:
    document, options, damage, place = CASES[name]
    remote.store("image", document)
    expected = (remote.mount(arguments=options) / "image/c/0/0").read_bytes()
    options = [*options, f"--cache={tmp_path}/cache"] if cached else options
    root = remote.mount(arguments=options)
    remote.proxy.fail("GetObject", Changed(damage), key="image/c/0/0", times=1, after=place)
    assert (root / "image/c/0/0").read_bytes() == expected
    assert not remote.proxy.unused()
    nrequests = len(remote.taken())
    assert (remote.mount(arguments=options) / "image/c/0/0").read_bytes() == expected
    assert len(remote.taken()) < nrequests


@pytest.mark.parametrize("cached", [False, True], ids=["memory", "disk"])
def test_what_is_damaged_each_time_is_an_error_and_right_when_the_server_is(
    remote: Remote, tmp_path: Path, cached: bool
) -> None:
    chunks = remote.store("image", INDEXED)
    arguments = [f"--cache={tmp_path}/cache"] if cached else []
    root = remote.mount(arguments=arguments, expect=(r"shard_cache", r"fuse\.operations"))
    rule = remote.proxy.fail("GetObject", Changed(flipped), key="image/c/0/0", times=None)
    with refuses(errno.EIO):
        (root / "image/c/0/0").read_bytes()
    assert rule.hits >= 2
    remote.proxy.heal()
    eventually(lambda: readable(root / "image/c/0/0"))
    assert (root / "image/c/0/0").read_bytes() == chunks["c/0/0"]
    assert (remote.mount(arguments=arguments) / "image/c/0/0").read_bytes() == chunks["c/0/0"]


def readable(path: Path) -> bool:
    with suppress(OSError):
        return bool(path.read_bytes())
    return False


def test_a_document_that_is_broken_on_the_way_is_fetched_once_more(remote: Remote) -> None:
    chunks = remote.store("image", INDEXED)
    root = remote.mount()
    rule = remote.proxy.fail("GetObject", Changed(broken), key="image/zarr.json")
    assert (root / "image/c/0/0").read_bytes() == chunks["c/0/0"]
    assert rule.hits == 1
    assert "shown as stored" not in remote.mounts[0].log
