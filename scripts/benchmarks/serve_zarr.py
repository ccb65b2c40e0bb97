"""zarr-http-server over a directory; for the environment that `scripts/bench` makes for it.

Arguments: the port, and the directory.
"""

from __future__ import annotations

import sys

from zarr.storage import LocalStore
from zarr_http_server import serve, store_app

serve(
    store_app(LocalStore(sys.argv[2], read_only=True)),
    port=int(sys.argv[1]),
    uvicorn_options={"log_level": "critical", "access_log": False},
)
