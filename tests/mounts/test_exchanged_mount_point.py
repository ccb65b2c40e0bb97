"""A mount point that its owner exchanges for a link, while root mounts there, hides nothing elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardfs.errors import MountPointError
from shardfs.fuse.mountpoint import check_mount_point, open_mount_point
from tests.support.corpus import BASE
from tests.support.datasets import store
from tests.support.mounting import PATIENCE, command, environment, mount_points
from tests.support.users import shared_directory

OTHER = 1234
EXCHANGING = f"""
import os, sys
import pyfuse3
path, elsewhere, *sys.argv = sys.argv[1:]
init = pyfuse3.init

def exchange(*arguments):
    os.setegid({OTHER}); os.seteuid({OTHER})
    os.rename(path, path + "-before")
    os.symlink(elsewhere, path)
    os.seteuid(0); os.setegid(0)
    init(*arguments)
    print(*(line.split()[1] for line in open("/proc/self/mounts") if " fuse.shardfs " in line), flush=True)
    pyfuse3.close(unmount=True)
    os._exit(0)

pyfuse3.init = exchange
from shardfs.__main__ import main
main()
"""


@pytest.mark.parametrize("exchanged", ["mine/place", "mine"], ids=["itself", "a directory above"])
def test_a_link_in_place_of_what_was_checked_is_refused(tmp_path: Path, exchanged: str) -> None:
    (tmp_path / "mine/place").mkdir(parents=True)
    (tmp_path / "elsewhere/place").mkdir(parents=True)
    path = check_mount_point(str(tmp_path / "mine/place"), None, None)
    assert os.path.samestat(os.stat(open_mount_point(path).path), os.stat(path))
    (tmp_path / exchanged).rename(tmp_path / "before")
    (tmp_path / exchanged).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MountPointError, match="another directory by now"):
        open_mount_point(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
def test_root_mounts_on_what_was_checked_whatever_takes_its_place() -> None:
    with shared_directory() as top:
        store(top / "source", BASE)
        (top / "elsewhere").mkdir()
        (top / "elsewhere/kept").touch()
        location = top / "home/place"
        location.mkdir(parents=True)
        for path in (location.parent, location):
            os.chown(path, OTHER, OTHER)
        words = command("mount", "--foreground", top / "source", location)[4:]
        program = [sys.executable, "-P", "-c", EXCHANGING, str(location), str(top / "elsewhere")]
        done = subprocess.run(
            [*program, "shardfs", *words],
            env=environment(), cwd="/", capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert f"{location}-before" in done.stdout.split()
        assert f"{top}/elsewhere" not in done.stdout.split()
        assert os.listdir(top / "elsewhere") == ["kept"]
        assert not [path for path in mount_points() if path.startswith(str(top))]
