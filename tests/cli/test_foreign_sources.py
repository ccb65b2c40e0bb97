"""Sources without a sharded array of Zarr v3: `info` and `mount` say what they are, and what to do."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Background
from tests.support.commands import SOURCE, one_line_of, run


def _folder(*names: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.mkdir()
        for name in names:
            if name.endswith("/"):
                (path / name).mkdir(parents=True)
            else:
                (path / name).write_text('{"zarr_format": 2}')

    return make


FOLDERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "zarr-v2-group": (_folder(".zgroup", "image/"), "it is Zarr v2"),
    "zarr-v2-array": (_folder(".zarray", "0.0"), "it is Zarr v2"),
    "icechunk": (_folder("refs/", "snapshots/", "manifests/", "chunks/", "config.yaml"), "an Icechunk repository"),
    "icechunk-2": (_folder("repo", "snapshots/", "manifests/", "transactions/"), "an Icechunk repository"),
    "n5": (_folder("attributes.json", "s0/"), "it is N5"),
    "empty": (_folder(), "it is empty; a mount with --write --shards"),
    "no-zarr": (_folder("notes.txt", "table.csv"), "no zarr.json is in it or below it"),
}


def test_info_and_mount_say_what_a_folder_is_and_what_to_do(
    background: Background, place: Path, tmp_path: Path
) -> None:
    for name, (make, text) in FOLDERS.items():
        source = tmp_path / name
        make(source)
        done = run("info", source)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("There are no Zarr v3 arrays here: ")
        assert text in done.stdout
    for command, said in {"info": {"arrays": []}, "refs": {"version": 1, "refs": {}}}.items():
        done = run(command, *(["--json"] if command == "info" else []), source)
        assert (done.returncode, json.loads(done.stdout)) == (0, said)
        assert text in done.stderr
        assert done.stderr.count("\n") == 1
    mounted = background(source, place)
    assert (mounted.returncode, mounted.stderr.count("\n")) == (0, 1)
    assert mounted.stderr.startswith(f"shardfs: note on {source}: ")
    assert text in mounted.stderr
    assert sorted(os.listdir(place)) == sorted(os.listdir(source))  # as it is stored
    assert run("umount", place).returncode == 0
    (tmp_path / "new").mkdir()
    done = background("--write", "--shards=2", tmp_path / "new", place)
    assert (done.returncode, done.stderr) == (0, "")  # a folder to be filled is as it should be


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("zarr.json", "{}")


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "data.zarr.zip": (_zip, "is a ZIP file; unpack it"),
    "data.h5": (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100)), "is an HDF5 file"),
    "zarr.json": (lambda path: path.write_text("{}"), "is a document of Zarr; SOURCE is the folder that it is in"),
    "notes.txt": (lambda path: path.write_text("text"), "is a file; SOURCE is the folder of"),
    "nothing.bin": (lambda path: path.write_bytes(b""), "is a file; SOURCE is the folder of"),
    "fifo": (os.mkfifo, "is a file; SOURCE is the folder of"),
}


def test_a_file_is_refused_by_what_it_is(background: Background, place: Path, tmp_path: Path) -> None:
    for name, (make, text) in FILES.items():
        make(tmp_path / name)
        assert text in one_line_of(run("info", tmp_path / name), SOURCE)
    assert text in one_line_of(background(tmp_path / name, place), SOURCE)
