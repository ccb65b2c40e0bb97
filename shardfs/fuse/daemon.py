"""Starting the daemon of a mount: a fresh process, never a fork.

It reports through a pipe when it answers requests.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import shardfs.errors
from shardfs.dataset.state.directory import state_home
from shardfs.errors import FuseUnavailableError, ShardfsError, UsageError
from shardfs.service.log import open_log
from shardfs.service.process import SYSTEMD_VARIABLES

_FILE_VARIABLES: Final = (
    "AWS_CA_BUNDLE",
    "AWS_CONFIG_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_CLIENT_CERTIFICATE_PATH",
    "AZURE_CONFIG_DIR",
    "AZURE_FEDERATED_TOKEN_FILE",
    "CLOUDSDK_CONFIG",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "XDG_STATE_HOME",
)
"""Environment variables that name files the daemon reads, mostly for clients of remote stores."""


def notify_starter(ready_fd: int, outcome: str | ShardfsError | None) -> None:
    """Notify the waiting `start_daemon` that the mount answers, perhaps with a note, or why it failed."""
    error = type(outcome).__name__ if isinstance(outcome, ShardfsError) else ""
    os.write(ready_fd, json.dumps({"error": error, "text": str(outcome or "")}).encode())
    os.close(ready_fd)


def start_daemon(arguments: list[str], log_file: Path) -> str | None:
    """Run `shardfs mount` with *arguments* in the background; returns when the mount answers.

    Returns a note for the user. The log, and everything else that the process prints, is appended to *log_file*. Raises
    the error with which it failed.
    """
    try:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        log = open(open_log(log_file), "ab+")  # noqa: SIM115 - closed by the block below
    except OSError as error:
        raise UsageError(
            f"the log file {log_file} cannot be written: {error.strerror}; choose another one with --log-file, or set "
            "XDG_STATE_HOME"
        ) from None
    with log:
        before = log.tell()
        read_end, write_end = os.pipe()
        # Neither imports from the user's working directory nor keeps it busy.
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
            status = process.wait()
            log.seek(before)
            last = (log.read().decode(errors="replace").splitlines() or ["without a word"])[-1]
            if status == UsageError.exit_status:  # options from Python that only the command looks at
                raise UsageError(last.removeprefix("Error: ").removeprefix("shardfs: "))
            raise FuseUnavailableError(f"the daemon died before the mount answered: {last}; {log_file} says more")
        message = json.loads(text)
        if message["error"]:
            process.wait()
            kind = getattr(shardfs.errors, message["error"])
            details = ""
            if kind is FuseUnavailableError:  # libfuse prints the reason
                log.seek(before)
                printed = log.read()
                if unknown := re.search(rb"unknown option\(s\): `(.*)'", printed):
                    raise UsageError(f"{unknown[1].decode(errors='replace')}: libfuse has no such option")
                printed_by_fuse = re.findall(rb"^fuse.*", printed, re.MULTILINE)
                details = f" ({printed_by_fuse[-1].decode(errors='replace').strip()})" if printed_by_fuse else ""
            raise kind(message["text"] + details)
        return message["text"] or None


def default_log_file(mountpoint: str) -> Path:
    """Return the default log file of a mount, in the user's state directory."""
    name = os.fsencode(re.sub(r"[^\w.-]+", "-", mountpoint).strip("-"))[-200:].decode(errors="ignore")
    return Path(state_home(), "shardfs", name + ".log")


def _environment() -> dict[str, str]:
    """Return our environment for another working directory, without the variables of systemd."""
    files = {name: os.environ[name] for name in _FILE_VARIABLES if os.environ.get(name)}
    ours = {name: value for name, value in os.environ.items() if name not in SYSTEMD_VARIABLES}
    return ours | {name: os.path.abspath(os.path.expanduser(path)) for name, path in files.items()}
