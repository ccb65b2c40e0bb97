"""The corpus as test parameters."""

import pytest

from tests.support.corpus import CASES

every_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
