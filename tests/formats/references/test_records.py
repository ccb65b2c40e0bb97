"""References as Parquet: read in parts and within limits, whatever a record holds."""

import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import trio

from shardfs.dataset.source import open_store
from shardfs.errors import CorruptionError, SourceError, UnsupportedError
from shardfs.formats.references import records, store
from shardfs.formats.references.base import MAX_INLINE_NBYTES, Target
from shardfs.formats.references.records import RecordReferences, parse_documents
from shardfs.formats.references.store import ReferenceStore
from shardfs.formats.virtual import BrokenPart, InlinePart
from shardfs.stores.base import Kind
from tests.support.opened import in_trio


def zarray(shape: tuple[int, ...], chunks: tuple[int, ...], **members: Any) -> dict[str, Any]:
    return {"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": "|u1", "order": "C", **members}


def write(root: Path, arrays: dict[str, dict[str, Any]], record_size: int = 10) -> Path:
    metadata = {".zgroup": {"zarr_format": 2}} | {f"{path}/.zarray": written for path, written in arrays.items()}
    root.mkdir()
    (root / ".zmetadata").write_text(json.dumps({"metadata": metadata, "record_size": record_size}))
    return root


def write_record(root: Path, path: str, number: int, columns: dict[str, Any], **options: Any) -> None:
    (root / path).mkdir(exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), root / path / f"refs.{number}.parq", **options)


@asynccontextmanager
async def opened(root: Path) -> AsyncIterator[tuple[ReferenceStore, RecordReferences]]:
    async with open_store(str(root)) as store:
        assert isinstance(store, ReferenceStore)
        references = await store.references()
        assert isinstance(references, RecordReferences)
        yield store, references


@pytest.mark.slow
@in_trio
async def test_rows_are_ranges_whole_files_bytes_or_nothing(tmp_path: Path) -> None:
    root = write(tmp_path / "refs.parq", {"a": zarray((2, 6), (1, 2)), "scalar": zarray((), ())}, 4)
    columns = {
        "path": ["f", "f", None, None],
        "offset": [3, 0, 0, 0],
        "size": [5, 0, 0, 0],
        "raw": [None, None, b"raw", None],
    }
    write_record(root, "a", 0, columns)
    write_record(root, "scalar", 0, {"path": ["f"], "offset": [1], "size": [0]})
    async with opened(root) as (store, references):
        assert await references.find("a/0.0") == Target("f", 3, 5)
        assert await references.find("a/0.1") == Target("f")
        assert await references.find("a/0.2") == InlinePart(b"raw")
        assert await references.find("scalar/0") == Target("f", 1, 0)
        for name in ("a/1.0", "a/1.1", "a/1.2", "a/2.0", "a/0.3", "a/0.00", "a/0", "a/-1.0", "a/0.0.0", "b/0", "0"):
            assert await references.find(name) is None, name
        assert [entry.name for entry in await store.list("a")] == [".zarray", "0.0", "0.1", "0.2"]
        assert {entry.name: entry.kind for entry in await store.list("")} == {
            **dict.fromkeys((".zgroup", ".zmetadata"), Kind.FILE),
            **dict.fromkeys(("a", "scalar"), Kind.DIRECTORY),
        }


@pytest.mark.slow
@in_trio
async def test_names_of_chunks_have_dots_whatever_the_document_says(tmp_path: Path) -> None:
    """Rows go by position, so the document that is shown can say how chunks are named."""
    root = write(tmp_path / "refs.parq", {"a": zarray((2, 2), (1, 1), dimension_separator="/")})
    write_record(root, "a", 0, {"path": ["f"] * 4, "offset": [0] * 4, "size": [1] * 4})
    async with opened(root) as (store, references):
        snapshot = await store.open("a/.zarray")
        assert json.loads(bytes(await snapshot.read(0, snapshot.size)))["dimension_separator"] == "."
        assert await references.find("a/1.1") == Target("f", 0, 1)


@in_trio
async def test_few_records_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_CACHE_NBYTES", 3000)
    root = write(tmp_path / "refs.parq", {"a": zarray((400,), (1,))})
    for number in range(40):
        write_record(root, "a", number, {"path": [f"file {number}"] * 10, "offset": [*range(10)], "size": [1] * 10})
    async with opened(root) as (store, references):
        assert len(await store.list("a")) == 401
        assert 1 <= len(references._records) < 20
        for number in (399, 0, 200):
            assert await references.find(f"a/{number}") == Target(f"file {number // 10}", number % 10, 1)


