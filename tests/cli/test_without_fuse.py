"""An environment without pyfuse3, as `pip install shardfs` makes it: all but mounting works."""

import importlib.metadata
import json
import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

import shardfs
from shardfs.cli import every_command
from tests.support.commands import MACHINE
from tests.support.damage import document
from tests.support.datasets import store
from tests.support.mounting import PATIENCE, environment

TOP = Path(shardfs.__file__).parent.parent
IN_TURN = """
import json, os, runpy, sys
import shardfs.cli
for line in json.loads(sys.argv[1]):
    pid = os.fork()
    if not pid:
        sys.argv[1:] = line
        runpy.run_module("shardfs", run_name="__main__", alter_sys=True)
        sys.exit()
    assert os.waitpid(pid, 0)[1] == 0, line
"""
"""Runs command lines one after the other, each in a process of its own, for which shardfs is imported once."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with all packages of this one but pyfuse3."""
    directory = tmp_path_factory.mktemp("bare")
    venv.create(directory, with_pip=False, symlinks=True)
    packages = directory / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    for package in Path(importlib.metadata.distribution("numpy").locate_file("")).iterdir():
        if "pyfuse3" not in package.name and package.suffix != ".pth" and package.name != "__pycache__":
            (packages / package.name).symlink_to(package)
    (packages / "shardfs.pth").write_text(str(TOP))
    return directory / "bin/python"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    store(tmp_path / "data.zarr", document())
    return tmp_path / "data.zarr"


def run(python: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-P", *arguments], env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE
    )


def test_an_installation_without_extras_compiles_nothing() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    assert not [needed for needed in project["dependencies"] if needed.startswith("pyfuse3")]
    assert [extra for extra, needed in project["optional-dependencies"].items() if "pyfuse3>=3.4" in needed] == ["fuse"]


def test_every_command_but_mount_works(python: Path, dataset: Path, tmp_path: Path) -> None:
    assert run(python, "-c", "import pyfuse3").returncode == 1
    made = str(tmp_path / "unpacked"), str(tmp_path / "packed")
    source = str(dataset)
    lines = [
        ["info", source],
        ["map", source],
        ["refs", source],
        ["verify", "--data", source],
        ["compact", source],
        ["recover", "--apply", source],
        ["unpack", source, made[0]],
        ["pack", *made],
        ["mounts"],
    ]
    lines += [[name, "--help"] for name in every_command().keys() - {line[0] for line in lines}]
    done = run(python, "-c", IN_TURN, json.dumps(lines))
    assert done.returncode == 0, done
    code = "import shardfs, sys; print(shardfs.open(sys.argv[1])[''].read_chunk((0, 0)))"
    assert run(python, "-c", code, made[1]).stdout == f"{shardfs.open(dataset)[''].read_chunk((0, 0))!r}\n"


@pytest.mark.parametrize("words", [["mount"], ["mount", "-f"]])
def test_mount_says_what_to_install_and_what_works_without(
    python: Path, dataset: Path, tmp_path: Path, words: list[str]
) -> None:
    place = tmp_path / "mnt"
    place.mkdir()
    done = run(python, "-m", "shardfs", *words, dataset, place)
    assert done.returncode == MACHINE
    assert done.stderr == (
        "shardfs: pyfuse3 is not installed, without which nothing can be mounted; install it with: "
        f"{python} -m pip install 'shardfs[fuse]'; with pipx: pipx inject shardfs 'shardfs[fuse]'; every other "
        "command, and shardfs.open in Python, work without it\n"
    )
    code = f"import shardfs\nwith shardfs.mount({os.fspath(dataset)!r}): pass"
    assert "FuseUnavailableError: pyfuse3 is not installed" in run(python, "-c", code).stderr


def test_doctor_and_version_say_that_it_is_missing(python: Path) -> None:
    assert "pyfuse3 is not installed" in run(python, "-m", "shardfs", "--version").stdout
    findings = json.loads(run(python, "-m", "shardfs", "doctor", "--json").stdout)
    (finding,) = (finding for finding in findings if "pyfuse3" in finding["what"])
    assert finding["kind"] == "problem"
    assert "'shardfs[fuse]'" in finding["way_out"]
