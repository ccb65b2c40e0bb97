"""The options for s3:// sources: what is accepted, what is refused, and that the daemon gets the same."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shardfs import MountOptions, StoreOptions, errors
from shardfs.cli import cli, mount
from shardfs.stores.url import open_store, resolve
from tests.support.commands import MOUNT_POINT, SOURCE, WRONG_USAGE, one_line_of, run
from tests.support.mounting import environment

COMMANDS = ("mount", "info", "verify", "refs", "recover", "compact")
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
GIVEN = {
    "--profile": StoreOptions(profile="lab"),
    "--region": StoreOptions(region="eu-west-1"),
    "--endpoint-url": StoreOptions(endpoint_url="http://localhost:9000"),
    "--anonymous": StoreOptions(anonymous=True),
    "--request-payer": StoreOptions(request_payer=True),
    "--max-connections": StoreOptions(max_connections=3),
    "--cache": StoreOptions(cache="somewhere"),
}


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
    return options if options.cache is None else replace(options, cache_nbytes=draw(st.integers(1, 10**15 - 1)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    store_options(),
    st.builds(
        MountOptions, metadata_ttl=st.none() | st.floats(0, 1e9), write=st.just(True), single_writer=st.booleans()
    ),
)
@example(StoreOptions(), MountOptions())
def test_the_daemon_gets_the_options_that_the_command_was_given(
    monkeypatch: pytest.MonkeyPatch, store: StoreOptions, options: MountOptions
) -> None:
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(mount, "_mount_in_foreground", lambda *arguments: seen.append(arguments))
    arguments = ["s3://bucket/data", "/mnt", "-f", *options.to_arguments(), *store.to_arguments()]
    mount.mount.main(arguments, standalone_mode=False)
    assert seen == [("s3://bucket/data", "/mnt", options, store, "info", "text", None, None)]


@pytest.mark.parametrize(("name", "foreground"), [("", []), ("within", ["-f"])], ids=["itself", "within"])
def test_a_cache_in_the_mount_point_is_refused_and_not_made(place: Path, name: str, foreground: list[str]) -> None:
    said = one_line_of(run("mount", *foreground, "--cache", place / name, "s3://bucket/data", place), MOUNT_POINT)
    assert said == f"the cache {place / name} lies in {place}, where the mount would hide it"
    assert not list(place.iterdir())


@pytest.mark.parametrize("text", ["", "0", "-1", "10GB", "1e9", "9" * 5000])
def test_what_is_no_size_says_what_one_looks_like(text: str, place: Path) -> None:
    done = run_here("mount", "--cache", place, "--cache-size", text, "s3://bucket/data", place)
    assert (done.returncode, done.stdout) == (WRONG_USAGE, "")
    assert "500M or 10G" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--anonymous", "--request-payer"], "--request-payer contradicts --anonymous"),
        (["--cache-size", "1G"], "add --cache DIR"),
        (["--cache", ""], "--cache is empty"),
        (["--single-writer"], "add --write"),
    ],
)
def test_options_that_make_no_sense_are_refused(place: Path, arguments: list[str], said: str) -> None:
    assert said in one_line_of(run("mount", *arguments, "s3://bucket/data", place), WRONG_USAGE)


@pytest.mark.parametrize(
    "endpoint", ["localhost:9000", "http://", "http://[::1", "http://host:port", "s3://bucket", "http://host/?a=b"]
)
def test_an_endpoint_that_is_no_server(endpoint: str) -> None:
    said = one_line_of(run_here("info", "--anonymous", "--endpoint-url", endpoint, "s3://bucket/data"), SOURCE)
    assert "--endpoint-url" in said
    assert "is not the URL of a server" in said


@pytest.mark.parametrize("endpoint", ["https://me:hunter2@host", "me:hunter2@host", "http://me:hunter2@[host"])
def test_a_password_in_an_endpoint_is_refused_and_not_repeated(endpoint: str) -> None:
    said = one_line_of(run_here("info", "--anonymous", "--endpoint-url", endpoint, "s3://bucket/data"), SOURCE)
    assert "hunter2" not in said


@pytest.mark.parametrize("name", GIVEN)
def test_a_source_on_this_machine_takes_no_option_for_remote_ones(tmp_path: Path, name: str) -> None:
    with pytest.raises(errors.UsageError, match=f"{name} is for s3:// sources") as caught:
        open_store(str(tmp_path), GIVEN[name])
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_takes_a_source_has_the_options_and_says_what_they_are_for(command: str) -> None:
    text = run_here(command, "--help").stdout
    _, _, remote = text.partition("Options for s3:// sources:")
    for name in ("--profile", "--region", "--endpoint-url", "--anonymous", "--request-payer", "--max-connections"):
        assert name in remote
    assert ("--cache" in remote) is (command == "mount")
    assert ("--single-writer" in remote) is (command in ("mount", "recover", "compact"))


@pytest.mark.parametrize("url", ["s3://bucket/data", "file:///data"])
def test_a_url_that_went_through_a_path_says_so(url: str) -> None:
    with pytest.raises(errors.SourceError, match="pathlib") as caught:
        resolve(str(Path(url)))
    assert f"did you mean {url}?" in str(caught.value)


def python(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment(), capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("command", "library"), [("info", "boto3"), ("recover", "obstore")])
def test_without_the_libraries_for_s3_the_command_says_how_to_get_them(command: str, library: str) -> None:
    program = f"import sys; sys.modules[{library!r}] = None; from shardfs.cli import main; main()"
    done = python(program, command, "s3://bucket/data")
    said = one_line_of(done, SOURCE)
    assert said.endswith(f"{sys.executable} -m pip install 'shardfs[s3]'; with pipx: pipx inject shardfs 'shardfs[s3]'")


def test_a_source_on_this_machine_loads_no_library_for_s3(source: Path) -> None:
    program = """
import sys
from shardfs.cli import main
try:
    main()
finally:
    print(*sorted({"boto3", "botocore", "obstore"} & set(sys.modules)), file=sys.stderr)
"""
    done = python(program, "info", "--json", source)
    assert (done.returncode, done.stderr) == (0, "\n")
