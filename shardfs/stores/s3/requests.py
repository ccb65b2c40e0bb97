"""What a change of an object depends on: `Condition`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Condition:
    """What must hold for a change: the object has the ETag *etag*, or if that is None, there is no object."""

    etag: str | None
