"""What users type: options reach the daemon as they are, and what cannot be done is refused with the way out."""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from unittest.mock import patch

import pytest
import zarr
from click.testing import CliRunner

from shardfs import StoreOptions
from shardfs.cli import cli, mount
from shardfs.fuse.options import MountOptions
from tests.cli.conftest import Background
from tests.support.commands import MACHINE, MOUNT_POINT, SOURCE, WRONG_USAGE, one_line_of, run
from tests.support.daemons import kill_daemon
from tests.support.mounting import command, environment

URL = "s3://bucket/data"


def run_here(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command that ends before it reads or mounts anything, without a process of its own."""
    done = CliRunner().invoke(cli, list(map(str, arguments)), prog_name="shardfs")
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


STORE = StoreOptions(
    profile="lab",
    region="eu-west-1",
    endpoint_url="https://s3.example.org",
    request_payer=True,
    max_connections=3,
    cache="/cache",
    cache_size=54321,
    assume_complete=True,
    allow_target=("/data", "s3://other/part"),
    files=((URL, "found out, and no option of a command"),),
)
MOUNT = MountOptions(
    metadata_ttl=0.5,
    allow_other=True,
    page_cache=True,
    uid=1,
    gid=2,
    umask=0o27,
    fuse_options=("max_read=131072",),
    write=True,
    shards=(2, 3),
    auto_compact=0.5,
    single_writer=True,
    view="v2",
    decode=True,
    dimension_separator="/",
    fill_missing=False,
    decode_cache=12345,
    metrics="127.0.0.1:9464",
)
CHOSEN = [
    (STORE, MOUNT),
    (StoreOptions(anonymous=True), MountOptions(view="npy")),
    (StoreOptions(), MountOptions(draft="sharding-1.1")),
    (StoreOptions(profile="-a b '"), MountOptions()),
]


@pytest.mark.parametrize(("store", "options"), CHOSEN)
def test_the_daemon_gets_all_options_of_the_command(
    monkeypatch: pytest.MonkeyPatch, store: StoreOptions, options: MountOptions
) -> None:
    as_they_are = [
        each.name for made in (STORE, MOUNT) for each in fields(made) if getattr(made, each.name) == each.default
    ]
    assert as_they_are == ["anonymous", "draft"], "every other option is tried"
    seen: list[list[str]] = []
    monkeypatch.setattr(mount, "check_fuse", lambda **_: None)
    monkeypatch.setattr(mount, "check_mount_point", lambda *_: "/mnt")
    monkeypatch.setattr(mount.daemon, "start_daemon", lambda arguments, _: seen.append(arguments))
    arguments = [URL, "/mnt", *options.to_arguments(), *store.to_arguments()]
    mount.mount.main(arguments, standalone_mode=False)
    assert seen == [[*arguments, "--log-level=info", "--log-format=text"]]


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
    "--draft sharding-1.1 --write": "leave out --write",
    "--draft sharding-1.1 --view npy": "--draft needs --view v3",
}
NO_CHOICE = {
    "--view v4": "'v3', 'v2', 'npy'",
    "--view v2 --dimension-separator -": "'.', '/'",
    **{f"--cache x --cache-size={text}": "500M or 10G" for text in ("", "0", "-1", "10GB", "1e9", "9" * 5000)},
}


def test_wrong_and_contradicting_options_name_the_way_out(place: Path) -> None:
    for options, way_out in CONTRADICTIONS.items():
        assert way_out in one_line_of(run_here("mount", *shlex.split(options), URL, place), WRONG_USAGE)
    for options, choices in NO_CHOICE.items():
        done = run_here("mount", *options.split(), URL, place)
        assert (done.returncode, done.stdout) == (WRONG_USAGE, "")
        assert choices in done.stderr


@pytest.mark.parametrize("words", ["mount --write", "compact", "recover --apply"])
def test_a_single_writer_of_a_directory_is_refused(tmp_path: Path, words: str, place: Path) -> None:
    source = tmp_path / "source"
    zarr.create_array(source, shape=(4,), chunks=(2,), shards=(4,), dtype="i4")
    done = run(*words.split(), "--single-writer", source, *([place] if "mount" in words else []))
    expected = f"--single-writer is for s3:// sources, and {source} is on this machine"
    assert one_line_of(done, WRONG_USAGE).endswith(expected)


def test_a_wrong_endpoint_is_refused_without_showing_its_password() -> None:
    for endpoint in ("localhost:9000", "http://", "http://host:port", "s3://bucket", "http://host/?a=b"):
        said = one_line_of(run_here("info", "--anonymous", "--endpoint-url", endpoint, URL), SOURCE)
        assert "--endpoint-url" in said
        assert "is not the URL of a server" in said
    for endpoint in ("https://me:hunter2@host", "me:hunter2@host", "http://me:hunter2@[host"):
        assert "hunter2" not in one_line_of(run_here("info", "--anonymous", "--endpoint-url", endpoint, URL), SOURCE)


@pytest.mark.slow
def test_without_the_libraries_for_s3_the_command_says_how_to_get_them() -> None:
    program = "import sys; sys.modules['boto3'] = None; from shardfs.cli import main; main()"
    line = [sys.executable, "-c", program, "info", URL]
    said = one_line_of(subprocess.run(line, env=environment(), capture_output=True, text=True, check=False), SOURCE)
    assert said.endswith(f"{sys.executable} -m pip install 'shardfs[s3]'; with pipx: pipx inject shardfs 'shardfs[s3]'")


COMMANDS = {
    "mout a b": "No such command 'mout'. (Did you mean one of: 'mount', 'mounts', 'umount'?)",
    "s3://bucket/a b": "A command is missing before 's3://bucket/a'. To mount it, type: shardfs mount",
    "/usr b": "A command is missing before '/usr'. To mount it, type: shardfs mount /usr MOUNTPOINT",
    "mount a": "Missing argument 'MOUNTPOINT'.",
    "mount --vew v2 a b": "No such option '--vew'. Did you mean '--view'?",
    "mount --metadata-ttl nan a b": "'nan' is not a valid number.",
    "mount --umask 999 a b": "'999' is not a umask; write three octal digits, such as 022.",
    "mount --metrics x a b": "ADDRESS:PORT",
}


def test_wrong_commands_say_what_is_wrong() -> None:
    for words, text in COMMANDS.items():
        done = run_here(*words.split())
        assert (done.returncode, done.stdout) == (WRONG_USAGE, "")
        assert text in done.stderr


STREAMS = {"2>&-": 0, ">&-": 0, "<&- >&- 2>&-": 0, ">/dev/full": 1}


@pytest.mark.slow
def test_a_stream_that_is_closed_or_full_changes_no_other_status(source: Path) -> None:
    for redirection, status in STREAMS.items():
        for arguments, expected in ((["info", source], status), (["info", source / "nowhere"], SOURCE)):
            line = ["sh", "-c", f'exec "$@" {redirection}', "sh", *command(*arguments)]
            done = subprocess.run(line, env=environment(), capture_output=True, text=True)
            assert done.returncode == expected, redirection
            assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_folder_that_may_not_be_entered_is_an_error_for_every_output(source: Path, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    output = tmp_path / "closed/x"
    bound = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    for arguments in (["refs", "-o", output, source], ["map", "--html", output, source], ["pack", source, output]):
        done = run(*arguments, prefix=bound)
        assert done.returncode in (WRONG_USAGE, SOURCE)
        assert re.search(r"closed/x cannot be (written|created).*: Permission denied", done.stderr)
    (tmp_path / "closed").chmod(0o755)


URLS = [
    ("ftp://bucket/data.zarr", ("ftp://", "file://", "s3://", "https://")),
    ("gs://", ("no bucket",)),
    ("https:///data.zarr", ("no server",)),
    ("://data.zarr", ("not supported",)),
    ("file://server/data.zarr", ("server", "file:///")),
    ("file://", ("file://",)),
    ("file://[/data.zarr", ("file://[",)),
    ("https://[::1/data.zarr", ("https://[", "not a valid URL")),
    ("file:///data%00.zarr", ("data",)),
    ("file://PLACE/../source?version=2", ("?",)),
    ("file://PLACE/../source#version=2", ("#",)),
    ("file:///nowhere/data%20set.zarr", ("/nowhere/data set.zarr does not exist; there is no nowhere in /",)),
    ("file://PLACE/../sourc", ("sourc does not exist; did you mean ", "/source?")),
]


@pytest.mark.slow
def test_unsupported_urls_are_refused(source: Path, place: Path) -> None:
    for url, parts in URLS:
        said = one_line_of(run("mount", url.replace("PLACE", str(place)), place, cwd=place), SOURCE)
        assert all(part in said for part in parts), url


WRONG = {
    "-o ro,nonsense": "-o nonsense: libfuse has no such option",
    "-o view=v2": "-o view=v2: -o is for options of FUSE; write --view v2",
    "-o remount": "-o remount: a mount cannot be changed; unmount it, and mount it again",
    "-o ro,rw": "-o ro contradicts -o rw",
    "--write -o ro": "-o ro contradicts --write",
}


def test_fuse_options_that_cannot_be_honoured_are_refused(source: Path, place: Path) -> None:
    for options, words in WRONG.items():
        assert words in one_line_of(run("mount", *options.split(), source, place), WRONG_USAGE)
    said = one_line_of(run("mount", source, place, XDG_STATE_HOME="/dev/null"), WRONG_USAGE)
    assert "/dev/null/shardfs" in said
    assert "--log-file" in said


def test_umount_of_another_path_names_the_mount(background: Background, source: Path, place: Path) -> None:
    assert background(source, place).returncode == 0
    for point, hint in (
        (place / "c/0", f"lies in the mount at {place}: give that"),
        (source, "is not a mount of shardfs; `shardfs mounts` lists all mounts"),
    ):
        said = one_line_of(run("umount", point), MOUNT_POINT)
        assert said == f"{point} {hint}"
    assert one_line_of(run("umount", ""), MOUNT_POINT) == "MOUNTPOINT is empty; was a variable never set?"
    assert "apt-get install fuse3" in one_line_of(run("umount", place, PATH="/nowhere"), MACHINE)
    assert os.listdir(place)
    kill_daemon(place)
    said = one_line_of(run("mount", source, place / "c"), MOUNT_POINT)
    assert said.endswith(f"shardfs umount {place}")
    assert "`shardfs mounts`" in one_line_of(run("info", place / "c"), SOURCE)


def test_an_unknown_option_names_the_nearest_one_and_no_other() -> None:
    for typed, meant in {"--prot": "--port", "--tokenfile": "--token-file", "--frobnicate": None}.items():
        said = run_here("serve", typed, "data.zarr").stderr
        assert f"No such option '{typed}'." in said
        assert ("Did you mean" in said) is (meant is not None)
        assert meant is None or said.rstrip().endswith(f"Did you mean '{meant}'?")


def test_a_missing_source_names_one_that_was_meant_and_no_other(tmp_path: Path) -> None:
    for name in ("data.zarr", "mask.zarr"):
        (tmp_path / name).mkdir()
    for typed, meant in {"dat.zarr": "data.zarr", "data.zar": "data.zarr", "nope.zarr": None}.items():
        line = one_line_of(run("mount", tmp_path / typed, tmp_path), SOURCE)
        assert line == f"{tmp_path / typed} does not exist" + (f"; did you mean {tmp_path / meant}?" if meant else "")


def test_host_and_port_of_a_server_are_options_too(tmp_path: Path) -> None:
    for words in (["--port", "1"], ["--host", "::1"]):
        line = one_line_of(run("serve", "--listen", "8000", *words, tmp_path), WRONG_USAGE)
        assert "--listen has address and port" in line
    with patch("shardfs.serve.run.serve") as serve:
        for words, listens in {
            (): ("127.0.0.1", 8000),
            ("--port", "0"): ("127.0.0.1", 0),
            ("--host", "::1"): ("::1", 8000),
            ("--host", "localhost", "--port", "80"): ("localhost", 80),
        }.items():
            assert run_here("serve", *words, tmp_path).returncode == 0
            assert serve.call_args.args[2].address == listens
