"""Many cases in few tests: a test goes through all cases of one kind, and names the one that fails."""

import functools
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support.corpus import CASES, Case

Test = Callable[..., None]


def each(argument: str, values: Iterable[Any], name: Callable[[Any], str]) -> Callable[[Test], Test]:
    """Run a test for each of *values*; those whose *name* begins with the same word are one test.

    Each has a `tmp_path` of its own, if the test takes one.
    """
    kinds: dict[str, list[Any]] = {}
    for value in values:
        kinds.setdefault(name(value).partition("-")[0], []).append(value)

    def decorate(test: Test) -> Test:
        def run(_kind: str, **others: Any) -> None:
            for number, value in enumerate(kinds[_kind]):
                arguments = others | {argument: value}
                if "tmp_path" in others:
                    arguments["tmp_path"] = _made(others["tmp_path"] / str(number))
                try:
                    test(**arguments)
                except BaseException as error:
                    error.add_note(f"{argument}: {name(value)}")
                    raise

        functools.update_wrapper(run, test)
        signature = inspect.signature(test)
        renamed = [p.replace(name="_kind") if p.name == argument else p for p in signature.parameters.values()]
        run.__signature__ = signature.replace(parameters=renamed)  # type: ignore[attr-defined]
        marked: Test = pytest.mark.parametrize("_kind", kinds)(run)
        return marked

    return decorate


def _made(path: Path) -> Path:
    path.mkdir()
    return path


def every_case(test: Test) -> Test:
    """Run a test for every case of the corpus."""
    return each_case(CASES)(test)


def each_case(cases: Iterable[Case]) -> Callable[[Test], Test]:
    """Run a test for each of some cases."""
    return each("case", cases, lambda case: case.name)
