"""What `shardfs doctor` finds."""

from dataclasses import dataclass
from typing import Literal

from shardfs.errors import ShardfsError


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """A finding: a *problem* must be solved, and *way_out* says how; a *note* matters to some users only."""

    kind: Literal["ok", "note", "problem"]
    what: str
    way_out: str = ""


def failure(error: ShardfsError) -> DoctorFinding:
    """Return the problem that an error is."""
    what, _, way_out = str(error).partition("; ")
    return DoctorFinding("problem", what, way_out or "check how SOURCE is written, and who may read it")
