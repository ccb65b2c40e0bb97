"""The ceiling of a server in Python: Hypercorn on trio answers every request with the same bytes.

Arguments: the port, and how many bytes.
"""

from __future__ import annotations

import sys
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve

PORT, NBYTES = map(int, sys.argv[1:])
BODY = bytes(NBYTES)
HEADERS = [(b"content-length", str(NBYTES).encode())]


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Answer a request; an application of ASGI."""
    while scope["type"] == "lifespan":
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})


async def _main() -> None:
    config = Config()
    config.bind = [f"127.0.0.1:{PORT}"]
    config.accesslog = config.errorlog = None
    await serve(answer, config, shutdown_trigger=trio.sleep_forever)


trio.run(_main)
