"""Extended attributes of stored files, and what modes forbid."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from shardfs.errors import NoAttributeError
from shardfs.stores.local.tree import LocalStore
from tests.support.opened import in_trio


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_bytes(b"x")
    (tmp_path / "link").symlink_to("d/f")
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    return LocalStore(str(tmp_path))


@in_trio
async def test_extended_attributes_of_users_pass_through(store: LocalStore, tmp_path: Path) -> None:
    os.setxattr(tmp_path / "d" / "f", "user.note", b"text")
    assert await store.attribute("d/f", b"user.note") == b"text"
    assert await store.attributes("d/f") == [b"user.note"]
    assert await store.attributes("") == await store.attributes("d") == []
    for name in (b"user.other", b"security.selinux", b"system.posix_acl_access", b"trusted.overlay.opaque"):
        with pytest.raises(NoAttributeError):
            await store.attribute("d/f", name)


@pytest.mark.parametrize("key", ["link", "dangling", "pipe"])
@in_trio
async def test_links_and_pipes_have_no_extended_attributes(store: LocalStore, tmp_path: Path, key: str) -> None:
    """The kernel allows none there; `tar --xattrs` and `rsync -X` ask all the same."""
    os.setxattr(tmp_path / "d" / "f", "user.note", b"text")
    assert await store.attributes(key) == []
    with pytest.raises(NoAttributeError):
        await store.attribute(key, b"user.note")


UNPRIVILEGED = """
import os, sys, trio
from shardfs.errors import AccessDeniedError, SourceError
from shardfs.stores.local.tree import LocalStore
if os.geteuid() == 0:
    os.setegid(65534)
    os.seteuid(65534)
async def main():
    store = LocalStore(sys.argv[1])
    for request, key in [
        (store.open, "secret"), (store.open, "closed/f"), (store.stat, "closed/f"), (store.list, "closed"),
        (store.open, "to-secret"), (store.attribute, "secret"),
    ]:
        try:
            await (request(key, b"user.x") if request == store.attribute else request(key))
        except AccessDeniedError:
            continue
        raise AssertionError(key)
    assert (await store.stat("secret")).size == 1
    assert await store.attributes("secret") == [], "listing them needs no permission to read"
trio.run(main)
try:
    LocalStore(sys.argv[1] + "/closed")
except SourceError as error:
    assert "denied" in str(error).lower(), error
else:
    raise AssertionError("closed")
"""


def test_what_modes_forbid_is_denied() -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        root.chmod(0o755)
        (root / "closed").mkdir()
        (root / "closed" / "f").write_bytes(b"x")
        (root / "secret").write_bytes(b"x")
        (root / "to-secret").symlink_to("secret")
        (root / "secret").chmod(0)
        (root / "closed").chmod(0)
        try:
            done = subprocess.run([sys.executable, "-c", UNPRIVILEGED, directory], capture_output=True, text=True)
        finally:
            (root / "closed").chmod(0o700)
    assert done.returncode == 0, done.stderr