@pytest.mark.slow
@in_trio
async def test_a_text_that_is_repeated_a_million_times_takes_memory_once(tmp_path: Path) -> None:
    count = 1_000_000
    root = write(tmp_path / "refs.parq", {"a": zarray((count,), (1,))}, count)
    path = pyarrow.DictionaryArray.from_arrays(np.zeros(count, np.int32), ["x" * 1_000_000])
    write_record(root, "a", 0, {"path": path, "offset": np.arange(count), "size": np.ones(count, np.int64)})
    assert (root / "a/refs.0.parq").stat().st_size < 2**24
    async with opened(root) as (_, references):
        before = pyarrow.total_allocated_bytes()
        assert await references.find("a/5") == Target("x" * 1_000_000, 5, 1)
        assert pyarrow.total_allocated_bytes() - before < 64 * 2**20


@in_trio
async def test_records_that_are_too_large_are_errors_of_their_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(tmp_path / "refs.parq", {"a": zarray((40,), (1,)), "b": zarray((5,), (1,))})
    zeros = {"offset": [0] * 10, "size": [1] * 10}
    write_record(root, "a", 0, {"path": ["f"] * 10, **zeros})
    write_record(root, "a", 1, {"raw": [bytes(10_000)] * 10, **zeros}, use_dictionary=False, compression="zstd")
    write_record(root, "a", 2, {"path": ["f"] * 3, "offset": [0] * 3, "size": [1] * 3})
    (root / "a/refs.3.parq").write_bytes(bytes(200_000))
    write_record(
        root, "b", 0, {"path": [b"\xff", "f", "f", "f", ""], "offset": [-1, -1, 2**63 - 1, 0, 1], "size": [1] * 5}
    )
    monkeypatch.setattr(records, "_MAX_DECODED_NBYTES", 50_000)
    monkeypatch.setattr(records, "_MAX_RECORD_NBYTES", 100_000)
    async with opened(root) as (_, references):
        assert await references.find("a/9") == Target("f", 0, 1)
        with pytest.raises(
            CorruptionError, match=r"a/refs\.1\.parq: .* it has 10 rows and .* bytes, which are too many"
        ):
            await references.find("a/10")
        assert await references.find("a/22") == Target("f", 0, 1)
        assert isinstance(await references.find("a/23"), BrokenPart), (
            "a record that is short says nothing of the others"
        )
        with pytest.raises(CorruptionError, match=r"has 200,000 bytes"):
            await references.find("a/30")
        assert [isinstance(await references.find(f"b/{row}"), BrokenPart) for row in range(5)] == [
            True,
            True,
            True,
            False,
            True,
        ]


COUNT = 1_000_000


def repeated(value: Any, count: int = COUNT) -> pyarrow.DictionaryArray:
    """A column of one value, which takes the same few bytes however often it is repeated."""
    return pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(count, np.int32)), pyarrow.array([value]))


def list_of(count: int) -> pyarrow.ListArray:
    """A column of one row, a list of so many values."""
    return pyarrow.ListArray.from_arrays([0, count], pyarrow.array(np.zeros(count, np.int64)))


