"""Daemons that are as patient with S3 servers as a test can wait for: what hangs is given up after a moment.

Nothing in shardfs lets a user choose how patient it is, so the interpreter is told when it starts.
"""

from __future__ import annotations

import os
from pathlib import Path

_TOP = Path(__file__).parents[2]
_CUSTOM = """\
from shardfs.stores.s3 import probe
from shardfs.stores.s3.client import Backoff, S3Client
from shardfs.stores.s3.session import Timeouts

S3Client.__init__.__kwdefaults__.update(
    timeouts=Timeouts(connect={silence}, silence={silence}, work={silence}),
    backoff=Backoff(first={pause}, most={pause}),
)
probe._PATIENCE = {first}
"""


def hasty(directory: Path, *, silence: float = 1.0, pause: float = 0.01, first: float = 15.0) -> dict[str, str]:
    """Variables for processes that give a silent server up after *silence* seconds, and hardly wait to try again.

    A source that says nothing to begin with is given up after *first* seconds.
    """
    place = directory / "hasty"
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(_CUSTOM.format(silence=silence, pause=pause, first=first))
    return {"PYTHONPATH": os.pathsep.join([str(place), str(_TOP)])}
