"""The laws of lenses: what is not edited comes back exactly, and what is edited shows as it was written."""

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardfs.errors import NotShownError, NotUnshardable, RefusedError
from shardfs.format.document import canonical
from shardfs.format.lens import Lens
from shardfs.format.lens.v2 import V2
from shardfs.format.lens.v3 import V3, Consolidated, every_copy
from shardfs.format.metadata import parse_array
from tests.support.corpus import CASES, LITTLE, array

LENSES: dict[str, Lens] = {"unsharded": V3(), "decoded": V3(decodes=True), "v2": V2(), "decoded v2": V2(decodes=True)}
ARRAYS = [*(case.document for case in CASES), array((7, 5), (2, 3), LITTLE)]
edits = st.fixed_dictionaries(
    {},
    optional={
        "attributes": st.dictionaries(st.text(max_size=3), st.integers() | st.none() | st.text(max_size=3), max_size=2),
        "example.note": st.just({"must_understand": False, "text": "a"}),
    },
)
every_lens = pytest.mark.parametrize("lens", LENSES.values(), ids=LENSES)


@pytest.mark.slow
@every_lens
@given(stored=st.sampled_from(ARRAYS), edit=edits, growth=st.integers(0, 9))
@settings(max_examples=60)
def test_an_array_obeys_the_laws(lens: Lens, stored: dict[str, Any], edit: dict[str, Any], growth: int) -> None:
    before = parse_array(stored)
    try:
        shown = lens.get(before)
    except (NotShownError, NotUnshardable):
        return
    assume(shown is not stored)
    assert json.dumps(lens.put(before, parse_array(shown))) == json.dumps(stored)
    edited = {**shown, **edit, "shape": [n + growth for n in stored["shape"]]}
    try:
        after = parse_array(lens.put(before, parse_array(edited)))
    except RefusedError:
        assert growth  # a grid may not be made for that
        return
    assert canonical(lens.get(after)) == canonical(edited)


@pytest.mark.slow
@every_lens
@given(copies=st.dictionaries(st.sampled_from(["a", "b", "c/d", "e"]), st.sampled_from(ARRAYS), max_size=3), edit=edits)
@settings(max_examples=60)
def test_a_group_obeys_the_laws(lens: Lens, copies: dict[str, Any], edit: dict[str, Any]) -> None:
    consolidated = {"kind": "inline", "must_understand": False, "metadata": copies}
    stored = {"zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": consolidated}
    groups, nodes = Consolidated(lens), dict(every_copy(stored))
    shown = groups.get(stored)
    assert json.dumps(groups.put(stored, shown, nodes)) == json.dumps(stored)
    edited = {**shown, **edit}
    assert canonical(groups.get(groups.put(stored, edited, nodes))) == canonical(edited)
