"""Chunks that were stored without their filters are encoded so that every library decodes them."""

from typing import Any

import numcodecs
import numpy as np
import pytest

from shardfs.formats.hdf5.filters import Hdf5Filters

FILTERS: dict[str, list[Any]] = {
    "gzip": [[1, [6], "deflate"]],
    "shuffle": [[2, [8], "shuffle"]],
    "fletcher32": [[3, [], "fletcher32"]],
    "zstd": [[32015, [3], "zstd"]],
    "blosc": [[32001, [2, 2, 8, 800, 5, 1, 1], "blosc"]],
    "all": [[2, [8], "shuffle"], [1, [6], "deflate"], [3, [], "fletcher32"]],
}


def decoded(filters: Hdf5Filters, data: bytes) -> bytes:
    for codec in reversed(filters.codecs):
        configuration = {k: v for k, v in codec["configuration"].items() if k in ("elementsize", "level")}
        name = codec["name"].removeprefix("numcodecs.")
        data = bytes(numcodecs.get_codec({"id": name, **configuration}).decode(data))
    return data


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("nbytes", [8, 800, 65528, 65536, 65544, 131072, 131080, 400_000])
def test_what_is_stored_without_compression_is_decoded_by_numcodecs_and_has_the_size_that_was_said(
    name: str, nbytes: int
) -> None:
    filters = Hdf5Filters.parse(FILTERS[name], 8, 80)
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8).tobytes()
    stored = bytes(filters.store(data))
    assert len(stored) == filters.stored_nbytes(nbytes)
    assert decoded(filters, stored) == data


def test_bzip2_has_no_form_without_compression() -> None:
    assert Hdf5Filters.parse([[307, [9], "bzip2"]], 8, 80).stored_nbytes(80) is None


def test_lzf_is_undone_with_all_filters_beside_it() -> None:
    filters = Hdf5Filters.parse([[2, [8], "shuffle"], [32000, [4, 261, 800], "lzf"]], 8, 80)
    assert (filters.codecs, filters.is_decoded) == ((), True)


def test_what_a_plugin_encoded_is_told_by_its_first_bytes() -> None:
    data = np.arange(800, dtype="u1").tobytes()
    for code, codec in ((32015, numcodecs.Zstd()), (32001, numcodecs.Blosc()), (307, numcodecs.BZ2())):
        filters = Hdf5Filters.parse([[code, [], "a plugin"]], 1, 10)
        encoded = bytes(codec.encode(data))
        assert filters.has_encoded(encoded[:16], len(encoded))
        assert not filters.has_encoded(data[:16], len(data))
