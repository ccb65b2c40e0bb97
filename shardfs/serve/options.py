"""The options of `shardfs serve`, as given on the command line."""

import ipaddress
import os
import re
from dataclasses import dataclass, field
from typing import ClassVar

from shardfs.errors import UsageError
from shardfs.vfs.options import TreeOptions, parse_address

_MAX_TOKEN_NBYTES = 4096


@dataclass(frozen=True)
class ClientLimits:
    """What one client may take: seconds without progress, bytes, and how many connections all of them may have.

    *head_seconds* is for a whole head once it has begun, *idle_seconds* for the beginning of the next one,
    *body_seconds* and *reply_seconds* for each piece of a body, however small. Of a request's body, *body_rate* bytes
    must have come for each second that it was waited for beyond *body_seconds*. *drain_seconds* is how long requests
    may go on when the server ends.
    """

    connections: int = 1024
    head_nbytes: int = 32 * 2**10
    target_nbytes: int = 8 * 2**10
    body_nbytes: int = 2**30
    head_seconds: float = 20.0
    idle_seconds: float = 120.0
    body_seconds: float = 30.0
    body_rate: float = 1024.0
    reply_seconds: float = 60.0
    drain_seconds: float = 30.0


@dataclass(frozen=True)
class ServeOptions(TreeOptions):
    """The options of `shardfs serve`: those of `TreeOptions`, and those of a server.

    It listens at *listen*, ADDRESS:PORT. Pages of the origins *cors* may read what it serves; "*" is all of them. Who
    asks must have the *token*, if there is one.

    Raises `UsageError` for options that contradict each other, and if everybody could write.
    """

    shows_every_view: ClassVar[bool] = True

    listen: str = "127.0.0.1:8000"
    cors: tuple[str, ...] = ("*",)
    token: str | None = field(default=None, repr=False)
    limits: ClientLimits = ClientLimits()

    def __post_init__(self) -> None:
        super().__post_init__()
        host, _ = self.address
        if self.write and self.token is None and not is_loopback(host):
            raise UsageError(
                f"with --write, everybody who reaches {host} could write: add --token-file, or listen on 127.0.0.1"
            )
        for origin in self.cors:
            if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
                raise UsageError(f"--cors takes an origin, such as https://example.org, or *, and not {origin!r}")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return parse_address("--listen", self.listen)


def is_loopback(host: str) -> bool:
    """Whether *host*, a name or an address, is this machine, as nobody else reaches it."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost" or host.lower().rstrip(".").endswith(".localhost")


def read_token(path: str) -> str:
    """Return the token in the file at *path*, without white space around it; raises `UsageError` if it has none."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o007:
                raise UsageError(f"everybody may read {path}, and so knows the token: chmod 600")
            token = file.read(_MAX_TOKEN_NBYTES + 1).strip()
    except OSError as error:
        raise UsageError(f"--token-file {path} cannot be read: {error.strerror}") from None
    if not re.fullmatch(rb"[A-Za-z0-9._~+/-]{16,%d}=*" % _MAX_TOKEN_NBYTES, token):
        raise UsageError(
            f"--token-file {path} must hold at least 16 letters and digits, or any of ._~+/- ; "
            "`openssl rand -hex 32` prints such a token"
        )
    return token.decode()
