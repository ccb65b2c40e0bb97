"""`shardfs doctor`: what keeps a machine from mounting, or a source from being mounted, and the way out."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Background
from tests.support.commands import FAILED, MACHINE, one_line_of, run
from tests.support.corpus import array, sharding
from tests.support.daemons import kill_daemon
from tests.support.datasets import store
from tests.support.users import AS_NOBODY, shared_directory


def findings(*arguments: str | Path, status: int, prefix: tuple[str, ...] = (), **variables: str) -> list[Any]:
    done = run("doctor", "--json", *arguments, prefix=prefix, **variables)
    assert done.returncode == status, str(done)
    found: list[Any] = json.loads(done.stdout)
    assert any(each["kind"] == "problem" for each in found) == (status == FAILED)
    return found


def one(found: list[Any], text: str) -> dict[str, str]:
    (each,) = (each for each in found if text in each["what"])
    return dict(each)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What other tests leave, or have mounted, is no finding of these."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def without(*hidden: str) -> tuple[str, ...]:
    """What runs a command where the mounts of other tests are not seen, after these commands of the shell."""
    steps = ["umount -a -l -t fuse.shardfs 2>/dev/null", *hidden, 'exec "$@"']
    prefix = ("unshare", "--mount", "sh", "-c", "; ".join(steps), "sh")
    if subprocess.run([*prefix, "/bin/true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace can be made here")
    return prefix


SMALL_DEV = ("mount -t tmpfs none /dev", "mknod /dev/fuse c 10 229", "mknod /dev/null c 1 3", "chmod 666 /dev/*")


@pytest.mark.parametrize(
    ("steps", "way_out"),
    [
        (["mount -t tmpfs none /dev"], "modprobe fuse"),
        (["PATH=/nowhere"], "apt-get install fuse3"),
        (['set -- setpriv --bounding-set=-sys_admin "$@"'], "--cap-add SYS_ADMIN"),
        ([*SMALL_DEV, "chmod 600 /dev/fuse", f'set -- {" ".join(AS_NOBODY)} "$@"'], "chmod 666 /dev/fuse"),
        ([*SMALL_DEV, f'set -- {" ".join(AS_NOBODY)} --no-new-privs "$@"'], "NoNewPrivileges="),
    ],
    ids=["no-device", "no-fusermount3", "no-capability", "no-access", "no-new-privileges"],
)
def test_doctor_and_mount_say_what_a_machine_lacks_to_mount(steps: list[str], way_out: str) -> None:
    with shared_directory() as directory:
        store(directory / "source", array((8, 12), (4, 6), sharding((2, 3))))
        (directory / "place").mkdir()
        prefix = without(*steps)
        found = findings(status=FAILED, prefix=prefix)
        assert [way_out in each["way_out"] for each in found if each["kind"] == "problem"] == [True]
        line = one_line_of(run("mount", directory / "source", directory / "place", prefix=prefix), MACHINE)
        assert way_out in line


def test_problems_of_a_source_have_a_way_out(background: Background, source: Path, place: Path, tmp_path: Path) -> None:
    missing = findings(tmp_path / "missing", status=FAILED)[-1]
    assert missing["what"] == f"{tmp_path}/missing does not exist"
    assert missing["way_out"] == "check how SOURCE is written, and who may read it"
    assert background("--write", source, place).returncode == 0
    found = one(findings("--write", source, status=0, prefix=without()), "is being written by process")
    assert found["kind"] == "note"
    (place / "c/0/0").write_bytes(b"n" * 24)
    kill_daemon(place)
    dead = one(findings(status=FAILED), f"the mount at {place} is dead")
    assert dead["way_out"].endswith(f"shardfs umount {place}")
    assert run("umount", place).returncode == 0
    found_all = findings("--write", source, status=FAILED)
    problem = one(found_all, "has chunks that may not be committed yet")
    assert f"`shardfs recover {source}`" in problem["way_out"]
    assert one(found_all, "it was not tested whether")["kind"] == "note"
