"""References as JSON: read as fsspec does, without its expressions, and whatever a hostile document says."""

import base64
import json
import re
from collections.abc import Callable
from typing import Any

import fsspec
import pytest
import trio

from shardfs.errors import SourceError
from shardfs.formats.references import document
from shardfs.formats.references.base import MAX_INLINE_NBYTES, Reference, Target
from shardfs.formats.references.document import DocumentReferences, parse_document
from shardfs.formats.virtual import BrokenPart, InlinePart
from shardfs.stores.base import Kind


def parsed(written: Any) -> DocumentReferences:
    return parse_document(written if isinstance(written, bytes) else json.dumps(written).encode())


def found(references: DocumentReferences) -> dict[str, Reference]:
    async def walk() -> dict[str, Reference]:
        return {key: reference async for key, reference in references.walk()}

    return trio.run(walk)


def names(references: DocumentReferences, key: str) -> dict[str, Kind]:
    return {entry.name: entry.kind for entry in trio.run(references.list, key)}


REFS: dict[str, Any] = {
    ".zgroup": '{"zarr_format": 2}',
    "a/.zarray": {"shape": [1, 2], "note": '\u00e9 " \\ \n'},
    "a/0.0": ["/data/x.nc", 10, 20],
    "a/0.1": ["/data/x.nc", 30, 0],
    "a/1.0": ["/data/y.nc"],
    "a/1.1": "base64:" + base64.b64encode(b"\x00\xff").decode(),
    "a/1.2": "plain",
    "b/c/0/1/2": ["s3://bucket/z", 2**40, 7],
}


