"""Values through the mount, by readers that never heard of sharding as far as they can tell."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.corpus import CASES, Case, write_case
from tests.support.datasets import Corpus
from tests.support.mounting import Mounter
from tests.support.parametrize import every_case
from tests.support.readers import READERS, assert_same, read_zarr

UNKNOWN_CODECS = {"opaque-codec", "zero-bytes", "opaque-serializer"}
"""Inner codecs that no reader has; the mount carries their bytes."""

REFUSED = {
    "zarr": UNKNOWN_CODECS,
    "tensorstore": UNKNOWN_CODECS | {"type-datetime64", "type-string", "dimension-names-repeated"},
}
"""What a reader would not read unsharded either: sharding is in none of these reasons."""


@every_case
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_sees_the_values_bit_for_bit(corpus: Corpus, case: Case, reader: str) -> None:
    if case.name in REFUSED[reader]:
        with pytest.raises((ValueError, TypeError, KeyError)):
            READERS[reader](corpus.path(case))
    else:
        assert_same(READERS[reader](corpus.path(case)), corpus.encoded[case.name].values)


def write_group(path: Path, members: dict[str, Any], **attributes: Any) -> None:
    inline = {"kind": "inline", "must_understand": False, "metadata": members}
    group = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    path.write_text(json.dumps(group | ({"consolidated_metadata": inline} if members else {})))


def test_consolidated_copies_say_what_the_arrays_documents_say(mount: Mounter, tmp_path: Path) -> None:
    """Nested groups with the corpus, consolidated in the root and in one group below it."""
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    below: dict[str, Any] = {"inner": group}
    for number, case in enumerate(case for case in CASES if case.name not in UNKNOWN_CODECS):
        name = f"inner/{case.name}" if number % 2 else case.name
        write_case(case, tmp_path / "source/outer" / name)
        below[name] = case.document
    write_group(tmp_path / "source/outer/inner/zarr.json", {})
    write_group(tmp_path / "source/outer/zarr.json", below)
    copies = {"outer": group, **{f"outer/{name}": document for name, document in below.items()}}
    write_group(tmp_path / "source/zarr.json", copies, title="kept")
    shown = mount(tmp_path / "source").path
    for start in ("", "outer"):
        consolidated = json.loads((shown / start / "zarr.json").read_text())["consolidated_metadata"]
        assert (consolidated["kind"], consolidated["must_understand"]) == ("inline", False)
        for path, copy in consolidated["metadata"].items():
            if copy["node_type"] == "array":
                assert copy == json.loads((shown / start / path / "zarr.json").read_text())
    assert json.loads((shown / "zarr.json").read_text())["attributes"] == {"title": "kept"}


SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"


@pytest.mark.skipif(not SAMPLES.is_dir(), reason=f"the samples are not at {SAMPLES}")
def test_arrays_of_other_software_read_as_natively(mount: Mounter) -> None:
    sharded = [path for path in SAMPLES.rglob("zarr.json") if "sharding" in path.read_text()]
    assert len(sharded) == 17
    shown = mount(SAMPLES).path
    for path in (each.relative_to(SAMPLES) for each in sharded):
        assert "sharding_indexed" not in json.dumps(json.loads((shown / path).read_text())["codecs"])
        for read in READERS.values():
            assert_same(read(shown / path.parent), read_zarr(SAMPLES / path.parent))
