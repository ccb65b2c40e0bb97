"""Fixtures for tests on real mounts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.corpus import CASES, write_case
from tests.support.datasets import Corpus
from tests.support.mounting import Mounter, mounter


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mounter]:
    """`mount(source, **options)` mounts for the length of one test."""
    with mounter(tmp_path) as mount:
        yield mount


@pytest.fixture(scope="module")
def module_mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounter]:
    """The same for the length of a module."""
    with mounter(tmp_path_factory.mktemp("mounts")) as mount:
        yield mount


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corpus]:
    """Every array of the corpus in one directory, mounted once."""
    source = tmp_path_factory.mktemp("corpus")
    encoded = {case.name: write_case(case, source / case.name) for case in CASES}
    with mounter(tmp_path_factory.mktemp("mounts")) as mount:
        yield Corpus(mount(source), encoded)
