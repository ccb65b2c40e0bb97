"""The disks whose power is cut."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.disks import loop_disk
from tests.support.mounting import eventually
from tests.support.processes import running
from tests.torture.disks import FILE_SYSTEMS, disk_of

OWN_MOUNTS = ["unshare", "--mount", "--propagation=private", "sleep", "infinity"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILE_SYSTEMS)
def test_a_cut_disk_has_what_was_synced_also_while_another_process_keeps_it_mounted(tmp_path: Path, kind: str) -> None:
    with loop_disk("xfs", tmp_path):  # where none can be made, this is skipped
        pass
    directory = tmp_path / "torture"
    directory.mkdir()
    with disk_of(kind, directory) as disk:
        (disk.path / "synced").write_bytes(b"synced")
        os.sync()
        with running(OWN_MOUNTS) as process:
            eventually(lambda: _mounts_of(process) != os.readlink("/proc/self/ns/mnt"))
            disk.snapshot()
            (disk.path / "later").write_bytes(b"later")
            disk.cut()
            assert (disk.path / "synced").read_bytes() == b"synced"
            assert not (disk.path / "later").exists()


def _mounts_of(process: subprocess.Popen[bytes]) -> str:
    return os.readlink(f"/proc/{process.pid}/ns/mnt")
