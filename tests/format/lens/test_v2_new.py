"""Arrays and groups that a program writes as Zarr v2: the Zarr v3 documents that they are stored as, or why not."""

import json
from typing import Any

import pytest

from shardfs.errors import NotUnshardable, RefusedError
from shardfs.format.lens.unsharded import describe, shard_new
from shardfs.format.lens.v2 import array_documents, edit_array, new_array
from shardfs.format.metadata import parse_array
from tests.support.corpus import LITTLE, extension, transpose

NEW: dict[str, Any] = {
    "chunks": [4, 6],
    "compressor": None,
    "dimension_separator": ".",
    "dtype": "<u2",
    "fill_value": None,
    "filters": None,
    "order": "C",
    "shape": [7, 11],
    "zarr_format": 2,
}


STRUCT = extension("structured", fields=[["a", "int16"], ["b", extension("raw_bytes", length_bytes=1)]])


def text(document: Any) -> bytes:
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("members", "codecs"),
    [
        ({"order": "F"}, [transpose(1, 0), LITTLE]),
        ({"order": "F", "chunks": [1, 6]}, [LITTLE]),
        ({"dtype": "|u1"}, [{"name": "bytes"}]),
        ({"compressor": {"id": "zstd", "level": 1}}, [LITTLE, extension("zstd", level=1, checksum=False)]),
        ({"compressor": {"id": "zstd", "checksum": True}}, [LITTLE, extension("zstd", level=0, checksum=True)]),
        (
            {"compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}},
            [LITTLE, extension("blosc", typesize=2, cname="lz4", clevel=5, shuffle="shuffle", blocksize=0)],
        ),
        (
            {"dtype": "|i1", "compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": -1}},
            [
                {"name": "bytes"},
                extension("blosc", typesize=1, cname="lz4", clevel=5, shuffle="bitshuffle", blocksize=0),
            ],
        ),
        ({"compressor": {"id": "crc32c"}}, [LITTLE, {"name": "crc32c"}]),
        ({"filters": [{"id": "delta", "dtype": "<u2"}]}, [extension("numcodecs.delta", dtype="<u2"), LITTLE]),
        (
            {"compressor": {"id": "crc32c", "location": "start"}},
            [LITTLE, extension("numcodecs.crc32c", location="start")],
        ),
    ],
)
def test_a_new_array_has_codecs_that_give_the_same_bytes(members: dict[str, Any], codecs: list[Any]) -> None:
    assert new_array(text({**NEW, **members}), None, ".").document["codecs"] == codecs


@pytest.mark.parametrize(
    ("dtype", "fill_value", "data_type", "expected"),
    [
        ("|b1", None, "bool", False),
        ("<f8", None, "float64", 0.0),
        (">c8", "NaN", "complex64", ["NaN", 0.0]),
        ("<M8[10ns]", None, extension("numpy.datetime64", unit="ns", scale_factor=10), "NaT"),
        ("<U2", 0, extension("fixed_length_utf32", length_bytes=8), "0"),
        ("|S2", 0, extension("null_terminated_bytes", length_bytes=2), "MAA="),
        ("|S2", "YQ==", extension("null_terminated_bytes", length_bytes=2), "YQA="),
        ("|V2", 0, extension("raw_bytes", length_bytes=2), "AAA="),
        ([["a", "<i2"], ["b", "|V1"]], None, STRUCT, "AAAA"),
    ],
)
def test_a_new_array_has_the_data_type_and_the_fill_value(
    dtype: Any, fill_value: Any, data_type: Any, expected: Any
) -> None:
    document = new_array(text({**NEW, "dtype": dtype, "fill_value": fill_value}), None, ".").document
    assert text((document["data_type"], document["fill_value"])) == text((data_type, expected))


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"chunks": [0, 6]}, "chunks of length 0"),
        ({"dtype": "<f16"}, "<f16"),
        ({"dtype": "|V0"}, "|V0"),
        ({"dtype": "|V9999999"}, "9999999 bytes"),
        ({"dtype": "<U536870911"}, "2147483644 bytes"),  # which are not asked for to find that out
        ({"dtype": "|O"}, "objects"),
        ({"dtype": "|O", "filters": [{"id": "pickle"}]}, "'pickle'"),
        ({"dtype": [["a", "<i2", [2]]]}, "field 'a'"),
        ({"dtype": [["a", ">i2"]]}, "field 'a'"),
        ({"dtype": "<i2", "fill_value": 2**15}, "fill value"),
        ({"dtype": "|V999999999"}, "elements of 999999999 bytes"),
        ({"compressor": {"id": "base64"}}, "'base64'"),
        ({"compressor": {"id": "gzip", "level": 1, "mtime": 0}}, "gzip has unknown configuration members"),
        ({"compressor": {"id": "blosc", "cname": "new"}}, "the cname of blosc must be "),
        ({"compressor": {"id": "zstd", "dictionary": 1}}, "dictionary"),
        ({"filters": [{"id": "shuffle"}, {"id": "delta", "dtype": "<u2"}]}, "the codec 'delta'"),
        ({"filters": [{"id": "delta", "dtype": "<u2"}], "order": "F"}, "the filter delta has"),
        ({"filters": [{"id": "delta", "dtype": "<u2"}], "dtype": ">u2"}, "only for elements that are little-endian"),
        ({"filters": [{"id": "delta", "dtype": "<u2"}], "dtype": "<f8"}, "stay of one type"),
        ({"filters": [{"id": "delta", "dtype": "<u2", "astype": "<u4"}]}, "stay of one type"),
        ({"filters": [{"id": "packbits"}], "dtype": "|b1"}, "the filter packbits has"),
        ({"dtype": "|O", "filters": [{"id": "vlen-utf8"}], "order": "F"}, "order F"),
    ],
)
def test_a_new_array_without_a_v3_form_is_told_why(members: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotUnshardable) as error:
        new_array(text({**NEW, **members}), None, ".")
    assert reason in str(error.value)


def test_a_new_array_without_a_fill_value_shows_without_one_until_it_has_one() -> None:
    new = new_array(text({**NEW, "fill_value": None}), None, ".")
    for array in (new, describe(parse_array(shard_new(new, (2,))))):
        shown = parse_array(array.document)
        zarray = array_documents(shown, ".")[".zarray"]
        assert zarray["fill_value"] is None
        edited = edit_array(shown, ".zarray", text({**zarray, "shape": [3] * len(NEW["shape"])}), ".")
        assert array_documents(edited, ".")[".zarray"]["fill_value"] is None
        filled = edit_array(shown, ".zarray", text({**zarray, "fill_value": 0}), ".")
        assert array_documents(filled, ".")[".zarray"]["fill_value"] == 0
        assert filled.document == new_array(text({**NEW, "fill_value": 0}), None, ".").document


def test_a_new_array_has_the_dimension_separator_of_the_mount() -> None:
    silent = {member: value for member, value in NEW.items() if member != "dimension_separator"}
    assert new_array(text(silent), None, ".").shape == (7, 11)
    new_array(text({**NEW, "dimension_separator": "/"}), None, "/")
    for document in (silent, NEW):
        with pytest.raises(RefusedError, match="separator"):
            new_array(text(document), None, "/")
