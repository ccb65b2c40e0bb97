"""The wheel: what is in it, what man pages and shells make of it, and that users can check their types against it."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import click
import pytest

import shardfs
from shardfs.cli import cli
from tests.support.mounting import PATIENCE, Mounter

TOP = Path(shardfs.__file__).parent.parent


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with what is in the wheel, and nothing that it depends on."""
    directory = tmp_path_factory.mktemp("package")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory]
    done = subprocess.run(build, cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == 0, str(done)
    (wheel,) = directory.glob("*.whl")
    venv.create(directory / "venv")
    (packages,) = (directory / "venv").glob("lib/*/site-packages")
    with ZipFile(wheel) as file:
        file.extractall(packages)
    shutil.move(packages / f"shardfs-{shardfs.__version__}.data/data/share", directory / "venv/share")
    (directory / "venv/bin/shardfs").write_text(f'#!/bin/sh\nexec {sys.executable} -P -m shardfs "$@"\n')
    (directory / "venv/bin/shardfs").chmod(0o755)
    return directory / "venv"


def test_every_command_has_a_man_page_with_all_that_its_help_has(prefix: Path) -> None:
    if shutil.which("man") is None:
        pytest.skip("man is not installed")
    man1 = prefix / "share/man/man1"
    assert {path.stem for path in man1.iterdir()} == {"shardfs", *(f"shardfs-{name}" for name in cli.commands)}
    for page in man1.iterdir():
        shown = subprocess.run(
            ["man", "--warnings", "-l", page],
            env=os.environ | {"MANWIDTH": "10000", "LC_ALL": "C.UTF-8"},
            capture_output=True,
            text=True,
        )
        assert (shown.returncode, shown.stderr) == (0, ""), page
        command = cli.commands.get(page.stem.removeprefix("shardfs-"), cli)
        help_text = command.get_help(click.Context(command, info_name=page.stem, terminal_width=10000))
        assert words_of(help_text) - {"usage"} <= words_of(re.sub(".\b", "", shown.stdout)), page


def words_of(text: str) -> set[str]:
    return {word.rstrip(":").lower() for word in text.split()}


SHELLS = {
    "bash": (["bash", "--norc", "-i"], "source {}/bash-completion/completions/shardfs"),
    "zsh": (["zsh", "-f", "-i"], "fpath=({}/zsh/site-functions $fpath); autoload -U compinit; compinit -u -D"),
    "fish": (["fish", "--no-config", "-i"], "source {}/fish/vendor_completions.d/shardfs.fish"),
}


class Terminal:
    """An interactive shell that somebody types into."""

    def __init__(self, command: list[str], cwd: Path, path: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.execvpe(command[0], command, {**os.environ, "TERM": "dumb", "PATH": path, "HOME": str(cwd)})

    def type(self, text: str, expected: str) -> None:
        """Type, and wait until the terminal shows what is expected."""
        os.write(self.fd, text.encode())
        shown, deadline = "", time.monotonic() + PATIENCE
        while expected not in shown:
            assert time.monotonic() < deadline, (text, expected, shown)
            if select.select([self.fd], [], [], 1)[0]:
                shown += os.read(self.fd, 65536).decode(errors="replace")


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, prefix: Path, tmp_path: Path) -> Iterator[Terminal]:
    command, load = SHELLS[request.param]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    terminal = Terminal(command, tmp_path, f"{prefix}/bin:{os.environ['PATH']}")
    terminal.type(f"{load.format(prefix / 'share')}; echo rea''dy\r", "ready")
    yield terminal
    os.close(terminal.fd)
    os.waitpid(terminal.pid, 0)


def test_shells_complete(shell: Terminal, mount: Mounter, source: Path, tmp_path: Path) -> None:
    (tmp_path / "mounted here $5").mkdir()
    mount(source, path=tmp_path / "mounted here $5")
    for typed, expected in (
        ("shardfs verify --dat\t", "--data"),
        ("shardfs verify sou\t", "verify source/"),
        ("shardfs umount mounted\t", r"mounted\ here\ \$5"),
    ):
        shell.type("\x15" + typed, expected)  # on an empty line
