"""What `mount` and `umount` refuse beyond `tests/mounts/test_refusals.py`: one line, the way out, the exit status."""

from __future__ import annotations

import os
from pathlib import Path

from tests.cli.conftest import Background
from tests.cli.test_doctor import SMALL_DEV, without
from tests.support.commands import MACHINE, MOUNT_POINT, SOURCE, WRONG_USAGE, one_line_of, run
from tests.support.corpus import array, sharding
from tests.support.daemons import kill_daemon
from tests.support.datasets import store
from tests.support.users import AS_NOBODY, NOBODY, shared_directory

URLS = [
    ("gs://bucket/data.zarr", ("gs://", "file://", "s3://")),
    ("https://example.org/data.zarr", ("https://", "file://")),
    ("://data.zarr", ("not supported",)),
    ("file://server/data.zarr", ("server", "file:///")),
    ("file://", ("file://",)),
    ("file://[/data.zarr", ("file://[",)),
    ("https://[::1/data.zarr", ("https://[",)),
    ("file:///data%00.zarr", ("data",)),
    ("file://PLACE/../source?version=2", ("?",)),
    ("file://PLACE/../source#version=2", ("#",)),
    ("file:///nowhere/data%20set.zarr", ("/nowhere/data set.zarr does not exist; there is no nowhere in /",)),
    ("file://PLACE/../sourc", ("sourc does not exist; did you mean ", "/source?")),
]


def test_a_url_that_is_not_supported(source: Path, place: Path) -> None:
    for url, parts in URLS:
        said = one_line_of(run("mount", url.replace("PLACE", str(place)), place, cwd=place), SOURCE)
        assert all(part in said for part in parts), url


WRONG = {
    "-o ro,nonsense": "-o nonsense: libfuse has no such option",
    "-o view=v2": "-o view=v2: -o is for options of FUSE; write --view v2",
    "-o remount": "-o remount: a mount cannot be changed; unmount it, and mount it again",
    "-o ro,rw": "-o ro contradicts -o rw",
    "--write -o ro": "-o ro contradicts --write",
}


def test_a_fuse_option_that_is_not_known_or_cannot_be_honoured(source: Path, place: Path) -> None:
    for options, words in WRONG.items():
        assert words in one_line_of(run("mount", *options.split(), source, place), WRONG_USAGE)
    said = one_line_of(run("mount", source, place, XDG_STATE_HOME="/dev/null"), WRONG_USAGE)
    assert "/dev/null/shardfs" in said
    assert "--log-file" in said


def test_what_is_no_mount_point_is_told_where_the_mount_is(background: Background, source: Path, place: Path) -> None:
    assert background(source, place).returncode == 0
    for point, hint in (
        (place / "c/0", f"it lies in the mount at {place}: give that"),
        (place / "nothing/here", f"it lies in the mount at {place}: give that"),
        (place.parent, f"it contains the mounts {place}: give one of them"),
        (source, f"it is the source of the mount at {place}: give that"),
    ):
        for name in ("umount", "flush", "stats"):
            said = one_line_of(run(name, point), MOUNT_POINT)
            assert said == f"{point} is not a mount of shardfs; {hint}"
    for name in ("umount", "flush", "stats"):
        said = one_line_of(run(name, "", cwd=place), MOUNT_POINT)
        assert said == "MOUNTPOINT is empty; was a variable never set?"
    assert "apt-get install fuse3" in one_line_of(run("umount", place, PATH="/nowhere"), MACHINE)
    assert os.listdir(place)
    kill_daemon(place)
    said = one_line_of(run("mount", source, place / "c"), MOUNT_POINT)
    assert said.endswith(f"shardfs umount {place}")
    assert "`shardfs mounts`" in one_line_of(run("info", place / "c"), SOURCE)


def test_a_user_is_told_that_a_mount_point_of_another_cannot_be_used() -> None:
    as_user = without(*SMALL_DEV, "mount --bind /dev/null /etc/fuse.conf", f'set -- {" ".join(AS_NOBODY)} "$@"')
    with shared_directory() as directory:
        store(directory / "source", array((8, 12), (4, 6), sharding((2, 3))))
        (directory / "place").mkdir()
        (directory / "shared").mkdir()
        (directory / "shared").chmod(0o1777)
        for name in ("own", "state"):
            (directory / name).mkdir()
            os.chown(directory / name, NOBODY, NOBODY)
        said = one_line_of(run("mount", directory / "source", directory / "shared", prefix=as_user), MOUNT_POINT)
        assert said.startswith(f"{directory}/shared belongs to root, and users can mount only on ")
        assert said.endswith(f"as root: chown nobody {directory}/shared")
        for arguments, status, expected in (
            (["place/new"], MOUNT_POINT, f"choose another place, as you may not write in {directory}/place"),
            (["--allow-other", "own"], MACHINE, "echo user_allow_other >> /etc/fuse.conf"),
            (["--write", "own"], SOURCE, f"you need permission to write in {directory}/source"),
        ):
            *options, name = arguments
            words = ["mount", *options, directory / "source", directory / name]
            done = run(*words, prefix=as_user, XDG_STATE_HOME=str(directory / "state"))
            assert one_line_of(done, status).endswith(expected)
