"""Starting the daemon of a mount: a fresh process, never a fork, that tells through a pipe when it answers."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import shardfs.errors
from shardfs.dataset.slots import state_home
from shardfs.errors import FuseUnavailableError, ShardfsError, UsageError
from shardfs.fuse.figures import SYSTEMD_VARIABLES

_FILE_VARIABLES: Final = (
    "AWS_CA_BUNDLE",
    "AWS_CONFIG_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "XDG_STATE_HOME",
)
"""Variables of the environment that name files, which the daemon reads: clients of a remote store do, above all."""


def tell_starter(ready_fd: int, outcome: str | ShardfsError | None) -> None:
    """Tell who waits in `start_daemon` that the mount answers, with a note if there is one, or why it never will."""
    error = type(outcome).__name__ if isinstance(outcome, ShardfsError) else ""
    os.write(ready_fd, json.dumps({"error": error, "text": str(outcome or "")}).encode())
    os.close(ready_fd)


def start_daemon(arguments: list[str], log_file: Path) -> str | None:
    """Run `shardfs mount` with *arguments* in the background; return when the mount answers.

    Returns what there is to say to the user.  The log, and what else the process prints, goes to the end of
    *log_file*.  Raises the error that it died of.
    """
    try:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        log = log_file.open("ab+")
    except OSError as error:
        raise UsageError(
            f"the log file {log_file} cannot be written: {error.strerror}; choose another one with --log-file, or set "
            "XDG_STATE_HOME"
        ) from None
    with log:
        before = log.tell()
        read_end, write_end = os.pipe()
        # Neither runs nor holds what lies in the user's working directory.
        command = [sys.executable, "-P", "-m", "shardfs"]
        process = subprocess.Popen(  # noqa: S603 - our own interpreter, no shell
            [*command, "mount", *arguments, f"--log-file={log_file}", "--foreground", f"--ready-fd={write_end}"],
            cwd="/",
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[write_end],
            start_new_session=True,
        )
        os.close(write_end)
        with open(read_end, "rb") as answer:
            text = answer.read()
        if not text:
            process.wait()
            log.seek(before)
            last = (log.read().decode(errors="replace").splitlines() or ["without a word"])[-1]
            raise FuseUnavailableError(f"the daemon died before the mount answered: {last}; {log_file} says more")
        message = json.loads(text)
        if message["error"]:
            process.wait()
            kind = getattr(shardfs.errors, message["error"])
            details = ""
            if kind is FuseUnavailableError:  # libfuse prints what it has against it
                log.seek(before)
                printed = log.read()
                if unknown := re.search(rb"unknown option\(s\): `(.*)'", printed):
                    raise UsageError(f"{unknown[1].decode(errors='replace')}: libfuse has no such option")
                said = re.findall(rb"^fuse.*", printed, re.MULTILINE)
                details = f" ({said[-1].decode(errors='replace').strip()})" if said else ""
            raise kind(message["text"] + details)
        return message["text"] or None


def default_log_file(mountpoint: str) -> Path:
    """Return where the log of a mount goes if nothing else is said: in the user's state directory."""
    name = os.fsencode(re.sub(r"[^\w.-]+", "-", mountpoint).strip("-"))[-200:].decode(errors="ignore")
    return Path(state_home(), "shardfs", name + ".log")


def _environment() -> dict[str, str]:
    """Return our environment as it is good in another working directory, and for who does not speak to systemd."""
    files = {name: os.environ[name] for name in _FILE_VARIABLES if os.environ.get(name)}
    ours = {name: value for name, value in os.environ.items() if name not in SYSTEMD_VARIABLES}
    return ours | {name: os.path.abspath(os.path.expanduser(path)) for name, path in files.items()}
