"""tests/README.md says on one page what the helpers of the tests are, and names nothing that is not there."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = (TESTS / "README.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (`.*?) \| `(.*?\.py)` \|", re.MULTILINE)


def test_every_helper_that_is_named_is_where_the_page_says() -> None:
    rows = ROW.findall(PAGE)
    assert len(rows) > 15
    for names, file in rows:
        text = (TESTS / "support" / file).read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+)", names):
            assert re.search(rf"^(class|(async )?def) {name}\b|^{name}\b.* = ", text, re.MULTILINE), (name, file)


def test_it_is_one_page() -> None:
    assert len(PAGE.splitlines()) <= 60
