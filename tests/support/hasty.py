"""Daemons that are as patient with S3 servers as a test can wait for: what hangs is given up after a moment."""

from __future__ import annotations


def hasty(*, silence: float = 1.0, pause: float = 0.01, first: float = 15.0) -> dict[str, str]:
    """Variables for processes that give a silent server up after *silence* seconds, and hardly wait to try again.

    A source that says nothing to begin with is given up after *first* seconds.
    """
    return {"TEST_HASTE": f"{silence} {pause} {first}"}
