"""Leaving things alone that somebody else was faster to change, for a while and by chance."""

import random
from collections.abc import Hashable, Iterable
from typing import Final, Generic, NamedTuple, TypeVar

import trio

_FIRST: Final = 0.02
_LONGEST: Final = 2.0
"""Seconds: for how long at most something is left alone the first time, and any time."""

_Key = TypeVar("_Key", bound=Hashable)


class _Beaten(NamedTuple):
    times: int
    again_at: float


class Backoff(Generic[_Key]):
    """Which things others were faster to change, and when each is tried again, by the event loop's clock."""

    def __init__(self) -> None:
        self._beaten: dict[_Key, _Beaten] = {}

    def note(self, key: _Key) -> None:
        """Note that somebody was faster once more: who was may have more to change."""
        times = self._beaten[key].times + 1 if key in self._beaten else 1
        delay = random.uniform(0, min(_LONGEST, _FIRST * 2**times))  # noqa: S311 - nothing is kept secret
        self._beaten[key] = _Beaten(times, trio.current_time() + delay)

    def again_at(self, key: _Key) -> float | None:
        """Return when *key* is tried again; None if nobody was faster."""
        beaten = self._beaten.get(key)
        return beaten.again_at if beaten is not None else None

    def forget(self, key: _Key) -> None:
        """Note that *key* was changed at last."""
        self._beaten.pop(key, None)

    async def wait(self, keys: Iterable[_Key]) -> None:
        """Wait until all *keys* may be tried again."""
        await trio.sleep_until(max((self._beaten[key].again_at for key in keys if key in self._beaten), default=0.0))
