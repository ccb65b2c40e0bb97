"""What all commands print: printable lines, help with examples, an end without a traceback."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardfs import errors
from shardfs.cli import cli, output
from tests.support.commands import run
from tests.support.corpus import CASES, array, sharding, write_case
from tests.support.datasets import store
from tests.support.mounting import command, environment

COMMANDS = [
    "mount", "umount", "flush", "info", "map", "verify", "refs", "stats", "mounts", "doctor", "recover", "compact",
    "pack", "unpack", "install-helper",
]  # fmt: skip
REPORTS = ["info", "map", "verify", "refs"]


def test_help_names_every_command_and_every_exit_status() -> None:
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert set(COMMANDS) == set(cli.commands)
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", done.stdout, re.MULTILINE)
    for status in {0, *(each.exit_status for each in vars(errors).values() if hasattr(each, "exit_status"))}:
        assert re.search(rf"^  {status}  \w", done.stdout.partition("Exit status:")[2], re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_examples_that_it_understands(name: str) -> None:
    done = CliRunner().invoke(cli, [name, "--help"], prog_name="shardfs")
    assert (done.exit_code, done.stderr) == (0, "")
    assert f"shardfs {name} " in done.stdout.splitlines()[0]
    examples = [line.strip() for line in done.stdout.partition("Examples:")[2].splitlines() if line.strip()]
    assert examples
    for example in examples:
        words = shlex.split(re.split(r"[|>]", example)[0])
        assert words[:2] == ["shardfs", name]
        cli.commands[name].make_context(name, words[2:])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mout", "a", "b"], "No such command 'mout'. (Did you mean one of: 'mount', 'mounts', 'umount'?)"),
        (["s3://bucket/a", "b"], "A command is missing before 's3://bucket/a'. To mount it, type: shardfs mount"),
        (["/usr", "b"], "A command is missing before '/usr'. To mount it, type: shardfs mount /usr MOUNTPOINT"),
        ([], "Usage: "),
        (["mount", "a"], "Missing argument 'MOUNTPOINT'."),
        (["mount", "--vew", "v2", "a", "b"], "No such option '--vew'. Did you mean '--view'?"),
        (["mount", "--metadata-ttl", "abc", "a", "b"], "'abc' is not a valid number."),
        (["mount", "--metadata-ttl", "nan", "a", "b"], "'nan' is not a valid number."),
        (["mount", "--uid", "root", "a", "b"], "'root' is not a valid integer."),
        (["mount", "--umask", "999", "a", "b"], "'999' is not a umask; write three octal digits, such as 022."),
        (["mount", "--cache-size", "lots", "a", "b"], "'lots' is not a size; write for example 500M or 10G"),
        (["stats", "--timeout", "soon", "a"], "'soon' is not a valid number."),
    ],
    ids=" ".join,
)
def test_a_wrong_command_is_told_what_is_wrong_with_it(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(cli, arguments, prog_name="shardfs")
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


def test_ctrl_c_in_its_first_moments_is_no_traceback(source: Path, place: Path) -> None:
    for loaded in ("click", "shardfs.fuse.serve"):
        program = f"""
import signal, sys
from shardfs.__main__ import main

class Press:
    def find_spec(self, name, *_):
        if name == {loaded!r}:
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Press())
main()
"""
        command = [sys.executable, "-c", program, "mount", "-f", source, place]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        assert done.returncode in (1, -signal.SIGINT)
        assert done.stdout == ""
        assert done.stderr.strip() in ("", "Aborted!")


FORGED = [
    "\x1b[2Jcleared",
    "x\n(root)\n  shown          unsharded",
    "bell\x07",
    "\x9b31mred",
    "right\u202eto left",
    "a\rb",
]


def test_no_name_in_a_dataset_can_write_more_than_letters_to_the_terminal(tmp_path: Path) -> None:
    root = tmp_path / "source"
    for number, name in enumerate(FORGED):
        document = array((4, 6), (4, 6), sharding((2, 3)), data_type={"name": name} if number else "int32")
        store(root / f"sound{name}", array((4, 6), (4, 6), sharding((2, 3))))
        store(root / f"damaged{name}", array((4, 6), (4, 6), sharding((2, 3))))
        (root / f"damaged{name}/c/0/0").write_bytes(b"")
        for kind, text in {"odd": json.dumps(document), "broken": json.dumps([name]), "cut": "{"}.items():
            (root / f"{kind}{name}").mkdir()
            (root / f"{kind}{name}/zarr.json").write_text(text)
    codec = {"name": FORGED[0], "configuration": {FORGED[1]: 1}}
    (root / "codec").mkdir()
    (root / "codec/zarr.json").write_text(json.dumps(array((4,), (4,), codec)))
    for report in REPORTS:
        done = run(report, root)
        for text in (done.stdout, done.stderr):
            assert all(line.isprintable() for line in text.split("\n"))
            assert "\n(root)" not in f"\n{text}"


def test_names_that_are_not_utf_8_are_printed_somehow(tmp_path: Path) -> None:
    store(tmp_path / os.fsdecode(b"latin-\xe9"), array((4, 6), (4, 6), sharding((2, 3))))
    for report in REPORTS:
        done = run(report, tmp_path, PYTHONIOENCODING="utf-8:strict")  # as under most locales
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout
    done = run("map", tmp_path, PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[2] == "    ??"


def test_a_reader_that_goes_away_and_a_full_disk_are_no_traceback(tmp_path: Path) -> None:
    for case in CASES[:60]:
        write_case(case, tmp_path / case.name)
    read_end, write_end = os.pipe()
    os.close(read_end)
    full = os.open("/dev/full", os.O_WRONLY)
    for arguments, stdout in ((["refs", "--skip-encoded"], write_end), (["info"], write_end), (["map"], full)):
        done = subprocess.run(
            command(*arguments, tmp_path), env=environment(), stdout=stdout, stderr=subprocess.PIPE, text=True
        )
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr
    assert done.stderr.startswith("shardfs: ")
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1
    os.close(write_end)
    os.close(full)


class Screen(io.StringIO):
    """A terminal that keeps all that was written to it; *fd* is one of that size."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self.fileno = lambda: fd
        self.isatty = lambda: True


def test_progress_has_the_rate_of_the_last_seconds_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now, ends = [0.0], pty.openpty()
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", screen := Screen(ends[0]))
    with output.progress("copying", 2000 * 2**20, "B") as advance:
        for seconds, nbytes in [*[(1, 1)] * 100, (0.01, 9), *[(1, 10)] * 100]:  # one soon after the last line
            now[0] += seconds
            advance(nbytes * 2**20)
    with output.progress("looking", None, "shard") as advance:
        now[0] += 2
        advance(10_001)
    output.complain("done")
    monkeypatch.undo()
    for end in ends:
        os.close(end)
    shown = screen.getvalue().split("\r\x1b[K")
    assert shown[:2] == ["", f"copying  {'░' * 20} 0%  0 B of 2.0 GiB"]
    assert shown[2] == f"copying  {'░' * 18} 0%  1.0 MiB of 2.0 GiB, 1.0 MiB/s, 33 min 19 s left"
    assert shown[201] == f"copying  {'█' * 9}{'░' * 8} 55%  1.1 GiB of 2.0 GiB, 10.0 MiB/s, 1 min 29 s left"
    assert {len(line) < 80 for line in shown} == {True}
    assert shown[202:] == ["", "looking  0 shards", "looking  10,001 shards, 5,000/s", "", "shardfs: done\n"]
