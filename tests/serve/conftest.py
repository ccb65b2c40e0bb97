"""A server of the source that a test module makes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.serving import Served, served


@pytest.fixture
def site(source: Path) -> Iterator[Served]:
    with served(source) as site:
        yield site