TEXTS: dict[str, Callable[[Any], str]] = {
    "plain": json.dumps,
    "indented": lambda written: json.dumps(written, indent=2),
    "with escaped slashes": lambda written: json.dumps(written).replace("/", "\\/"),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("version", [0, 1])
def test_both_versions_say_what_fsspec_reads(version: int, text: Callable[[Any], str]) -> None:
    written = REFS if version == 0 else {"refs": REFS, "version": 1, "other": [1, {"more": 2}]}
    references = parse_document(text(written).encode())
    theirs = fsspec.filesystem("reference", fo=json.loads(json.dumps(written)))
    ours = found(references)
    assert ours.keys() == theirs.references.keys() == REFS.keys()
    for key, reference in ours.items():
        match reference:
            case InlinePart(data):
                expected = theirs.cat(key)
                assert data == expected or json.loads(data) == json.loads(expected)
            case Target(url, offset, None):
                assert ([url], offset) == (theirs.references[key], 0)
            case Target(url, offset, nbytes):
                assert [url, offset, nbytes] == theirs.references[key]
            case _:
                pytest.fail(str(reference))
    assert names(references, "") == {".zgroup": Kind.FILE, "a": Kind.DIRECTORY, "b": Kind.DIRECTORY}
    assert names(references, "b/c/0") == {"1": Kind.DIRECTORY}
    assert len(names(references, "a")) == 6
    assert names(references, "a/0.0") == names(references, "nothing") == {}


def test_templates_are_names_that_are_replaced() -> None:
    refs = {"a": ["{{u}}x.nc", 1, 2], "b": ["{{ u }}{{v}}", 1, 2], "c": "{{u}}", "d": ["plain", 1, 2]}
    written = {"version": 1, "refs": refs, "templates": {"u": "s3://bucket/", "v": "y"}}
    ours = found(parsed(written))
    assert ours["a"] == Target("s3://bucket/x.nc", 1, 2)
    assert ours["b"] == Target("s3://bucket/y", 1, 2)
    assert ours["c"] == InlinePart(b"{{u}}")
    assert ours["d"] == Target("plain", 1, 2)
    assert found(parsed({"version": 1, "refs": refs}))["a"] == Target("{{u}}x.nc", 1, 2)


def test_generators_make_a_reference_for_each_combination() -> None:
    gen = {
        "key": "g/{{i}}.{{name}}",
        "url": "{{u}}/{{name}}_{{i}}",
        "offset": "{{i}}000",
        "length": "10",
        "dimensions": {"i": {"start": 2, "stop": 6, "step": 2}, "name": ["x", "y"]},
    }
    written = {"version": 1, "templates": {"u": "s3://b"}, "gen": [gen], "refs": {"g/.zarray": "{}"}}
    ours = found(parsed(written))
    assert ours["g/4.y"] == Target("s3://b/y_4", 4000, 10)
    assert sorted(ours) == ["g/.zarray", "g/2.x", "g/2.y", "g/4.x", "g/4.y"]
    del gen["offset"], gen["length"]
    assert found(parsed(written))["g/2.x"] == Target("s3://b/x_2")


REFUSED: dict[str, tuple[Any, str]] = {
    "not JSON": (b"{,}", "no valid JSON"),
    "empty": (b"", "no valid JSON"),
    "a list": (b"[]", "no valid JSON"),
    "cut off": (b'{"a": ["x", 1, 2], "b', "no valid JSON"),
    "a huge number": (b'{"a": ["x", 1, ' + b"9" * 5000 + b"]}", "no valid JSON"),
    "more after it": (b'{"a": "x"} {}', "no valid JSON"),
    "deep": (b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
    "another version": ({"version": 2, "refs": {}}, "version 2"),
    "version true": ({"version": True, "refs": {}}, "version true"),
    "no references": ({"version": 1}, "no member `refs`"),
    "an expression": (
        {"version": 1, "templates": {"u": "x"}, "refs": {"a": ["{{u + 1}}", 1, 2]}},
        "no expressions: write the references without templates",
    ),
    "a call": ({"version": 1, "templates": {"f": "{{c}}"}, "refs": {}}, "contains templates"),
    "an unknown name": ({"version": 1, "templates": {"u": "x"}, "refs": {"a": ["{{w}}", 1, 2]}}, "'{{w}}'"),
    "arithmetic": (
        {"version": 1, "refs": {}, "gen": [{"key": "{{i + 1}}", "url": "x", "dimensions": {"i": [1]}}]},
        "no expressions",
    ),
    "endless": (
        {"version": 1, "refs": {}, "gen": [{"key": "{{i}}", "url": "x", "dimensions": {"i": {"stop": 10**15}}}]},
        "more than 1,000,000",
    ),
    "a name a million times": (
        {
            "version": 1,
            "refs": {},
            "templates": {"u": "x" * 8000},
            "gen": [{"key": "{{u}}" * 1_000_000, "url": "x", "dimensions": {}}],
        },
        "too long",
    ),
    "a long name a few times": (
        {
            "version": 1,
            "refs": {},
            "templates": {"u": "x" * 8000},
            "gen": [{"key": "k", "url": "{{u}}{{u}}", "dimensions": {}}],
        },
        "a key or a URL that is too long",
    ),
    "long names for many": (
        {
            "version": 1,
            "refs": {},
            "templates": {"u": "x" * 8000},
            "gen": [{"key": "{{i}}", "url": "{{u}}{{i}}", "dimensions": {"i": {"stop": 100_000}}}],
        },
        "keys and URLs of more than 128 MiB",
    ),
    "braces that never end": (
        {"version": 1, "refs": {}, "gen": [{"key": "{{" * 10**6, "url": "x", "dimensions": {}}]},
        "too long",
    ),
    "no step": (
        {"version": 1, "refs": {}, "gen": [{"key": "k", "url": "x", "dimensions": {"i": {"stop": 3, "step": 0}}}]},
        "neither a list",
    ),
    "half a range": (
        {"version": 1, "refs": {}, "gen": [{"key": "k", "url": "x", "offset": "1", "dimensions": {"i": [1]}}]},
        "offset and length",
    ),
    "long templates": ({"version": 1, "templates": {"u": "x" * 10_000}, "refs": {}}, "too long"),
}


@pytest.mark.slow
def test_what_is_no_set_of_references_is_refused_with_the_reason() -> None:
    for written, reason in REFUSED.values():
        with pytest.raises(SourceError, match=".*" + re.escape(reason)):
            parsed(written)


def test_what_many_generators_make_is_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "_MAX_GENERATED", 1000)
    gen = [{"key": "{{i}}", "url": "x", "dimensions": {"i": {"stop": 100}}}]
    assert len(found(parsed({"version": 1, "refs": {}, "gen": gen * 10}))) == 100
    with pytest.raises(SourceError, match="more than 1,000"):
        parsed({"version": 1, "refs": {}, "gen": gen * 11})


def test_a_dimension_without_values_makes_nothing_however_large_the_others_are() -> None:
    gen = {"key": "{{i}}", "url": "x", "dimensions": {"i": {"stop": 2**61}, "j": []}}
    assert found(parsed({"version": 1, "gen": [gen], "refs": {}})) == {}


def test_templates_are_found_in_one_way_through_a_text() -> None:
    """Braces that do not end a template take no second look, however many there are."""
    looks = 0

    class Text(str):
        __slots__ = ()

        def find(self, *arguments: Any) -> int:
            nonlocal looks
            looks += 1
            return str(self).find(*arguments)

    assert list(document._templates_in(Text("{{" * 100_000))) == []
    assert list(document._templates_in(Text("a{{b}}{{ c }}}}{{d"))) == [(1, 6), (6, 13)]
    assert looks < 20


def test_a_url_that_gets_too_long_is_never_made() -> None:
    refs = {"a": ["{{u}}" * 1000, 1, 2], "b": ["{{u}}", 1, 2]}
    ours = found(parsed({"version": 1, "refs": refs, "templates": {"u": "x" * 8192}}))
    assert ours == {"a": BrokenPart("the name of its file is too long"), "b": Target("x" * 8192, 1, 2)}


def test_a_value_as_large_as_a_file_is_one_broken_reference() -> None:
    largest = "x" * MAX_INLINE_NBYTES
    encoded = "base64:" + base64.b64encode(bytes(MAX_INLINE_NBYTES + 1)).decode()
    ours = found(parsed({"a": largest, "b": largest + "x", "c": encoded, "d": "base64:eA=="}))
    assert ours["a"] == InlinePart(largest.encode())
    assert ours["d"] == InlinePart(b"x")
    for name in "bc":
        assert ours[name] == BrokenPart(
            "it has 16,777,217 bytes in place of a file; more than 16,777,216 belong in one"
        )


def test_each_wrong_reference_is_one_broken_file_and_all_others_are_read() -> None:
    wrong: dict[str, Any] = {
        "negative": ["x", -1, 5],
        "negative length": ["x", 1, -5],
        "huge": ["x", 2**63, 5],
        "too far": ["x", 2**62, 2**62],
        "text": ["x", "1", 5],
        "half": ["x", 1, None],
        "part": ["x", 1.5, 5],
        "yes": ["x", True, 5],
        "no URL": [None, 1, 5],
        "empty URL": ["", 1, 5],
        "list": [],
        "two": ["x", 1],
        "four": ["x", 1, 2, 3],
        "number": 5,
        "null": None,
        "base64": "base64:%%%",
        "surrogate": "\ud800",
        "a list": [["x"], 1, 2],
    }
    ours = found(parsed({"version": 1, "refs": wrong | {"right": ["x", 1.0, 5]}}))
    assert ours.pop("right") == Target("x", 1, 5)
    assert {key for key, reference in ours.items() if isinstance(reference, BrokenPart)} == wrong.keys()


def test_names_that_no_file_can_have_are_hidden() -> None:
    hidden = [
        "",
        "/abs",
        "a//b",
        "a/../b",
        "..",
        "./a",
        "a/",
        "nul\0",
        "x" * 256,
        "y/" * 600 + "z",
        "\ud800",
        "d/" * 600,
    ]
    references = parsed({name: ["x", 1, 2] for name in [*hidden, "\u00e9" * 127, "a/..b"]})
    assert found(references).keys() == {"\u00e9" * 127, "a/..b"}
    assert references.nhidden == len(hidden)


def test_a_name_that_is_a_directory_too_is_that_and_the_last_of_two_counts() -> None:
    text = b'{"a": "file", "a/b": "1", "a.c": "2", "a/b": "3", "a0": ["x", 1, 2], "a0": ["y", 1, 2], "z": "0"}'
    references = parsed(text)
    assert names(references, "") == {"a": Kind.DIRECTORY, "a.c": Kind.FILE, "a0": Kind.FILE, "z": Kind.FILE}
    assert found(references) == {
        "a/b": InlinePart(b"3"),
        "a.c": InlinePart(b"2"),
        "a0": Target("y", 1, 2),
        "z": InlinePart(b"0"),
    }


@pytest.mark.slow
def test_a_million_references_take_little_more_memory_than_their_text() -> None:
    import tracemalloc

    count = 100_000
    text = json.dumps({f"v/0.{i}": ["s3://bucket/file.nc", 8 * i, 8] for i in range(count)}).encode()
    tracemalloc.start()
    try:
        references = parsed(text)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 60 * count
    assert trio.run(references.find, "v/0.777") == Target("s3://bucket/file.nc", 8 * 777, 8)
    assert len(names(references, "v")) == count


def test_more_references_than_a_document_may_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "MAX_REFERENCES", 10)
    refs: dict[str, Any] = {f"a/{number}": ["f", 0, number] for number in range(10)}
    assert len(found(parsed(refs))) == 10
    for more in ({"b": ["f", 0, 1]}, {"b": "text"}):
        with pytest.raises(SourceError, match="more than 10 references"):
            parsed(refs | more)


def test_a_directory_of_many_names_is_listed_as_one_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    references = parsed({f"a/{number}": ["f", 0, number] for number in range(50)} | {"a/b/c": "text"})
    few = names(references, "a")
    monkeypatch.setattr(document, "AT_ONCE", 10)
    assert names(references, "a") == few
    assert len(found(references)) == 51
