"""What cannot be mounted: one line that says why and what to do, a documented exit status, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import MACHINE, MOUNT_POINT, SOURCE, WRONG_USAGE, one_line_of, run
from tests.support.corpus import array, sharding
from tests.support.datasets import store
from tests.support.mounting import Mount, Mounter, mount_points

WAYS = pytest.mark.parametrize("way", [[], ["--foreground"]], ids=["background", "foreground"])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    store(tmp_path / "source", array((8, 12), (4, 6), sharding((2, 3))))
    (tmp_path / "place").mkdir()
    return tmp_path


def refused(
    status: int,
    place: Path,
    *arguments: str | Path,
    prefix: tuple[str, ...] = (),
    path: str | None = None,
    below: str = ".",
    before: str = "",
    kept: tuple[Mount, ...] = (),
) -> str:
    """Run `mount`, which must fail with *status* and mount nothing; returns its one line."""
    variables = {"XDG_STATE_HOME": str(place / "state")} | ({"PATH": path} if path else {})
    try:
        done = run("mount", *arguments, cwd=place / below, prefix=prefix, **variables)
    finally:
        for point in mount_points() - {str(mount.path) for mount in kept}:
            if point.startswith(str(place)):
                subprocess.run(["fusermount3", "-u", "-z", point], check=True)
                pytest.fail(f"{point} was mounted, and should not have been")
    assert (done.returncode, done.stdout) == (status, ""), str(done)
    assert "Traceback" not in done.stderr
    line = done.stderr.removeprefix(before)
    assert line.startswith("shardfs: ")
    assert line.count("\n") == 1
    return line


@WAYS
def test_a_missing_source(place: Path, way: list[str]) -> None:
    assert "nowhere does not exist" in refused(SOURCE, place, *way, "nowhere", "place")
    assert "does not exist" in refused(SOURCE, place, *way, f"file://{place}/nowhere", "place")
    assert "SOURCE is the folder that it is in" in refused(SOURCE, place, *way, "source/zarr.json", "place")


@WAYS
def test_a_variable_that_was_never_set(place: Path, way: list[str]) -> None:
    (place / "here").mkdir()
    refused(SOURCE, place, *way, "", "../place", below="here")
    refused(MOUNT_POINT, place, *way, "../source", "", below="here")


def test_a_source_that_cannot_be_read(place: Path) -> None:
    setpriv = shutil.which("setpriv")
    if os.geteuid() == 0 and setpriv is None:
        pytest.skip("setpriv is not installed, and root may read everything")
    (place / "source").chmod(0)
    drop = (str(setpriv), "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    try:
        line = refused(SOURCE, place, "source", "place", prefix=drop)
    finally:
        (place / "source").chmod(0o755)
    assert "Permission denied" in line or "permission denied" in line


@WAYS
def test_a_missing_mount_point(place: Path, way: list[str]) -> None:
    assert "mkdir -p missing" in refused(MOUNT_POINT, place, *way, "source", "missing")
    refused(MOUNT_POINT, place, *way, "source", "missing/deeper")


def test_a_mount_point_that_is_no_directory(place: Path) -> None:
    (place / "file").touch()
    (place / "dangling").symlink_to("nothing")
    assert "not a directory" in refused(MOUNT_POINT, place, "source", "file")
    refused(MOUNT_POINT, place, "source", "file/deeper")
    refused(MOUNT_POINT, place, "source", "dangling")


def test_a_mount_point_that_is_not_empty(place: Path) -> None:
    (place / "place" / "kept").touch()
    assert "not empty" in refused(MOUNT_POINT, place, "source", "place")
    assert os.listdir(place / "place") == ["kept"]


@pytest.mark.parametrize(
    ("source", "point", "said"),
    [
        ("source", "source", "source is the source itself; choose an empty directory outside of it"),
        ("source", "source/c", "source/c lies inside the source {}/source; choose an empty directory outside of it"),
        (
            "source/c",
            "source",
            "source contains the source {}/source/c, which a mount would hide; choose another place",
        ),
        (".", "place", "place lies inside the source {}; "),
        ("link", "source/empty", "source/empty lies inside the source {}/source; "),
        ("source", "link/empty", "link/empty lies inside the source {}/source; "),
        ("source", "place/../source/empty", "place/../source/empty lies inside the source {}/source; "),
        (
            "source",
            "source/new",
            "source/new lies inside the source {}/source; choose an empty directory outside of it",
        ),
    ],
)
def test_a_mount_point_inside_the_source_or_around_it(place: Path, source: str, point: str, said: str) -> None:
    (place / "source/empty").mkdir()
    (place / "link").symlink_to("source")
    line = refused(MOUNT_POINT, place, source, point)
    assert line.startswith(f"shardfs: {said.format(place)}")
    assert "mkdir" not in line


@pytest.mark.parametrize(("point", "said"), [("source", "give it before"), ("s3://bucket/x", "SOURCE comes before")])
def test_source_and_mount_point_in_the_wrong_order(place: Path, point: str, said: str) -> None:
    line = refused(MOUNT_POINT, place, "place", point)
    assert said in line
    assert "mkdir" not in line


@WAYS
def test_a_place_that_is_mounted_already(mount: Mounter, place: Path, way: list[str]) -> None:
    mounted = mount(place / "source", path=place / "place")
    assert "shardfs umount" in refused(MOUNT_POINT, place, *way, "source", "place", kept=(mounted,))
    assert os.listdir(mounted.path / "c")


def test_a_machine_without_fusermount3(place: Path) -> None:
    assert "apt-get install fuse3" in refused(MACHINE, place, "source", "place", path="/nowhere")


@WAYS
def test_a_machine_without_dev_fuse(place: Path, way: list[str]) -> None:
    hide = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev && exec "$@"', "sh")
    try:
        subprocess.run([*hide, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"/dev cannot be hidden here: {error}")
    assert "modprobe fuse" in refused(MACHINE, place, *way, "source", "place", prefix=hide)


@WAYS
def test_a_log_file_that_cannot_be_written(place: Path, way: list[str]) -> None:
    line = refused(WRONG_USAGE, place, *way, "--log-file", "source/zarr.json/log", "source", "place")
    assert "log" in line


@pytest.mark.parametrize("name", ["umount", "stats", "flush"])
def test_what_is_no_mount_of_ours_is_told(place: Path, name: str) -> None:
    for point in ("place", "missing", "source/zarr.json", "/", "/proc"):
        said = one_line_of(run(name, point, cwd=place), MOUNT_POINT)
        assert said.startswith(f"{point} {'does not exist' if point == 'missing' else 'is not a mount of shardfs'}; ")
