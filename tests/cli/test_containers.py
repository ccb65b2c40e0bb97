"""Containers and compute nodes: what the docs promise of a mount in them, and files in the docs that programs check."""

import errno
import json
import os
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import shardfs
from tests.cli.conftest import Background
from tests.support.commands import run
from tests.support.mounting import PATIENCE, Mounter, command, environment, refuses
from tests.support.processes import running

TOP = Path(__file__).parents[2]
DOCS = TOP / "docs/containers"
NEW = b"n" * 24
OTHERS = 4242
"""A user and a group that no user namespace of a test knows."""


def in_namespaces(script: str, *kinds: str, state: Path) -> subprocess.CompletedProcess[str]:
    """Run a script with namespaces of its own; `shardfs` is the program under test."""
    program = " ".join(map(shlex.quote, command()))
    return subprocess.run(
        ["unshare", *kinds, "bash", "-ec", f'shardfs() {{ {program} "$@"; }}\n{script}'],
        env=environment() | {"XDG_STATE_HOME": str(state)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


@pytest.mark.parametrize("owner", ["own", "group", "user and group"])
def test_in_a_user_namespace_files_of_groups_that_it_does_not_know_can_be_written(
    source: Path, place: Path, tmp_path: Path, owner: str
) -> None:
    """As in rootless containers, and on clusters, where a project has a group."""
    if os.geteuid():
        pytest.skip("only root can give files away")
    for path in (source, *source.rglob("*")):
        os.chown(path, OTHERS if "user" in owner else 0, OTHERS if "group" in owner else 0)
        os.chmod(path, 0o777 if path.is_dir() else 0o666)
    script = f"""
    shardfs mount --quiet --write {source} {place}
    printf %s {NEW.decode()} > {place}/c/0/0
    printf %s beside > {place}/notes.txt
    stat --format %u:%g {place}/c/0/1
    shardfs umount {place}
    """
    done = in_namespaces(script, "--user", "--map-root-user", "--mount", state=tmp_path / "state")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0:0\n", "")
    with shardfs.open(source) as dataset:
        assert dataset[""].read_chunk((0, 0)) == NEW
    assert (source / "notes.txt").read_text() == "beside"


def test_what_a_user_namespace_may_not_write_is_refused_and_stays(source: Path, place: Path, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give files away")
    for path in (source, *source.rglob("*")):
        os.chown(path, OTHERS, OTHERS)
        os.chmod(path, 0o755 if path.is_dir() else 0o644)
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    script = f"""
    shardfs mount --quiet {source} {place}
    cat {place}/zarr.json >/dev/null
    shardfs umount {place}
    shardfs mount --quiet --write {source} {place}
    """
    done = in_namespaces(script, "--user", "--map-root-user", "--mount", state=tmp_path / "state")
    assert done.returncode == 3, str(done)
    assert "you need permission to write" in done.stderr
    assert {path: path.read_bytes() for path in source.rglob("*") if path.is_file()} == before


def test_overlays_and_bind_mounts_on_top_of_a_mount_show_the_chunks(
    source: Path, mount: Mounter, tmp_path: Path
) -> None:
    mounted = mount(source).path
    for name in ("bound", "upper", "merged"):
        (tmp_path / name).mkdir()
    # The upper layer cannot lie on an overlay, as the root of a container does.
    script = f"""
    mount --bind {mounted} {tmp_path}/bound
    cp {tmp_path}/bound/c/0/0 {tmp_path}/copied
    umount {tmp_path}/bound
    mount -t tmpfs none {tmp_path}/upper
    mkdir {tmp_path}/upper/u {tmp_path}/upper/w
    mount -t overlay -o lowerdir={mounted},upperdir={tmp_path}/upper/u,workdir={tmp_path}/upper/w none {tmp_path}/merged
    printf %s {NEW.decode()} > {tmp_path}/merged/c/0/0
    cp {tmp_path}/merged/c/0/0 {tmp_path}/changed
    umount {tmp_path}/merged
    """
    if os.geteuid():
        pytest.skip("only root mounts overlays")
    before = (mounted / "c/0/0").read_bytes()
    done = in_namespaces(script, "--mount", state=tmp_path / "state")
    assert (done.returncode, done.stderr) == (0, "")
    assert ((tmp_path / "copied").read_bytes(), (tmp_path / "changed").read_bytes()) == (before, NEW)
    assert (mounted / "c/0/0").read_bytes() == before


def test_a_later_version_that_is_installed_beside_an_earlier_one_takes_over_its_mount_in_use(
    source: Path, place: Path, tmp_path: Path, background: Background
) -> None:
    later = tmp_path / "later"
    shutil.copytree(TOP / "shardfs", later / "shardfs")
    (later / "shardfs/version.py").write_text('__version__ = "99.0"\n')

    def run_later(*arguments: str | Path) -> str:
        env = {**os.environ, "PYTHONPATH": str(later), "XDG_STATE_HOME": str(tmp_path / "state")}
        done = subprocess.run(command(*arguments), env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert background("--write", source, place).returncode == 0
    (place / "c/0/0").write_bytes(NEW)
    read, written = (os.open(place / "c/0/1", os.O_RDONLY), os.open(place / "c/1/0", os.O_WRONLY | os.O_TRUNC))
    try:
        before = os.pread(read, 100, 0)
        os.write(written, NEW)
        assert run("umount", "--force", place, XDG_STATE_HOME=str(tmp_path / "state")).returncode == 0
        run_later("mount", "--write", source, place)
        assert json.loads(run_later("stats", "--json", place))["version"] == "99.0"
        assert (place / "c/0/0").read_bytes() == NEW
        assert (place / "c/0/1").read_bytes() == before
        with refuses(errno.ENOTCONN):
            os.pread(read, 1, 0)
    finally:
        for fd in (read, written):
            with suppress(OSError):
                os.close(fd)
    (place / "c/0/1").write_bytes(NEW)
    run_later("umount", place)
    with shardfs.open(source) as dataset:
        chunks = {at: dataset[""].read_chunk(at) for at in ((0, 0), (0, 1), (1, 0))}
    assert chunks.pop((1, 0)) != NEW, "its program did not close it before the mount ended"
    assert set(chunks.values()) == {NEW}


def test_a_job_commits_what_it_wrote_when_its_time_is_up(source: Path, tmp_path: Path) -> None:
    """The script of the docs gets the signal that Slurm sends, while its program has a file of the mount open."""
    (tmp_path / "bin").mkdir()
    program = " ".join(map(shlex.quote, command()))
    (tmp_path / "bin/shardfs").write_text(f'#!/bin/sh\nexec {program} "$@"\n')
    (tmp_path / "bin/shardfs").chmod(0o755)
    busy = (
        f"printf %s {NEW.decode()} > $0/c/0/0; exec 9<$0/c/0/1; cd $0; echo ready; trap '' TERM; sleep 600 & wait; wait"
    )
    variables = {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "SOURCE": str(source),
        "TMPDIR": str(tmp_path),
        "SLURM_JOB_ID": "7",
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    with running(
        [DOCS / "slurm.sh", "bash", "-c", busy],
        env=environment() | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as job:
        assert job.stdout is not None
        try:
            assert job.stdout.readline() == "ready\n"
            job.terminate()
            assert job.wait(PATIENCE) == 143
        finally:
            with suppress(ProcessLookupError):  # nothing of it runs any more
                os.killpg(job.pid, 9)
    assert not (tmp_path / "shardfs-7").exists()
    with shardfs.open(source) as dataset:
        assert dataset[""].read_chunk((0, 0)) == NEW


@pytest.mark.parametrize(
    "line", ["hadolint Dockerfile", "kubernetes-validate --strict kubernetes.yaml", "bash -n slurm.sh slurm-epilog.sh"]
)
def test_the_files_for_containers_satisfy_the_programs_that_check_them(line: str) -> None:
    program, *arguments = line.split()
    path = shutil.which(program, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert path is not None, f"{program} is not installed"
    done = subprocess.run([path, *arguments], cwd=DOCS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
