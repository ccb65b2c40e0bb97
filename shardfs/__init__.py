"""shardfs shows the inner chunks of sharded Zarr arrays as ordinary files.

`shardfs.open(source)` reads and writes without FUSE; `shardfs.mount(source)` mounts, for a block or longer.
`shardfs.pack` and `shardfs.unpack` bring whole datasets into shards, and out of them; `info`, `verify`, `compact` and
`refs` do what the commands do. `StoreOptions` say how to reach a remote source.

The packages: `cli` and `api` at the top, then `serve`, `fuse` and `bulk`, `vfs`, `dataset`, `formats`, and at the
bottom `format` and `stores`, which do not know each other. Nothing imports upward; `errors` is for all.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shardfs.version import __version__

if TYPE_CHECKING:
    from shardfs.api.dataset import Dataset as open  # noqa: N813 - `shardfs.open` reads as it should
    from shardfs.api.functions import compact, info, pack, refs, unpack, verify
    from shardfs.api.mount import Mount as mount  # noqa: N813
    from shardfs.bulk.run import RunReport
    from shardfs.stores.url import StoreOptions

__all__ = [
    "RunReport", "StoreOptions", "__version__",
    "compact", "info", "mount", "open", "pack", "refs", "unpack", "verify",
]  # fmt: skip
_MODULES = {
    "RunReport": "bulk.run:RunReport",
    "StoreOptions": "stores.url:StoreOptions",
    "mount": "api.mount:Mount",
    "open": "api.dataset:Dataset",
} | {name: f"api.functions:{name}" for name in ("compact", "info", "pack", "refs", "unpack", "verify")}
"""Where the Python interface is."""


def __dir__() -> list[str]:
    """Name the Python interface too, before it is loaded."""
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # a type checker is to know every name

    def __getattr__(name: str) -> Any:  # noqa: ANN401 - what the module defines
        """Load the Python interface when it is first asked for, so that a command starts without it."""
        if name in _MODULES:
            module, _, found = _MODULES[name].partition(":")
            return getattr(import_module(f"shardfs.{module}"), found)
        raise AttributeError(f"module 'shardfs' has no attribute {name!r}")
