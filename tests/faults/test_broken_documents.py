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
    "utf-16": json.dumps(BASE).encode("utf-16"),
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


UNSHARDED = {"codecs-empty"}
"""Names no sharding codec: no concern of ours."""
NAMES = [name for name in [*(broken.name for broken in BROKEN), *TEXTS] if name not in UNSHARDED]


@dataclass(frozen=True)
class Ward:
    """One mount of a directory per broken document, beside a sound array."""

    mount: Mount
    chunks: dict[str, bytes]


@pytest.fixture(scope="module")
def ward(module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory) -> Ward:
    source = tmp_path_factory.mktemp("source")
    chunks = store(source / "sound", SOUND)
    documents = {broken.name: json.dumps(broken.document).encode() for broken in BROKEN} | TEXTS
    for name, document in documents.items():
        (source / name / "c/0").mkdir(parents=True)
        (source / name / "zarr.json").write_bytes(document)
        (source / name / "c/0/0").write_bytes(name.encode())
        (source / name / "notes.txt").write_bytes(b"plain")
    return Ward(module_mount(source), chunks)


@each("name", NAMES, str)
def test_a_broken_document_is_shown_as_stored_with_the_reason(ward: Ward, name: str) -> None:
    shown, stored = ward.mount.path / name, ward.mount.source / name
    assert files_below(shown) == files_below(stored)
    for path in (".", "c", "c/0", "c/0/0", "zarr.json"):
        assert os.stat(shown / path).st_mode == os.stat(stored / path).st_mode
    reason = os.getxattr(shown, "user.shardfs.reason").decode()
    assert 5 < len(reason) < 500
    assert "\n" not in reason
    assert os.listxattr(shown) == ["user.shardfs.reason"]


def test_each_is_named_once_in_the_log(ward: Ward) -> None:
    for path in os.listdir(ward.mount.path):
        os.listdir(ward.mount.path / path)
    lines = ward.mount.log.splitlines()
    named = Counter(found[1] for line in lines if (found := re.search(r": (\S+) is shown as stored: ", line)))
    assert named == dict.fromkeys(NAMES, 1)
    assert all("WARNING" in line or "INFO" in line for line in lines)


def test_the_sound_array_beside_them_is_right_and_the_daemon_is_small(ward: Ward) -> None:
    found = files_below(ward.mount.path / "sound")
    found.pop("zarr.json")
    assert found == ward.chunks
    assert ward.mount.peak_memory() < MAX_MEMORY


ODD: dict[str, Callable[[Path], object]] = {
    "directory": Path.mkdir,
    "fifo": os.mkfifo,
    "link-out": lambda document: document.symlink_to("/etc/hostname"),
    "link-to-itself": lambda document: document.symlink_to("zarr.json"),
    "dangling": lambda document: document.symlink_to("nothing"),
    "mode-000": lambda document: (document.write_text(json.dumps(SOUND)), document.chmod(0)),
    "sparse": lambda document: (document.touch(), os.truncate(document, 20 * 2**30)),
}


def test_a_view_of_v2_has_an_error_in_place_of_what_is_broken(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    store(source / "sound", SOUND)
    (source / "plain").mkdir()
    for name in ("dangling", "directory", "no-end"):
        (source / name).mkdir()
        ODD.get(name, lambda document: document.write_bytes(TEXTS["no-end"]))(source / name / "zarr.json")
        (source / name / "notes.txt").write_bytes(b"plain")
    shown = mount(source, arguments=["--view=v2"], expect=("cannot be shown in",)).path
    assert sorted(os.listdir(shown)) == sorted(os.listdir(source))
    for name in ("dangling", "directory", "no-end"):
        for call in (os.listdir, lambda path: os.stat(path / "notes.txt"), lambda path: os.stat(path / ".zarray")):
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                call(shown / name)
    done = subprocess.run(["cp", "-r", shown, tmp_path / "copy"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("Input/output error")) == (1, 3)
    assert len(files_below(tmp_path / "copy")) == len(files_below(shown / "sound")) > 4


def test_something_odd_in_place_of_a_document(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    chunks = store(source / "sound", SOUND)
    for kind, make in ODD.items():
        (source / kind).mkdir()
        (source / kind / "plain").write_bytes(b"plain")
        make(source / kind / "zarr.json")
    mounted = mount(source, bound_by_modes=True, address_space=2**32)
    for kind in ODD:
        document, shown = source / kind / "zarr.json", mounted.path / kind / "zarr.json"
        assert sorted(os.listdir(shown.parent)) == ["plain", "zarr.json"]
        assert (shown.parent / "plain").read_bytes() == b"plain"
        before, after = os.lstat(document), os.lstat(shown)
        assert (after.st_mode, after.st_size) == (before.st_mode, before.st_size), kind
        assert os.listxattr(shown.parent) == ["user.shardfs.reason"]
    assert {name: (mounted.path / "sound" / name).read_bytes() for name in chunks} == chunks
    assert mounted.peak_memory() < MAX_MEMORY
