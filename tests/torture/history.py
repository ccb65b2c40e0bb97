"""What may be found under a name, told from the notes of processes that worked at the same time.

A change gives a name its content at some moment between its beginning and its end. So a change may be the latest one
unless another, that counts, began after it had ended. Which ones count depends on who asks: for a reader those that
had ended before it began, after a kill all that ended, and after a power cut those that are durable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from tests.torture.geometry import ABSENT, BROKEN, PRESENT


class WrongError(Exception):
    """Something was found that must not be; it says what, with the notes on the names."""


@dataclass(eq=False)
class Change:
    """A name gets a content, at some moment until *end*; what does not change as a *whole* may be found torn."""

    path: str
    token: str
    begin: int
    what: str
    whole: bool = True
    end: int | None = None
    is_done: bool = False
    """Whether it returned: what is killed meanwhile may be done or not."""
    is_durable: bool = False

    def is_before(self, other: Change) -> bool:
        return self.end is not None and self.end < other.begin


@dataclass
class Operation:
    """What a process is doing; it makes durable what ended before it, of the names that it *syncs*."""

    what: str
    begin: int
    changes: list[Change]
    syncs: frozenset[str]


@dataclass
class History:
    """All changes that may still matter, by name, and the notes on them."""

    changes: dict[str, list[Change]] = field(default_factory=dict)
    running: dict[str, Operation] = field(default_factory=dict)
    notes: list[tuple[int, str, frozenset[str]]] = field(default_factory=list)
    now: int = 0

    def start(self, contents: Mapping[str, str]) -> None:
        """Begin with what is stored."""
        for path, token in contents.items():
            self.changes[path] = [
                Change(path, token, self.now, "at first", end=self.now, is_done=True, is_durable=True)
            ]

    # What processes note

    def begin(
        self,
        process: str,
        what: str,
        contents: Mapping[str, str],
        *,
        whole: bool = True,
        syncs: bool = False,
        scope: Iterable[str] | None = None,
    ) -> None:
        """A process begins an operation that gives names these contents.

        One that *syncs* makes durable what ended before it, of the names in *scope*, or of all.
        """
        synced = frozenset(self.changes if scope is None else scope) if syncs else frozenset()
        self._note(f"{process} begins: {what}{_described(contents)}", synced | frozenset(contents))
        changes = [Change(path, token, self.now, what, whole) for path, token in contents.items()]
        for change in changes:
            self.changes[change.path].append(change)
        self.running[process] = Operation(what, self.now, changes, synced)

    def end(self, process: str, *, durable: bool = False) -> None:
        """It has done so; *durable* tells that this is."""
        operation = self.running.pop(process)
        names = operation.syncs | {change.path for change in operation.changes}
        self._note(f"{process} has done: {operation.what}", names)
        for change in operation.changes:
            change.end, change.is_done, change.is_durable = self.now, True, durable
        for path in operation.syncs:
            for change in self.changes[path]:
                if change.whole and change.is_done and (change.end or 0) < operation.begin:
                    change.is_durable = True

    def has_read(self, process: str, found: Mapping[str, str]) -> None:
        """It changed nothing, and found this under some names; raises `WrongError` if that cannot be."""
        operation = self.running.pop(process)
        self._note(f"{process} ends: {operation.what}{_described(found)}", found)
        for change in operation.changes:
            self.changes[change.path].remove(change)
        for path, token in found.items():
            counted = [c for c in self.changes[path] if c.is_done and (c.end or 0) < operation.begin]
            self._check(path, token, self._latest(path, counted), f"{process}, {operation.what}")

    def check_exclusive(self, path: str) -> None:
        """Raise `WrongError` if two processes created a name that was not removed between."""
        creations = [c for c in self.changes[path] if "O_EXCL" in c.what and c.is_done]
        creations.sort(key=lambda change: change.end or 0)
        removals = [change for change in self.changes[path] if change.token == ABSENT]

        def can_follow(first: Change, second: Change) -> bool:
            return any(not (removal.is_before(first) or second.is_before(removal)) for removal in removals)

        for first, second in pairwise(creations):
            # Of two that overlap, the one that ended later may have been made first.
            if not can_follow(first, second) and (first.is_before(second) or not can_follow(second, first)):
                raise WrongError(f"{path} was created twice exclusively\n{self.story([path])}")

    def stop(self, why: str, *, cut: bool = False) -> None:
        """All that is being done ends now, done or not; after a power *cut* so is all that was not durable."""
        self._note(why, self.changes)
        for changes in self.changes.values():
            for change in changes:
                change.end = self.now if change.end is None else change.end
                change.is_done = change.is_durable if cut else change.is_done
        self.running.clear()

    def forget(self) -> None:
        """Forget what does not matter any more, if nothing is killed, and no power cut, from now on."""
        oldest = min((operation.begin for operation in self.running.values()), default=self.now)
        for path, changes in self.changes.items():
            self.changes[path] = self._latest(path, [c for c in changes if c.is_done and (c.end or 0) < oldest])
        first = min(change.begin for changes in self.changes.values() for change in changes)
        del self.notes[: max(0, first - self.notes[0][0]) if self.notes else 0]

    # What is found

    def survived(self, path: str) -> set[str] | None:
        """Contents that may be found after the end of all that was done; None if any may be."""
        latest = self._latest(path, [change for change in self.changes[path] if change.is_done])
        if any(not change.whole and not change.is_done for change in latest):
            return None
        return {change.token for change in latest}

    def settle(self, found: Mapping[str, str], *, cut: bool) -> None:
        """Check what was found after a kill or a power *cut*, and go on from there; raises `WrongError`."""
        for path, token in found.items():
            allowed = self.survived(path)
            if allowed is not None and not _is_one(token, allowed):
                names = ", ".join(sorted(name or "absent" for name in allowed))
                raise WrongError(f"{path} is {token or 'absent'}, not one of {names}\n{self.story([path])}")
            if token == BROKEN and allowed is not None:
                broken = [name for name in allowed if name.startswith(BROKEN)]
                if len(broken) > 1:
                    continue  # this view does not tell which one it is
                token = broken[0]
            self._note(f"{path} is {token or 'absent'}", [path])
            earlier = self._latest(path, [c for c in self.changes[path] if c.is_durable])  # if power is cut later
            whole = all(change.whole for change in self.changes[path])
            settled = Change(path, token, self.now, "found", whole, end=self.now, is_done=True, is_durable=cut)
            self.changes[path] = [settled] if cut else [*earlier, settled]

    def story(self, paths: Iterable[str]) -> str:
        """The notes on some names, from the oldest that matters, and on what made all names durable."""
        wanted = frozenset(paths)
        first = min((change.begin for path in wanted for change in self.changes[path]), default=0)
        lines = [f"  {number:6} {text}" for number, text, names in self.notes if number >= first and names & wanted]
        return "\n".join(lines)

    def _latest(self, path: str, counted: Iterable[Change]) -> list[Change]:
        counted = list(counted)
        return [c for c in self.changes[path] if not any(c.is_before(other) for other in counted)]

    def _check(self, path: str, token: str, latest: list[Change], who: str) -> None:
        if any(not change.whole and not change.is_done for change in latest):
            return
        allowed = {change.token for change in latest}
        if _is_one(token, allowed):
            return
        names = ", ".join(sorted(name or "absent" for name in allowed))
        raise WrongError(f"{who} found {path} {token or 'absent'}, not one of {names}\n{self.story([path])}")

    def _note(self, text: str, paths: Iterable[str]) -> None:
        self.now += 1
        self.notes.append((self.now, text, frozenset(paths)))


def _described(contents: Mapping[str, str]) -> str:
    tokens = sorted({token or "absent" for token in contents.values()})
    return f" ({', '.join(tokens)})" if contents else ""


def _is_one(token: str, allowed: set[str]) -> bool:
    """Whether what was found is one of *allowed*, as far as it tells."""
    if token == PRESENT:
        return allowed != {ABSENT}
    if token == BROKEN:
        return any(name.startswith(BROKEN) for name in allowed)
    return token in allowed or (token.startswith(BROKEN) and BROKEN in allowed)
