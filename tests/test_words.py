"""Words that shardfs no longer uses for something, as the field has another one, do not come back."""

import re
from pathlib import Path

TOP = Path(__file__).parent.parent
FILES = [path for pattern in ("shardfs/**/*.py", "docs/**/*.md", "README.md") for path in sorted(TOP.glob(pattern))]
RETIRED = {
    r"(?<!<)(?<!/)\bfigures?\b": "metrics, or numbers",
    r"\bpassing (error|failure|reason)s?\b": "transient errors",
    r"\bprograms of others\b": "third-party programs",
    r"\bleft out\b": "skipped, or missing",
    r"\brights\b": "permissions, or ownership",
    r"\bno room\b": "no space",
    r"\b(Place|Rights|Figures)\b": "a name with a term of the field",
    r"\bseams\b": "extension points",
}


def test_retired_words_are_gone_from_code_and_docs() -> None:
    assert len(FILES) > 200
    found = [
        f"{path.relative_to(TOP)}:{number}: {match[0]}: {better}"
        for path in FILES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for word, better in RETIRED.items()
        if (match := re.search(word, line)) is not None
    ]
    assert found == []
