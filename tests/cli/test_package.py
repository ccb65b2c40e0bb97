"""The wheel and the recipe for conda: whether they can be published; what man pages and shells make of the wheel."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import click
import pytest
from rattler_build import Stage0Recipe

import shardfs
from shardfs.cli import cli, every_command
from tests.support.mounting import Mounter

TOP = Path(shardfs.__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory]
    done = subprocess.run(build, cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == 0, str(done)
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def share(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the wheel brings besides Python, and a command `shardfs` in `bin` beside it."""
    directory = tmp_path_factory.mktemp("package")
    with ZipFile(wheel) as file:
        file.extractall(directory)
    (directory / "bin").mkdir()
    (directory / "bin/shardfs").write_text(f'#!/bin/sh\nexec {sys.executable} -P -m shardfs "$@"\n')
    (directory / "bin/shardfs").chmod(0o755)
    return Path(shutil.move(directory / f"shardfs-{shardfs.__version__}.data/data/share", directory))


@pytest.mark.parametrize(
    "check", [["twine", "check", "--strict"], ["check_wheel_contents"]], ids=lambda check: check[0]
)
def test_the_wheel_is_ready_to_be_published(wheel: Path, check: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", *check, wheel], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_recipe_is_one_for_conda_and_needs_what_the_project_needs() -> None:
    """rattler-build refuses fields and licenses that it does not know."""
    (variant,) = Stage0Recipe.from_file(TOP / "recipe/recipe.yaml").render()
    recipe = variant.recipe.to_dict()
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    extras = ("fuse", "serve", "s3", "dask", "parquet", "codecs")
    optional = [bound for extra in extras for bound in project["optional-dependencies"][extra]]
    assert recipe["package"] == {"name": "shardfs", "version": shardfs.__version__}
    needed = [bound.partition(";")[0].replace(">=", " >=") for bound in project["dependencies"]]
    needed = [f"python-{bound}" if bound.startswith("isal ") else bound for bound in needed]  # as conda-forge calls it
    assert recipe["requirements"]["run"] == [f"python {project['requires-python']}", *needed]
    # The build loads the commands.
    assert recipe["requirements"]["host"] == ["python 3.11.*", "pip", "hatchling >=1.25", *needed]
    assert recipe["requirements"]["run_constraints"] == [bound.replace(">=", " >=") for bound in optional]
    commands = [f"{name} = {function}" for name, function in project["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == commands
    assert recipe["about"]["summary"] == project["description"]


def words_of(text: str) -> set[str]:
    return {word.rstrip(":").lower() for word in text.split()}


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
def test_every_command_has_a_man_page_with_all_that_its_help_has(share: Path) -> None:
    pages = list((share / "man/man1").iterdir())
    assert {path.stem for path in pages} == {"shardfs", *(f"shardfs-{name}" for name in every_command())}
    env = os.environ | {"MANWIDTH": "10000", "LC_ALL": "C.UTF-8"}
    for page in pages:
        shown = subprocess.run(["man", "--warnings", "-l", page], env=env, capture_output=True, text=True)
        assert (shown.returncode, shown.stderr) == (0, ""), page
        command = every_command().get(page.stem.removeprefix("shardfs-"), cli)
        help_text = command.get_help(click.Context(command, info_name=page.stem, terminal_width=10000))
        assert words_of(help_text) - {"usage"} <= words_of(re.sub(".\b", "", shown.stdout)), page


BASH = """
source "$0/bash-completion/completions/shardfs"
COMP_WORDS=(shardfs $1) COMP_CWORD=2
_shardfs_completion shardfs && echo "${COMPREPLY[@]}"
"""
FISH = 'source "$argv[1]/fish/vendor_completions.d/shardfs.fish"; complete -C "shardfs $argv[2]"'


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_shells_complete(share: Path, mount: Mounter, source: Path, tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "mounted").mkdir()
    mount(source, path=tmp_path / "mounted")
    begin = ["bash", "--norc", "-c", BASH] if shell == "bash" else ["fish", "--no-config", "-c", FISH]
    env = os.environ | {"PATH": f"{share.parent}/bin:{os.environ['PATH']}", "HOME": str(tmp_path)}
    for typed, expected in {"verify --dat": "--data", f"umount {tmp_path}/mou": f"{tmp_path}/mounted"}.items():
        line = [*begin, share, typed]
        done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
        assert expected in done.stdout, str(done)
