"""Options of commands: what is accepted, what is refused with a way out, and that the daemon gets the same."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shardfs import MountOptions, StoreOptions
from shardfs.cli import cli, mount
from shardfs.fuse.options import DIMENSION_SEPARATORS, VIEWS
from tests.support.commands import SOURCE, WRONG_USAGE, one_line_of
from tests.support.mounting import environment

URL = "s3://bucket/data"
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
NBYTES = st.integers(1, 10**15 - 1)


def run_here(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command that ends before it reads or mounts anything, without a process of its own."""
    done = CliRunner().invoke(cli, list(map(str, arguments)), prog_name="shardfs")
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


@st.composite
def store_options(draw: st.DrawFn) -> StoreOptions:
    cache = draw(st.none() | NAMES.map(lambda name: f"/{name.replace('/', '-')}"))
    options = StoreOptions(
        profile=draw(st.none() | NAMES),
        region=draw(st.none() | NAMES),
        endpoint_url=draw(st.sampled_from([None, "https://s3.example.org", "http://[::1]:9000/storage"])),
        anonymous=draw(st.booleans()),
        max_connections=draw(st.integers(1, 1024)),
        cache=None if cache is None or cache.strip("/.") == "" else cache,
    )
    if not options.anonymous:
        options = replace(options, request_payer=draw(st.booleans()))
    return options if options.cache is None else replace(options, cache_nbytes=draw(NBYTES))


@st.composite
def mount_options(draw: st.DrawFn) -> MountOptions:
    view = draw(st.sampled_from(VIEWS))
    decode = view != "npy" and draw(st.booleans())
    chosen: dict[str, Any] = {"view": view, "decode": decode, "metadata_ttl": draw(st.none() | st.floats(0, 1e9))}
    if view == "v2":
        chosen["dimension_separator"] = draw(st.none() | st.sampled_from(DIMENSION_SEPARATORS))
        chosen["fill_missing"] = draw(st.booleans())
    if view == "npy" or decode:
        chosen["decode_cache_nbytes"] = draw(NBYTES)
    if view != "npy":
        chosen["write"] = draw(st.booleans())
    return MountOptions(**chosen, single_writer=chosen.get("write", False) and draw(st.booleans()))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(store_options(), mount_options())
@example(StoreOptions(), MountOptions())
def test_the_daemon_gets_the_options_that_the_command_was_given(
    monkeypatch: pytest.MonkeyPatch, store: StoreOptions, options: MountOptions
) -> None:
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(mount, "_mount_in_foreground", lambda *arguments: seen.append(arguments))
    mount.mount.main([URL, "/mnt", "-f", *options.to_arguments(), *store.to_arguments()], standalone_mode=False)
    assert seen == [(URL, "/mnt", options, store, "info", "text", None, None)]


CONTRADICTIONS = {
    "--view npy --write": "leave out --write",
    "--view npy -o rw": "leave out --write",
    "--view npy --decode": "leave out --decode",
    "--view npy --dimension-separator .": "add --view v2",
    "--fill-missing no": "add --view v2",
    "--dimension-separator /": "add --view v2",
    "--decode-cache 1G": "add --decode or --view npy",
    "--view v2 --decode-cache 1G": "add --decode or --view npy",
    "--anonymous --request-payer": "--request-payer contradicts --anonymous",
    "--cache-size 1G": "add --cache DIR",
    "--cache ''": "--cache is empty",
    "--single-writer": "add --write",
}
NO_CHOICE = {
    "--view v4": "'v3', 'v2', 'npy'",
    "--view v2 --dimension-separator -": "'.', '/'",
    **{f"--cache x --cache-size={text}": "500M or 10G" for text in ("", "0", "-1", "10GB", "1e9", "9" * 5000)},
}


def test_options_that_contradict_each_other_or_are_none_name_the_way_out(place: Path) -> None:
    for options, way_out in CONTRADICTIONS.items():
        assert way_out in one_line_of(run_here("mount", *shlex.split(options), URL, place), WRONG_USAGE)
    for options, choices in NO_CHOICE.items():
        done = run_here("mount", *options.split(), URL, place)
        assert (done.returncode, done.stdout) == (WRONG_USAGE, "")
        assert choices in done.stderr


def test_an_endpoint_that_is_no_server_or_has_a_password_is_refused_and_not_repeated() -> None:
    for endpoint in ("localhost:9000", "http://", "http://[::1", "http://host:port", "s3://bucket", "http://host/?a=b"):
        said = one_line_of(run_here("info", "--anonymous", "--endpoint-url", endpoint, URL), SOURCE)
        assert "--endpoint-url" in said
        assert "is not the URL of a server" in said
    for endpoint in ("https://me:hunter2@host", "me:hunter2@host", "http://me:hunter2@[host"):
        said = one_line_of(run_here("info", "--anonymous", "--endpoint-url", endpoint, URL), SOURCE)
        assert "hunter2" not in said


def python(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment(), capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("command", "library"), [("info", "boto3"), ("recover", "obstore")])
def test_without_the_libraries_for_s3_the_command_says_how_to_get_them(command: str, library: str) -> None:
    program = f"import sys; sys.modules[{library!r}] = None; from shardfs.cli import main; main()"
    said = one_line_of(python(program, command, URL), SOURCE)
    assert said.endswith(f"{sys.executable} -m pip install 'shardfs[s3]'; with pipx: pipx inject shardfs 'shardfs[s3]'")
