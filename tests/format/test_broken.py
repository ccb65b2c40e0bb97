"""Documents that are shown as stored: each has a reason, and none is taken for what it is not."""

import json

import pytest

from shardfs.errors import MetadataError, NotUnshardable
from shardfs.format.lens.unsharded import describe
from shardfs.format.metadata import ArrayMetadata, parse_document
from tests.support.corpus import BROKEN, Broken
from tests.support.parametrize import each

every_broken = each("broken", BROKEN, lambda broken: broken.name)


def reason(broken: Broken) -> str:
    try:
        array = parse_document(json.dumps(broken.document).encode())
        assert isinstance(array, ArrayMetadata)
        describe(array)
    except (MetadataError, NotUnshardable) as error:
        return str(error)
    pytest.fail(f"this is taken for a sound array, though {broken.why}")


@every_broken
def test_a_broken_document_has_a_reason(broken: Broken) -> None:
    text = reason(broken)
    assert 10 < len(text) < 200
    assert text.isprintable()
