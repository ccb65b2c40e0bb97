"""The options that choose a view: what is accepted, what is refused with a way out, and what the daemon gets."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shardfs import MountOptions
from shardfs.cli import cli, mount
from shardfs.fuse.options import DIMENSION_SEPARATORS, VIEWS
from tests.cli.conftest import Background
from tests.support.commands import WRONG_USAGE, one_line_of


def refusal(*arguments: str | Path) -> str:
    """The one line with which a command is refused before it looks at anything."""
    done = CliRunner().invoke(cli, list(map(str, arguments)), prog_name="shardfs")
    process = subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)
    return one_line_of(process, WRONG_USAGE)


@st.composite
def view_options(draw: st.DrawFn) -> MountOptions:
    view = draw(st.sampled_from(VIEWS))
    decode = view != "npy" and draw(st.booleans())
    chosen: dict[str, Any] = {"view": view, "decode": decode}
    if view == "v2":
        chosen["dimension_separator"] = draw(st.none() | st.sampled_from(DIMENSION_SEPARATORS))
        chosen["fill_missing"] = draw(st.booleans())
    if view == "npy" or decode:
        chosen["decode_cache_nbytes"] = draw(st.integers(1, 10**15 - 1))
    if view != "npy":
        chosen["write"] = draw(st.booleans())
    return MountOptions(**chosen)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(view_options())
@example(MountOptions())
def test_the_daemon_gets_the_view_that_the_command_was_given(
    monkeypatch: pytest.MonkeyPatch, options: MountOptions
) -> None:
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(mount, "_mount_in_foreground", lambda *arguments: seen.append(arguments))
    mount.mount.main(["data", "/mnt", "-f", *options.to_arguments()], standalone_mode=False)
    assert [arguments[2] for arguments in seen] == [options]


CONTRADICTIONS = [
    ("--view npy --write", "leave out --write"),
    ("--view npy -o rw", "leave out --write"),
    ("--view npy --decode", "leave out --decode"),
    ("--view npy --dimension-separator .", "add --view v2"),
    ("--fill-missing no", "add --view v2"),
    ("--view npy --fill-missing no", "add --view v2"),
    ("--dimension-separator /", "add --view v2"),
    ("--decode-cache 1G", "add --decode or --view npy"),
    ("--view v2 --decode-cache 1G", "add --decode or --view npy"),
]


@pytest.mark.parametrize(("given_options", "way_out"), CONTRADICTIONS)
def test_options_that_contradict_each_other_name_the_way_out(place: Path, given_options: str, way_out: str) -> None:
    assert way_out in refusal("mount", *shlex.split(given_options), place, place)


@pytest.mark.parametrize(
    ("given_options", "choices"),
    [("--view v4", r"'v3', 'v2', 'npy'"), ("--view v2 --dimension-separator -", r"'\.', '/'")],
)
def test_a_view_or_separator_that_is_none_is_told_which_there_are(
    place: Path, given_options: str, choices: str
) -> None:
    done = CliRunner().invoke(cli, ["mount", *shlex.split(given_options), str(place), str(place)])
    assert done.exit_code == WRONG_USAGE
    assert re.search(choices, done.stderr)


def test_the_command_says_what_it_mounted_as_what(background: Background, source: Path, place: Path) -> None:
    done = background("--view=v2", "--decode", source, place)
    assert done.stdout.startswith(f"{source} is mounted at {place}, read-only as v2, decoded (log: ")
    assert (place / ".zarray").exists()
