"""What `mount` and `umount` refuse beyond `tests/mounts/test_refusals.py`: one line, the way out, the exit status."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.conftest import Background
from tests.cli.test_doctor import SMALL_DEV, without
from tests.support.commands import MACHINE, MOUNT_POINT, SOURCE, WRONG_USAGE, one_line_of, run
from tests.support.corpus import array, sharding
from tests.support.daemons import daemon_of, has_ended, kill_daemon
from tests.support.datasets import store
from tests.support.mounting import PATIENCE, command, environment, mount_points
from tests.support.users import AS_NOBODY, NOBODY, shared_directory

in_a_namespace = ("unshare", "--mount", "sh", "-c")


@pytest.fixture
def other_file_system(place: Path) -> Iterator[Path]:
    done = subprocess.run(["mount", "-t", "tmpfs", "none", place], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_place_where_another_file_system_is_mounted(
    background: Background, source: Path, other_file_system: Path
) -> None:
    said = one_line_of(background(source, other_file_system), MOUNT_POINT)
    assert said == f"{other_file_system} is a mount point already; choose another place"
    said = one_line_of(run("umount", other_file_system), MOUNT_POINT)
    assert said == f"{other_file_system} is not a mount of shardfs; `shardfs mounts` lists all mounts"
    said = one_line_of(run("umount", other_file_system / "nothing"), MOUNT_POINT)
    assert said == f"{other_file_system}/nothing does not exist; `shardfs mounts` lists all mounts"
    assert os.path.ismount(other_file_system)


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


def test_umount_of_a_mount_whose_daemon_dies_while_it_is_asked(
    background: Background, source: Path, place: Path
) -> None:
    if os.geteuid():
        pytest.skip("only root may see what a process waits for")
    assert background("--metadata-ttl", "3600", source, place).returncode == 0
    os.stat(place)
    daemon = os.pidfd_open(daemon_of(place))
    signal.pidfd_send_signal(daemon, signal.SIGSTOP)
    try:
        asking = subprocess.Popen(command("umount", place), env=environment(), stderr=subprocess.PIPE, text=True)
        await_question(asking)
    finally:
        signal.pidfd_send_signal(daemon, signal.SIGKILL)
    _, said = asking.communicate(timeout=PATIENCE)
    assert (asking.returncode, said) == (0, "")
    assert has_ended(daemon, PATIENCE)
    os.close(daemon)
    assert str(place) not in mount_points()


def await_question(process: subprocess.Popen[str]) -> None:
    """Return when *process*, or one that it has started, waits in the kernel for the answer of a FUSE daemon."""
    deadline = time.monotonic() + PATIENCE

    def waits(pid: str | int) -> bool:
        with suppress(OSError):  # it has ended
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            return "request_wait" in Path(f"/proc/{pid}/wchan").read_text() or any(map(waits, children))
        return False

    while not waits(process.pid):
        assert process.poll() is None
        assert time.monotonic() < deadline
        os.sched_yield()


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


def test_other_mounts_on_the_machine_may_have_any_name(source: Path, place: Path, tmp_path: Path) -> None:
    names = ["carriage\rreturn", "line\nfeed", "tab\tstop", "back\\slash", "\x85 \u2028"]
    for name in names:
        (tmp_path / name).mkdir()
    script = 'for name in 1 2 3 4 5; do mount -t tmpfs none "$1" || exit; shift; done; exec "$@"'
    prefix = (*in_a_namespace, script, "sh", *(str(tmp_path / name) for name in names))
    try:
        subprocess.run([*prefix, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no mount namespace can be made here: {error}")
    said = one_line_of(run("umount", place, prefix=prefix), MOUNT_POINT)
    assert said == f"{place} is not a mount of shardfs; `shardfs mounts` lists all mounts"
    for name in names[1::2]:  # the table is read whole each time
        assert "choose another place" in run("mount", source, tmp_path / name, prefix=prefix).stderr
