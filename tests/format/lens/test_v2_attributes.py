"""Attributes of OME-Zarr 0.5 as those of 0.4, and back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfs.format.document import canonical
from shardfs.format.lens.v2_attributes import image_attributes, stored_image_attributes
from tests.support.json_values import json_values

NAMES = ["multiscales", "omero", "labels", "plate", "well", "series", "bioformats2raw.layout", "image-label"]
_members = st.dictionaries(
    st.sampled_from([*NAMES, "version", "other"]),
    json_values | st.lists(st.dictionaries(st.sampled_from(["version", "name"]), st.sampled_from(["0.4", "0.5"]))),
    max_size=4,
)
_attributes = st.builds(lambda attributes, ome: {**attributes, **({"ome": ome} if ome else {})}, _members, _members)


@pytest.mark.slow
@given(_attributes)
def test_writing_what_is_shown_changes_nothing(attributes: dict[str, Any]) -> None:
    shown = image_attributes(attributes)
    assert "ome" not in shown or not isinstance(attributes["ome"], dict)
    assert canonical(stored_image_attributes(attributes, shown)) == canonical(attributes)


@pytest.mark.slow
@given(_attributes, _members)
def test_what_is_written_is_shown_as_far_as_nothing_is_hidden(stored: dict[str, Any], written: dict[str, Any]) -> None:
    edited = stored_image_attributes(stored, written)
    again = stored_image_attributes(edited, image_attributes(edited))
    assert canonical(again) == canonical(edited)
    if "ome" not in stored:
        assert edited == written


@pytest.mark.parametrize("name", NAMES)
def test_what_version_0_4_knows_belongs_to_the_metadata(name: str) -> None:
    stored = {"ome": {"version": "0.5"}, "title": "mine"}
    assert stored_image_attributes(stored, {"title": "mine", name: {"a": 1}}) == {
        "title": "mine",
        "ome": {"version": "0.5", name: {"a": 1}},
    }


def test_the_version_is_where_version_0_4_has_it() -> None:
    metadata = {"multiscales": [{"name": "a"}], "plate": {"name": "b"}, "labels": ["c"], "omero": {"id": 1}}
    assert image_attributes({"ome": {"version": "0.5", **metadata}}) == {
        **metadata,
        "multiscales": [{"name": "a", "version": "0.4"}],
        "plate": {"name": "b", "version": "0.4"},
    }
