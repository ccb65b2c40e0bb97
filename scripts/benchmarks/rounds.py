"""Rounds: every subject is measured once per round, in another order each time, so that noise hits all alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TypeVar

Result = TypeVar("Result")


def interleave(
    subjects: Iterable[str], rounds: int, measure: Callable[[str, random.Random], Result]
) -> dict[str, list[Result]]:
    """Measure every subject in every round.

    All subjects of a round get the same random numbers, hence the same order of chunks.
    """
    names = list(subjects)
    results: dict[str, list[Result]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in random.Random(turn).sample(names, len(names)):
            results[name].append(measure(name, random.Random(turn)))
    return results
