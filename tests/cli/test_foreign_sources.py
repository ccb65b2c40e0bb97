"""Sources that are not as they should be: `info` and `mount` say what they are, and show what is sound in them."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Background
from tests.support.commands import SOURCE, one_line_of, run, run_json
from tests.support.corpus import GZIP, LITTLE, array, extension, sharding
from tests.support.datasets import files_below, store
from tests.support.mounting import Mounter

SOUND = array((8, 12), (4, 6), sharding((2, 3)), dimension_names=["y", "x"])
PLAIN = array((8, 12), (4, 6), LITTLE)
FROM_FORTRAN = extension("transpose", order="F")
BAD = {
    "order-F": array((8, 12), (4, 6), FROM_FORTRAN, LITTLE),
    "order-F-before-shards": array((8, 12), (4, 6), FROM_FORTRAN, sharding((2, 3))),
    "chunk_shape-2": PLAIN | {"chunk_grid": extension("regular", chunk_shape=2)},
    "grid-without-chunks": PLAIN | {"chunk_grid": "regular"},
    "grid-unknown": PLAIN | {"chunk_grid": "example.spiral"},
    "keys-unknown": PLAIN | {"chunk_key_encoding": "example.hash"},
    "no-serializer": array((8, 12), (4, 6), GZIP),
    "type-with-a-member": PLAIN | {"data_type": extension("int32", of=1)},
    "transformers": PLAIN | {"storage_transformers": ["example.cache"]},
}


def deep(nesting: int) -> str:
    """A document with a data type that is nested as deep."""
    document = json.dumps(SOUND | {"data_type": extension("example.deep", inside="@")})
    return document.replace('"@"', "[" * nesting + "]" * nesting)


@pytest.fixture(scope="module")
def with_bad_arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source")
    store(root / "sound", SOUND)
    texts = {name: json.dumps(document) for name, document in BAD.items()}
    for name, text in (texts | {f"deep-{n}": deep(n) for n in (100, 900, 990, 99_999)}).items():
        (root / name).mkdir()
        (root / name / "zarr.json").write_text(text)
    return root


def test_verify_and_refs_go_on_with_the_others(with_bad_arrays: Path) -> None:
    described = {item["path"]: item["reason"] for item in run_json("info", "--json", with_bad_arrays)["arrays"]}
    assert described.keys() == {"sound", *BAD, "deep-100", "deep-900", "deep-990", "deep-99999"}
    assert described["sound"] is None
    report = run_json("verify", "--data", "--json", with_bad_arrays, status=1)
    too_deep = {problem["document"] for problem in report["problems"]}
    assert {"deep-99999"} <= too_deep <= {"deep-990", "deep-99999"}  # which is so depends on Python
    assert {item["array"] for item in report["unchecked"]} >= BAD.keys()
    for view in ("v3", "v2"):
        done = run("refs", "--view", view, with_bad_arrays)
        refs = json.loads(done.stdout)["refs"]
        assert len([key for key in refs if key.startswith("sound/")]) == 16 + (1 if view == "v3" else 2)
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("view", ["--view=v3 --decode", "--view=v2", "--view=npy"])
def test_a_mount_shows_the_others(mount: Mounter, with_bad_arrays: Path, view: str) -> None:
    mounted = mount(with_bad_arrays, arguments=view.split())
    mounted.expect(r"(is skipped in the|is shown as stored|cannot be shown in)")
    for path in mounted.path.iterdir():
        if path.is_dir() and (
            view != "--view=v2" or path.name not in ("deep-990", "deep-99999")
        ):  # too deep to be read
            files_below(path)
    assert (mounted.path / ("sound.npy" if "npy" in view else "sound")).exists()


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
    "folders": (_folder("a/", "a/b/", "notes.txt"), "no zarr.json is in it or below it"),
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
        if name != "empty":
            assert run("mount", "-q", source, place).stderr.startswith(f"shardfs: note on {source}: "), name
            assert run("umount", place).returncode == 0
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


def test_a_source_of_another_format_says_what_makes_zarr_v3_of_it(tmp_path: Path) -> None:
    _folder(".zgroup", "image/")(tmp_path / "old")
    for words in (["verify", tmp_path / "old"], ["unpack", tmp_path / "old", tmp_path / "new"]):
        line = one_line_of(run(*words), SOURCE)
        assert "`shardfs pack SOURCE DEST` makes sharded Zarr v3 of it" in line
    assert "/old has no Zarr arrays or groups of v3: it is Zarr v2" in line


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "data.zarr.zip": (lambda path: path.write_bytes(b"PK\3\4"), "it is no ZIP file, or its end is missing"),
    "data.h5": (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100)), "libhdf5 cannot read it"),
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


FORGED = [
    "\x1b[2Jcleared",
    "x\n(root)\n  shown          unsharded",
    "bell\x07",
    "\x9b31mred",
    "right\u202eto left",
    "a\rb",
]


def test_names_in_a_dataset_cannot_control_the_terminal(tmp_path: Path) -> None:
    root = tmp_path / "source"
    for number, name in enumerate(FORGED):
        document = array((4, 6), (4, 6), sharding((2, 3)), data_type={"name": name} if number else "int32")
        store(root / f"sound{name}", array((4, 6), (4, 6), sharding((2, 3))))
        store(root / f"damaged{name}", array((4, 6), (4, 6), sharding((2, 3))))
        (root / f"damaged{name}/c/0/0").write_bytes(b"")
        for kind, text in {"odd": json.dumps(document), "broken": json.dumps([name]), "cut": "{"}.items():
            (root / f"{kind}{name}").mkdir()
            (root / f"{kind}{name}/zarr.json").write_text(text)
    codec = {"name": FORGED[0], "configuration": {FORGED[1]: 1}}
    (root / "codec").mkdir()
    (root / "codec/zarr.json").write_text(json.dumps(array((4,), (4,), codec)))
    commands = [[name, root] for name in ("info", "map", "verify", "refs", "recover", "compact")]
    commands += [["info", "--tools", root], ["pack", "--dry-run", root, tmp_path / "packed"]]
    commands += [["unpack", root, tmp_path / "unpacked"], ["verify", root, tmp_path / "unpacked"]]
    commands += [[name, root, f"damaged{forged}"] for name in ("info", "map") for forged in FORGED[:2]]
    for command in commands:
        done = run(*command)
        assert done.stdout or done.stderr
        for text in (done.stdout, done.stderr):
            assert all(line.isprintable() for line in text.split("\n"))
            assert "\n(root)" not in f"\n{text}"
