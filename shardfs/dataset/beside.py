"""What a commit has to know of the other sessions of its source, alive and dead."""

from collections.abc import Awaitable, Callable
from typing import Protocol

Judge = Callable[[], Awaitable[bool | None]]
"""Returns whether a change still fits what is stored; None if what it leads to is stored already."""


class Others(Protocol):
    """The other sessions of a source, of which *nlive* were alive when that was last looked at."""

    nlive: int

    async def take_over(self) -> None:
        """Take over what sessions left that died; called without any lock."""

    async def have_pending(self) -> bool:
        """Whether one of them may have published changes that are not committed."""

    def require_none_pending(self) -> None:
        """Raise `ConflictError` if they have; blocks."""
