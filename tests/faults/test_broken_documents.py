"""Documents that cannot be shown unsharded: the directory is shown exactly as it is stored, and says why."""

import errno
import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.corpus import BASE, BROKEN, array, sharding
from tests.support.datasets import files_below, store
from tests.support.mounting import Mount, Mounter
from tests.support.parametrize import each

MAX_MEMORY = 250 * 2**20
SOUND = array((8, 12), (4, 6), sharding((2, 3)))
TEXTS = {
    "nothing": b"",
    "no-end": b'{"zarr_format": 3,',
    "not-utf-8": b'{"zarr_format": 3, "node_type": "array", "attributes": "\xff"}',
    "nul": b"\0",
    "two-documents": json.dumps(BASE).encode() * 2,
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "deep-object": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "huge-number": b'{"zarr_format": ' + b"9" * 100_000 + b"}",
    "huge-exponent": json.dumps(BASE).replace("[7, 11]", "[1e999999, 11]").encode(),
    "nan-length": json.dumps(BASE).replace("[7, 11]", "[NaN, 11]").encode(),
    "huge-length": json.dumps(BASE).replace("[7, 11]", f"[{10**400}, 11]").encode(),
    "many-axes": json.dumps(array([2] * 5000, [2] * 5000, sharding([1] * 5000))).encode(),
    "text": b'"zarr_format"',
}
TEXTS |= {broken.name: json.dumps(broken.document).encode() for broken in BROKEN if broken.name != "codecs-empty"}
ODD: dict[str, Callable[[Path], object]] = {
    "is-a-directory": Path.mkdir,
    "is-a-fifo": os.mkfifo,
    "is-a-link-out": lambda document: document.symlink_to("/etc/hostname"),
    "is-a-link-to-itself": lambda document: document.symlink_to("zarr.json"),
    "is-a-dangling-link": lambda document: document.symlink_to("nothing"),
    "is-without-mode": lambda document: (document.write_text(json.dumps(SOUND)), document.chmod(0)),
    "is-sparse": lambda document: (document.touch(), os.truncate(document, 20 * 2**30)),
}
"""What may have the name of a document."""


def make(directory: Path, name: str) -> None:
    """Store a broken document, in a directory with a chunk and another file."""
    (directory / "c/0").mkdir(parents=True)
    (directory / "c/0/0").write_bytes(name.encode())
    (directory / "notes.txt").write_bytes(b"plain")
    ODD.get(name, lambda document: document.write_bytes(TEXTS[name]))(directory / "zarr.json")


@dataclass(frozen=True)
class Ward:
    """One mount of a directory per broken document, beside a sound array."""

    mount: Mount
    chunks: dict[str, bytes]


@pytest.fixture(scope="module")
def ward(module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory) -> Ward:
    source = tmp_path_factory.mktemp("source")
    chunks = store(source / "sound", SOUND)
    for name in (*TEXTS, *ODD):
        make(source / name, name)
    return Ward(module_mount(source, bound_by_modes=True, address_space=2**32), chunks)


@each("name", [*TEXTS, *ODD], str)
def test_a_broken_document_is_shown_as_stored_with_the_reason(ward: Ward, name: str) -> None:
    shown, stored = ward.mount.path / name, ward.mount.source / name
    reason = os.getxattr(shown, "user.shardfs.reason").decode()
    assert 5 < len(reason) < 500
    assert "\n" not in reason
    assert os.listxattr(shown) == ["user.shardfs.reason"]
    paths = sorted(str(path.relative_to(shown)) for path in shown.rglob("*"))
    assert paths == sorted(str(path.relative_to(stored)) for path in stored.rglob("*"))
    for path in paths:
        before, after = os.lstat(stored / path), os.lstat(shown / path)
        assert (after.st_mode, after.st_size) == (before.st_mode, before.st_size)
        if path != "zarr.json" and not os.path.isdir(stored / path):
            assert (shown / path).read_bytes() == (stored / path).read_bytes()
    if name in TEXTS:
        assert (shown / "zarr.json").read_bytes() == TEXTS[name]


def test_each_is_named_once_in_the_log_and_the_array_beside_them_is_right(ward: Ward) -> None:
    for path in os.listdir(ward.mount.path):
        os.listdir(ward.mount.path / path)
    lines = ward.mount.log.splitlines()
    named = Counter(found[1] for line in lines if (found := re.search(r": (\S+) is shown as stored: ", line)))
    assert named == dict.fromkeys((*TEXTS, *ODD), 1)
    assert all("WARNING" in line or "INFO" in line for line in lines)
    found = files_below(ward.mount.path / "sound")
    found.pop("zarr.json")
    assert found == ward.chunks
    assert ward.mount.peak_memory() < MAX_MEMORY


def test_a_view_of_v2_has_an_error_in_place_of_what_is_broken(mount: Mounter, tmp_path: Path) -> None:
    source, names = tmp_path / "source", ("is-a-dangling-link", "is-a-directory", "no-end")
    store(source / "sound", SOUND)
    (source / "plain").mkdir()
    for name in names:
        make(source / name, name)
    shown = mount(source, arguments=["--view=v2"], expect=("cannot be shown in",)).path
    assert sorted(os.listdir(shown)) == sorted(os.listdir(source))
    for name in names:
        for call in (os.listdir, lambda path: os.stat(path / "notes.txt"), lambda path: os.stat(path / ".zarray")):
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                call(shown / name)
    done = subprocess.run(["cp", "-r", shown, tmp_path / "copy"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("Input/output error")) == (1, 3)
    assert len(files_below(tmp_path / "copy")) == len(files_below(shown / "sound")) > 4