BOMBS: dict[str, tuple[Callable[[], dict[str, Any]], dict[str, Any], str]] = {
    "texts as numbers": (lambda: {"offset": repeated("x" * 1000)}, {}, "column offset is no column of integers"),
    "numbers as texts": (lambda: {"path": repeated(5)}, {}, "column path is no column of text or bytes"),
    "fractions": (lambda: {"offset": repeated(0.5)}, {}, "column offset is no column of integers"),
    "times": (
        lambda: {"size": pyarrow.array([0], pyarrow.timestamp("ns"))},
        {},
        "column size is no column of integers",
    ),
    "lists": (lambda: {"offset": list_of(COUNT)}, {}, "column offset is no column of integers"),
    "lists of texts": (lambda: {"raw": pyarrow.array([["x"] * 1000])}, {}, "column raw is no column of text or bytes"),
    "members": (lambda: {"path": pyarrow.array([{"path": "x"}])}, {}, "column path is no column of text or bytes"),
    "more rows than a record has": (lambda: {"path": repeated("x", 3 * COUNT)}, {}, "3,000,000 rows and .* too many"),
    "a value of its own each": (
        lambda: {"raw": pyarrow.array([bytes(10_000)] * 30_000)},
        {"use_dictionary": False, "compression": "zstd"},
        "which are too many",
    ),
    "begins that are repeated": (
        lambda: {"path": pyarrow.array(["x" * 100_000 + str(i) for i in range(1000)])},
        {"use_dictionary": False, "column_encoding": {"path": "DELTA_BYTE_ARRAY"}},
        "encoding 7",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_record_that_decodes_to_more_than_it_may_is_refused_before_decoding(tmp_path: Path, name: str) -> None:
    columns, options, reason = BOMBS[name]
    pyarrow.parquet.write_table(pyarrow.table(columns()), tmp_path / "bomb.parq", **options)
    data = (tmp_path / "bomb.parq").read_bytes()
    assert len(data) < 2**20
    peak = pyarrow.default_memory_pool().max_memory()
    with pytest.raises(CorruptionError, match=reason):
        records._parse_record(data, 2 * COUNT)
    assert pyarrow.default_memory_pool().max_memory() <= max(peak, 2**22)


@pytest.mark.slow
def test_pages_that_claim_other_sizes_than_they_have_are_refused() -> None:
    """Each byte of the headers is changed: what is not refused is decoded to no more than the file says."""
    table = pyarrow.table({"path": ["file"] * 9 + [None], "offset": [*range(10)], "size": [5] * 10, "raw": [b"x"] * 10})
    for options in ({}, {"use_dictionary": False}, {"data_page_version": "2.0"}, {"compression": "zstd"}):
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(table, sink, **options)
        data = sink.getvalue().to_pybytes()
        assert records._parse_record(data, 10).nrows == 10
        peak = pyarrow.default_memory_pool().max_memory()
        for location in range(4, len(data) - 8):
            values = 0, 0x7F, 0x80, 0xFF
            for value in (values[location % 4], data[location] ^ 1):
                changed = data[:location] + bytes([value]) + data[location + 1 :]
                with suppress(CorruptionError):
                    assert records._parse_record(changed, 10).nrows <= 10
        assert pyarrow.default_memory_pool().max_memory() <= max(peak, 2**22)


@pytest.mark.parametrize("size", [0, 11, 12, 100])
def test_a_file_that_is_cut_off_is_no_record(size: int) -> None:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table({"path": ["file"]}), sink)
    data = sink.getvalue().to_pybytes()
    for damaged in (data[:size], data[-size:] if size else b"", data[:-8] + b"\xff\xff\xff\xff" + data[-4:]):
        with pytest.raises(CorruptionError, match="no record of references"):
            records._parse_record(damaged, 10)


def test_a_column_without_any_value_says_nothing() -> None:
    sink = pyarrow.BufferOutputStream()
    columns = {"path": ["file"], "offset": [3], "size": [4], "raw": pyarrow.nulls(1)}
    pyarrow.parquet.write_table(pyarrow.table(columns), sink)
    assert records._parse_record(sink.getvalue().to_pybytes(), 10).reference(0) == Target("file", 3, 4)


@pytest.mark.slow
@in_trio
async def test_values_in_place_of_files_are_hashed_once_and_large_ones_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[tuple[int, bool]] = []
    loop, digest = threading.get_ident(), store._digest

    def count(data: bytes) -> str:
        hashed.append((len(data), threading.get_ident() == loop))
        return digest(data)

    monkeypatch.setattr(store, "_digest", count)
    root = write(tmp_path / "refs.parq", {"a": zarray((3,), (1,))})
    write_record(root, "a", 0, {"raw": [b"x", bytes(MAX_INLINE_NBYTES), bytes(MAX_INLINE_NBYTES + 1)]})
    async with opened(root) as (source, _):
        for _ in range(3):
            for name, nbytes in (("a/0", 1), ("a/1", MAX_INLINE_NBYTES)):
                assert (await source.stat(name)).size == nbytes
                snapshot = await source.open(name)
                data = await snapshot.read(0, nbytes)
                assert data is await snapshot.read(0, nbytes), "no copy is made of all of it"
            with pytest.raises(CorruptionError, match="belong in one"):
                await source.open("a/2")
    assert sorted(hashed) == [(1, True), (MAX_INLINE_NBYTES, False)]


@in_trio
async def test_records_that_an_array_may_have_are_listed_and_not_asked_for_one_by_one(tmp_path: Path) -> None:
    root = write(tmp_path / "refs.parq", {"a": zarray((2**61,), (1,))}, 1)
    last = 2**61 - 1
    for number in (0, 10, last, 2**61):
        write_record(root, "a", number, {"path": ["f"], "offset": [number % 7], "size": [1]})
    (root / "a/refs.x.parq").touch()
    with trio.fail_after(60):
        async with opened(root) as (store, references):
            assert [entry.name for entry in await store.list("a")] == [".zarray", "0", "10", str(last)]
            assert await references.find(f"a/{last}") == Target("f", last % 7, 1)
            assert await references.find(f"a/{2**61}") is None
            references._home = type("WebFiles", (), {"lists": False})()  # type: ignore[assignment]
            with pytest.raises(UnsupportedError, match="nothing lists"):
                await references.list("a")


REFUSED: dict[str, Any] = {
    "no valid JSON": b"{",
    "no valid JSON ": b"[" * 200_000,
    "no `metadata`": {"record_size": 5},
    "no `record_size`": {"metadata": {}},
    "record_size` of 0": {"metadata": {}, "record_size": 0},
    "record_size` of 1": {"metadata": {}, "record_size": 10**12},
    "Zarr v3": {"metadata": {"a/zarr.json": {}}, "record_size": 5},
    "a/.zarray has no valid": {"metadata": {"a/.zarray": zarray((5,), (0,))}, "record_size": 5},
    "b/.zarray has no valid": {"metadata": {"b/.zarray": zarray((-5,), (1,))}, "record_size": 5},
    "c/.zarray has no valid": {"metadata": {"c/.zarray": zarray((5,), ())}, "record_size": 5},
    "d/.zarray has no valid": {"metadata": {"d/.zarray": zarray((2**40, 2**40), (1, 1))}, "record_size": 5},
    "e/.zarray has no valid": {"metadata": {"e/.zarray": []}, "record_size": 5},
}


def test_documents_that_say_nothing_of_records_are_refused() -> None:
    for reason, written in REFUSED.items():
        with pytest.raises(SourceError, match=reason.strip()):
            parse_documents(written if isinstance(written, bytes) else json.dumps(written).encode())


def test_documents_with_names_that_no_file_can_have_are_skipped() -> None:
    metadata = {name: {} for name in ("../.zattrs", "/x/.zattrs", "a/.zattrs", ".zattrs", "b//.zgroup")}
    documents = parse_documents(json.dumps({"metadata": metadata, "record_size": 5}).encode())
    assert [documents.keys[at] for at in range(len(documents.keys))] == [b".zattrs", b".zmetadata", b"a/.zattrs"]
    assert documents.nhidden == 3


@in_trio
async def test_more_names_than_may_be_listed_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_REFERENCES", 20)
    root = write(tmp_path / "refs.parq", {"a": zarray((100,), (1,)), "b": zarray((19,), (1,))})
    for path in ("a", "b"):
        for number in range(10):
            write_record(root, path, number, {"path": ["f"] * 10, "offset": [0] * 10, "size": [1] * 10})
    async with opened(root) as (store, _):
        with pytest.raises(UnsupportedError, match="a has more than 20 names"):
            await store.list("a")
        assert len(await store.list("b")) == 20


@in_trio
async def test_others_have_their_turn_while_many_rows_are_looked_at(tmp_path: Path) -> None:
    nrows, turns = 20_000, 0
    root = write(tmp_path / "refs.parq", {"a": zarray((nrows,), (1,))}, nrows)
    write_record(root, "a", 0, {"path": ["f"] * nrows, "offset": [0] * nrows, "size": [1] * nrows})

    async def count() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with opened(root) as (store, references), trio.open_nursery() as nursery:
        await references.find("a/0")
        nursery.start_soon(count)
        assert len(await store.list("a")) == nrows + 1
        assert turns > 10
        nursery.cancel_scope.cancel()
