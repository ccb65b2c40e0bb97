"""docs/maintain/promises.md makes no statement without a test that exists; docs/semantics.md is one page."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent
TEXT = (TOP / "docs/maintain/promises.md").read_text(encoding="utf-8")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
STATEMENTS = re.findall(r"^- .*?(?=^- |^#|\Z)", TEXT, re.MULTILINE | re.DOTALL)


@cache
def functions_of(path: str) -> set[str]:
    """Names of the test functions of a file."""
    tree = ast.parse((TOP / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.slow
def test_every_test_that_is_named_exists() -> None:
    named = TEST.findall(TEXT)
    assert len(named) > 80
    missing = [f"{path}::{name}" for path, name in named if not (TOP / path).exists() or name not in functions_of(path)]
    assert missing == []


def test_every_statement_names_a_test() -> None:
    assert len(STATEMENTS) > 45
    for statement in STATEMENTS:
        assert TEST.search(statement), statement


def test_every_name_of_a_test_is_understood() -> None:
    """A misspelt reference must not go unnoticed."""
    assert TEXT.count("::") == len(TEST.findall(TEXT))
    assert set(re.findall(r"`tests/[^`]*`", TEXT)) == {"`tests/test_semantics.py`"} | {
        f"`{path}::{name}`" for path, name in TEST.findall(TEXT)
    }


def test_every_section_has_statements_and_lines_are_short() -> None:
    for section in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]:
        assert "\n- " in section
    for line in TEXT.splitlines():
        assert len(line) <= 120


def test_promises_are_few_and_present_behaviour_is_apart() -> None:
    """What a user relies on fits on a few pages; all else may change, and is said to."""
    promises, behaviour = re.split(r"^# Present behaviour$", TEXT, flags=re.MULTILINE)
    prose = re.sub(r"^\s*`tests/.*$|^#.*$|^\|.*$", "", promises, flags=re.MULTILINE)
    assert len(re.findall(r"\.(?=\s|$)", prose)) <= 250
    assert len(re.findall(r"^- ", behaviour, re.MULTILINE)) > 80


def test_users_get_one_page_without_names_of_tests() -> None:
    page = (TOP / "docs/semantics.md").read_text(encoding="utf-8")
    assert "tests/" not in page
    assert len(re.findall(r"\w+", page)) <= 1250
