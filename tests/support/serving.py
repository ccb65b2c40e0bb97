"""Sources served over HTTP in this process, and clients that see every byte of a reply."""

import http.client
import io
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import trio

from shardfs.dataset.hierarchy import open_source
from shardfs.serve.metrics import ServerMetrics
from shardfs.serve.options import ServeOptions
from shardfs.serve.server import Server, listen, url_of
from shardfs.serve.site import Site
from shardfs.stores.url import StoreOptions
from shardfs.vfs.all_views import Views, open_views
from tests.support.mounting import PATIENCE


class Reply(NamedTuple):
    """A reply that was read to its end."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def __getitem__(self, name: Any) -> Any:
        return self.headers[name] if isinstance(name, str) else tuple.__getitem__(self, name)


class Client:
    """One connection."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((host, port), PATIENCE)
        self._file = self.socket.makefile("rb")

    def send(self, data: bytes | str) -> None:
        self.socket.sendall(data.encode("latin-1") if isinstance(data, str) else data)

    def read(self, method: str = "GET") -> Reply:
        """Read one reply to its end; raises if it breaks off before."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self._file.readline()
            if not line:
                raise ConnectionError(f"the reply breaks off: {head!r}")
            head += line
        line, _, rest = head.partition(b"\r\n")
        status, headers = int(line.split()[1]), http.client.parse_headers(io.BytesIO(rest))
        if status == 100:
            return self.read(method)
        return Reply(status, headers, self._body(method, status, headers))

    def _body(self, method: str, status: int, headers: http.client.HTTPMessage) -> bytes:
        if method == "HEAD" or status in (204, 304):
            return b""
        if headers["Transfer-Encoding"] == "chunked":
            body = b""
            while nbytes := int(self._exactly(None), 16):
                body += self._exactly(nbytes)
                assert self._exactly(2) == b"\r\n"
            assert self._exactly(2) == b"\r\n"
            return body
        length = headers["Content-Length"]
        return self._exactly(int(length)) if length is not None else self._file.read()

    def _exactly(self, nbytes: int | None) -> bytes:
        """Read so many bytes, or a line."""
        data = self._file.readline() if nbytes is None else self._file.read(nbytes)
        if len(data) < (1 if nbytes is None else nbytes):
            raise ConnectionError(f"the reply breaks off after {len(data)} bytes of its body")
        return data

    def ask(self, target: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Reply:
        """Send a request as it stands, and read the reply; `_` in names of headers is `-`."""
        lines = [f"{method} {target} HTTP/1.1", *(f"{name.replace('_', '-')}: {headers[name]}" for name in headers)]
        if "Host" not in headers:
            lines.append("Host: localhost")
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        self.send("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))
        return self.read(method)

    def is_closed(self) -> bool:
        """Whether the server closes the connection, and says no more."""
        try:
            return self._file.read(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self._file.close()
        self.socket.close()


@dataclass
class Served:
    """A source that is served; *clients* are closed at the end."""

    port: int
    views: Views
    end: Callable[[], None]
    """Tells the server to end; it still answers what it has begun to answer."""
    clients: list[Client]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> Client:
        client = Client(self.port)
        self.clients.append(client)
        return client

    def ask(self, target: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Reply:
        """Ask over a connection of its own."""
        return self.connect().ask(target, method, body, **headers)


@contextmanager
def served(
    source: Path | str,
    *,
    store_options: StoreOptions | None = None,
    **options: Any,
) -> Iterator[Served]:
    """Serve *source* for the length of a block; *options* are those of `ServeOptions`."""
    started: queue.Queue[Any] = queue.Queue()
    chosen = ServeOptions(listen="127.0.0.1:0", **options)

    async def main() -> None:
        listeners = await listen(*chosen.address)
        async with (
            open_source(str(source), store_options, ttl=chosen.metadata_ttl) as opened,
            open_views(opened, chosen) as views,
        ):
            metrics = ServerMetrics(views, chosen, url_of(listeners[0]))
            server = Server(Site(views, chosen, metrics).answer, chosen.limits, metrics.traffic)
            port = listeners[0].socket.getsockname()[1]
            started.put((port, views, server, trio.lowlevel.current_trio_token()))
            await server.run(listeners)

    def run() -> None:
        try:
            trio.run(main)
        except BaseException as error:
            started.put(error)

    thread = threading.Thread(target=run)
    thread.start()
    first = started.get(timeout=PATIENCE)
    if isinstance(first, BaseException):
        thread.join()
        raise first
    port, views, server, token = first

    def end() -> None:
        with suppress(trio.RunFinishedError):
            trio.from_thread.run_sync(server.end, trio_token=token)

    found = Served(port, views, end, [])
    try:
        yield found
    finally:
        for client in found.clients:
            client.close()
        end()
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert started.empty(), started.get()
