"""The .npy form of arrays: the header as NumPy writes it, and the plan of any range as NumPy slices."""

import io
import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfs.errors import NotShownError
from shardfs.format.dtype import DataType
from shardfs.format.npy import NpyFile, boxes

DTYPES = ["|b1", "|i1", "<u2", "<i4", "<f8", "<c16", "<f2", "<M8[ns]", "<m8[10s]", "<U5", "|S3", "|V7"]
STRUCTS = [[("x", "<i4"), ("y", "<f8")], [("µ", "|u1")]]

shapes = st.lists(st.integers(1, 5), max_size=4).map(tuple)


@st.composite
def chunked(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = draw(shapes)
    return shape, tuple(draw(st.integers(1, 7)) for _ in shape)


def data_type(dtype: np.dtype) -> DataType:
    return DataType("example", dtype, is_native=True)


def saved(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of version 2.0
        np.save(file, np.zeros(shape, dtype))
    return file.getvalue()


@pytest.mark.slow
@given(
    st.sampled_from([*DTYPES, *STRUCTS]).map(np.dtype),
    st.lists(st.sampled_from([0, 1, 2, 9, 1000]), max_size=3).map(tuple),
)
def test_a_header_is_the_one_that_numpy_writes(dtype: np.dtype, shape: tuple[int, ...]) -> None:
    shape = shape if math.prod(shape) <= 10**6 else shape[:2]
    file = NpyFile.of(data_type(dtype), shape, (1,) * len(shape))
    expected = saved(dtype, shape)
    assert file.header == expected[: len(file.header)]
    assert file.nbytes == len(expected)


def test_names_of_fields_that_are_not_latin_1_have_no_npy_form() -> None:
    with pytest.raises(NotShownError, match="header"):
        NpyFile.of(data_type(np.dtype([("中", "<i2")])), (1,), (1,))


@pytest.mark.slow
@given(shapes, st.data())
def test_boxes_of_a_range_are_few_and_hold_each_element_once_in_order(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    size = math.prod(shape)
    first = data.draw(st.integers(0, size))
    last = data.draw(st.integers(first, size))
    elements = np.arange(size).reshape(shape)
    found = list(boxes(shape, first, last))
    parts = [elements[tuple(map(slice, box.start, box.stop))].ravel() for box in found]
    assert np.concatenate([*parts, np.array([], int)]).tolist() == list(range(first, last))
    assert len(found) <= max(1, 2 * len(shape) - 1)


@pytest.mark.slow
@given(chunked(), st.data())
def test_a_part_ends_behind_whole_elements_and_its_copies_are_counted(
    layout: tuple[tuple[int, ...], tuple[int, ...]], data: st.DataObject
) -> None:
    file = NpyFile.of(data_type(np.dtype("<i4")), *layout)
    nbytes = file.nbytes - len(file.header)
    start = data.draw(st.integers(0, nbytes))
    stop = data.draw(st.integers(start, nbytes + 8))
    end = file.boundary(start, stop)
    assert end <= min(stop, nbytes)
    assert end > start or stop == start or start == nbytes
    assert end % 4 == 0 or end - start < 4
    if nbytes and start == 0 and stop >= nbytes:
        assert end == nbytes
    first, last = start // 4, -(-end // 4)
    assert file.ncopies(first, last) == sum(map(len, file.plan(first, last).values()))


@pytest.mark.slow
@given(chunked(), st.data())
def test_a_plan_copies_what_slicing_gives(layout: tuple[tuple[int, ...], tuple[int, ...]], data: st.DataObject) -> None:
    shape, chunk_shape = layout
    size = math.prod(shape)
    first = data.draw(st.integers(0, size))
    last = data.draw(st.integers(first, size))
    file = NpyFile(b"", shape, chunk_shape, 4)
    values = np.arange(1, size + 1, dtype="<u4").reshape(shape)
    out = np.zeros(last - first, "<u4")
    for coords, copies in file.plan(first, last).items():
        chunk = np.zeros(chunk_shape, "<u4")  # at its full shape, also beyond the array
        part = values[tuple(slice(i * n, (i + 1) * n) for i, n in zip(coords, chunk_shape, strict=True))]
        chunk[tuple(map(slice, part.shape))] = part
        assert part.size
        for copy in copies:
            source = np.ndarray(copy.shape, "<u4", chunk, copy.source * 4, tuple(s * 4 for s in file.chunk_strides))
            target = np.ndarray(copy.shape, "<u4", out, copy.target * 4, tuple(s * 4 for s in copy.target_strides))
            assert not target.any()
            target[...] = source
    assert out.tolist() == list(range(first + 1, last + 1))
