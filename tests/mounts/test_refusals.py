"""What cannot be mounted: one line that says why and what to do, a documented exit status, and nothing left behind."""

import os
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest

from tests.support.commands import MACHINE, MOUNT_POINT, SOURCE, WRONG_USAGE, one_line_of, run
from tests.support.corpus import array, sharding
from tests.support.datasets import store
from tests.support.mounting import Mount, Mounter, mount_points


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a source, a place to mount it at, and others that are none."""
    store(tmp_path / "source", array((8, 12), (4, 6), sharding((2, 3))))
    for name in ("place", "source/empty", "here", "full/kept"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "link").symlink_to("source")
    return tmp_path


def refused(
    status: int,
    place: Path,
    *arguments: str | Path,
    prefix: tuple[str, ...] = (),
    path: str | None = None,
    kept: tuple[Mount, ...] = (),
) -> str:
    """Run `mount`, which must fail with *status* and mount nothing; returns its one line."""
    variables = {"XDG_STATE_HOME": str(place / "state")} | ({"PATH": path} if path else {})
    before = sorted(os.listdir(place))
    try:
        done = run("mount", *arguments, cwd=place, prefix=prefix, **variables)
    finally:
        for point in mount_points() - {str(mount.path) for mount in kept}:
            if point.startswith(str(place)):
                subprocess.run(["fusermount3", "-u", "-z", point], check=True)
                pytest.fail(f"{point} was mounted, and should not have been")
    assert sorted(set(os.listdir(place)) - {"state"}) == before
    return one_line_of(done, status)


REFUSED = [
    (SOURCE, "nowhere does not exist", "nowhere", "place"),
    (SOURCE, "does not exist", "file://{}/nowhere", "place"),
    (SOURCE, "SOURCE is the folder that it is in", "source/zarr.json", "place"),
    (SOURCE, "a variable never set", "", "place"),
    (MOUNT_POINT, "MOUNTPOINT is empty", "source", ""),
    (MOUNT_POINT, "mkdir -p {}/missing", "source", "missing"),
    (MOUNT_POINT, "", "source", "missing/deeper"),
    (MOUNT_POINT, "not a directory", "source", "file"),
    (MOUNT_POINT, "", "source", "file/deeper"),
    (MOUNT_POINT, "mkdir -p {}/nothing", "source", "dangling"),
    (MOUNT_POINT, "not empty", "source", "full"),
    (WRONG_USAGE, "log", "--log-file", "source/zarr.json/log", "source", "place"),
    (MOUNT_POINT, "give it before", "place", "source"),
    (MOUNT_POINT, "SOURCE comes before", "place", "s3://bucket/x"),
]
AROUND = [
    ("source", "source", "source is the source itself; choose an empty directory outside of it"),
    ("source", "source/c", "source/c lies inside the source {}/source; choose an empty directory outside of it"),
    (
        "source/c",
        "source",
        "source contains the source {}/source/c, which a mount would hide; choose another directory",
    ),
    (".", "place", "place lies inside the source {}; "),
    ("link", "source/empty", "source/empty lies inside the source {}/source; "),
    ("source", "link/empty", "link/empty lies inside the source {}/source; "),
    ("source", "place/../source/empty", "place/../source/empty lies inside the source {}/source; "),
    ("source", "source/new", "source/new lies inside the source {}/source; choose an empty directory outside of it"),
]


@pytest.mark.parametrize("way", [[], ["--foreground"]], ids=["background", "foreground"])
def test_wrong_sources_and_mount_points_are_refused(place: Path, way: list[str]) -> None:
    for status, said, *arguments in REFUSED:
        line = refused(status, place, *way, *(argument.format(place) for argument in arguments))
        assert said.format(place) in line
        assert "mkdir" not in line or "source" in arguments  # not where the order is wrong


@pytest.mark.parametrize(("source", "point", "said"), AROUND)
def test_a_mount_point_inside_or_around_the_source_is_refused(place: Path, source: str, point: str, said: str) -> None:
    line = refused(MOUNT_POINT, place, source, point)
    assert line.startswith(said.format(place))
    assert "mkdir" not in line


def test_a_source_that_cannot_be_read(place: Path) -> None:
    setpriv = shutil.which("setpriv")
    if os.geteuid() == 0 and setpriv is None:
        pytest.skip("setpriv is not installed, and root may read everything")
    (place / "source").chmod(0)
    drop = (str(setpriv), "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    try:
        assert "ermission denied" in refused(SOURCE, place, "source", "place", prefix=drop)
    finally:
        (place / "source").chmod(0o755)


def test_a_place_that_is_mounted_already(mount: Mounter, place: Path) -> None:
    mounted = mount(place / "source", path=place / "place")
    assert "shardfs umount" in refused(MOUNT_POINT, place, "source", "place", kept=(mounted,))
    assert os.listdir(mounted.path / "c")


def test_a_machine_without_fusermount3_or_dev_fuse(place: Path) -> None:
    assert "apt-get install fuse3" in refused(MACHINE, place, "source", "place", path="/nowhere")
    hide = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev && exec "$@"', "sh")
    try:
        subprocess.run([*hide, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"/dev cannot be hidden here: {error}")
    assert "modprobe fuse" in refused(MACHINE, place, "source", "place", prefix=hide)


def test_commands_refuse_what_is_no_mount(place: Path) -> None:
    for name, point in product(("umount", "stats", "flush"), ("place", "missing", "source/zarr.json", "/", "/proc")):
        said = one_line_of(run(name, point, cwd=place), MOUNT_POINT)
        assert said.startswith(f"{point} {'does not exist' if point == 'missing' else 'is not a mount of shardfs'}; ")
