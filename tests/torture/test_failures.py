"""What the torture says of a failure."""

import json
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path

import pytest

from tests.torture import __main__ as torture
from tests.torture.history import WrongError
from tests.torture.worker import Notes


@pytest.mark.parametrize("call", ["os.open", "os.pwrite"])
def test_a_note_of_a_failed_call_says_which_it_was_and_why(tmp_path: Path, call: str) -> None:
    receiver, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = tmp_path / "missing"
    with receiver, sender:
        try:
            if call == "os.pwrite":
                os.pwrite(sender.fileno(), b"x", 0)
            else:
                os.open(path, os.O_RDONLY)
        except OSError as error:
            Notes(sender, "w1").broken(error)
        kind, process, why = json.loads(receiver.recv(2**16))
    assert (kind, process) == ("broken", "w1")
    assert call in why
    assert ("ESPIPE" if call == "os.pwrite" else "ENOENT") in why


class Failing:
    """A life in which something is wrong."""

    arguments = ("--view=v2", "--page-cache")

    def __init__(self, directory: Path, *_: object) -> None:
        (directory / "disk/source").mkdir()

    def live(self, *_: object) -> None:
        raise WrongError("w1 failed: ESTALE\n  1 the story")


def test_the_output_ends_with_a_line_for_each_failure_and_the_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torture, "Life", Failing)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["torture", "--seed=7", "--lives=2"])
    assert torture.main() == 1
    *failures, counts = capsys.readouterr().out.splitlines()[-3:]
    what = "--on directory, mounted with --view=v2 --page-cache: w1 failed: ESTALE"
    assert failures == [f"FAILED: --seed {seed} {what}" for seed in (7, 8)]
    assert counts.startswith("torture: ")
    assert counts.endswith("; 2 failed")
