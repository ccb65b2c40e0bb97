"""Faults of formats of other packages: each is named with its package, and stops nothing but what it is asked of."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr

import shardfs
from shardfs.errors import MetadataError, NotUnshardable, SourceError, StoreError
from shardfs.formats import Foreign, ForeignGrid, IndexCodecs, format_faults, formats, load_formats
from tests.support.commands import run, run_json
from tests.support.users import TOP

FORMAT = """
import os
from shardfs.formats import *
from shardfs.formats import MadePart

class Faulty(Format):
    name = "faulty"
    suffixes = (".faulty",)
    documents = frozenset({"x.faulty"})
BODY

FORMAT = Faulty()
"""
TREE = """
    def open(self, source):
        return TreeStore(source.url, source.files, source.name, load, ttl=source.ttl)

class Contents:
    only_zarr = True
    async def find(self, key):
        return MadePart(3, self.make) if key == "made" else None
    async def make(self):
        return b"abc"
    async def list(self, key):
        return [ListedName("made", Kind.FILE)]
    async def is_directory(self, key):
        return False
    async def walk(self):
        yield "made"
    async def note(self):
        return None
    async def skipped(self):
        for nothing in ():
            yield nothing
    BODY

async def load(snapshot):
    return Contents()
"""

Install = Callable[[str], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a package with a format, of which a class has a *body*, or a module if it begins with `FORMAT`."""
    site = tmp_path / "site"

    def made(body: str) -> Path:
        information = site / "faulty-1.0.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text("[shardfs.formats]\nof_faulty = faulty:FORMAT\n")
        (site / "faulty.py").write_text(FORMAT.replace("BODY", body))
        monkeypatch.syspath_prepend(site)
        load_formats.cache_clear()
        return site

    yield made
    load_formats.cache_clear()
    sys.modules.pop("faulty", None)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with an array of Zarr and one of the format, beside a file of it."""
    source = tmp_path / "source"
    values = np.arange(16, dtype=np.uint8)
    zarr.create_array(str(source / "good"), data=values, chunks=(4,), shards=(8,), zarr_format=3)
    (source / "bad").mkdir()
    (source / "bad" / "x.faulty").write_text("what is in it")
    (tmp_path / "a.faulty").write_text("what is in it")
    return source


def expect_good(source: Path) -> None:
    """All that is not of the format is read."""
    with shardfs.open(source) as dataset:
        assert "good" in list(dataset)
        assert zarr.open_array(dataset.store(), path="good", mode="r")[3] == 3


UNUSABLE = {
    "raise ZeroDivisionError('why')": "ZeroDivisionError('why')",
    "raise SystemExit('no license')": "SystemExit('no license')",
    "name = ''": "it has no name",
    "del name": "it has no name",
    "name = 'zip'": "it has the name zip of another one",
    "documents = 'x.faulty'": "its `documents` is a text",
    "suffixes = [7]": "7 is no text",
    "web = 7": "not iterable",
    "pass\nFORMAT = Format\nclass Faulty: __new__ = lambda cls: Format": "it is a class",
    "pass\nclass Faulty: pass": "it is no shardfs.formats.Format",
}


@pytest.mark.parametrize("body", UNUSABLE)
def test_a_format_that_cannot_be_used_is_named_with_its_package(install: Install, source: Path, body: str) -> None:
    install(f"    {body}")
    assert "faulty" not in {each.name for each in formats()}
    (fault,) = format_faults()
    assert "of_faulty (faulty:FORMAT) of the package faulty 1.0 is not used" in fault
    assert UNUSABLE[body] in fault
    expect_good(source)


def test_info_names_what_is_not_used(install: Install, source: Path) -> None:
    site = install("    raise ZeroDivisionError('why')")
    done = run("info", source, TEST_PACKAGES=str(site))
    assert done.returncode == 0
    assert "good" in done.stdout
    assert "faulty 1.0 is not used: ZeroDivisionError('why')" in done.stderr


@pytest.mark.parametrize(
    "body",
    [
        "def takes(self, source): raise KeyError('boo')",
        "def open(self, source): raise OSError('boo')",
        "def open(self, source): return None",
    ],
)
def test_a_file_that_a_format_fails_to_open_is_an_error_of_that_source(
    install: Install, source: Path, body: str
) -> None:
    install(f"    {body}")
    assert "faulty" in {each.name for each in formats()}
    with pytest.raises(SourceError, match=r"a\.faulty cannot be read as faulty: the package faulty 1\.0.*(boo|None)"):
        shardfs.open(source.parent / "a.faulty")
    expect_good(source)


def test_suffixes_may_be_a_list(install: Install, source: Path) -> None:
    install("    suffixes = ['.faulty']")
    with pytest.raises(SourceError, match=r"a\.faulty is no source"):
        shardfs.open(source.parent / "a.faulty")
    expect_good(source)


@pytest.mark.parametrize("body", ["raise KeyError('boo')", "return 'boo'"])
def test_a_directory_that_a_format_fails_to_look_at_is_shown_as_it_is_stored(
    install: Install, source: Path, body: str
) -> None:
    site = install(f"    async def find(self, directory, known): {body}")
    expect_good(source)
    with shardfs.open(source) as dataset:
        assert dataset.filesystem().cat("bad/x.faulty") == b"what is in it"
    found = run_json("info", "--json", source, TEST_PACKAGES=str(site))["arrays"]
    reasons = {item["path"]: item["reason"] for item in found}
    assert reasons["good"] is None
    assert "its format is faulty, and the package faulty 1.0" in reasons["bad"]
    assert "boo" in reasons["bad"]


@pytest.mark.parametrize("fault", ["find", "list", "is_directory", "walk", "make", "note", "skipped"])
def test_what_a_tree_fails_to_say_names_the_package(install: Install, source: Path, fault: str) -> None:
    arguments = "" if fault in ("walk", "make", "note", "skipped") else ", key"
    ending = "\n        yield" if fault in ("walk", "skipped") else ""
    site = install(TREE.replace("BODY", f"async def {fault}(self{arguments}):\n        raise KeyError('boo'){ending}"))
    command = "info" if fault == "note" else "verify"
    done = run(
        command, *(["--data"] if command == "verify" else []), source.parent / "a.faulty", TEST_PACKAGES=str(site)
    )
    assert "Traceback" not in done.stderr
    assert done.returncode in (1, 3)
    assert "the package faulty, which is not of shardfs, fails with KeyError('boo')" in done.stdout + done.stderr


def test_a_file_that_cannot_be_loaded_names_the_package(install: Install, source: Path) -> None:
    install(TREE.replace("BODY", "").replace("return Contents()", "raise KeyError('boo')"))
    with pytest.raises(SourceError, match=r"a\.faulty cannot be read.*the package faulty"):
        shardfs.open(source.parent / "a.faulty")


@pytest.mark.parametrize("method", ["decode", "nbytes"])
def test_an_index_that_cannot_be_decoded_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.syspath_prepend(TOP / "tests" / "toy_format")
    load_formats.cache_clear()
    np.save(tmp_path / "a.npy", np.arange(12).reshape(3, 4))
    with shardfs.open(tmp_path / "a.npy") as dataset:
        assert dataset[""].metadata["shape"] == [3, 4]

        def fail(*arguments: object) -> None:
            raise KeyError("boo")

        monkeypatch.setattr(f"npy_rows.RowIndex.{method}", fail)
        with pytest.raises(StoreError, match="the package npy_rows"):
            dataset[""].read_chunk((1, 0))
    load_formats.cache_clear()


def test_an_array_that_a_format_fails_to_look_at_again_is_an_error_alone(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its chunks are not absent: programs would take them for fill values."""
    monkeypatch.syspath_prepend(TOP / "tests" / "toy_format")
    load_formats.cache_clear()
    np.save(source / "bad" / "rows.npy", np.arange(12).reshape(3, 4))
    with shardfs.open(source, metadata_ttl=0) as dataset:
        assert dataset["bad"].read_chunk((1, 0)) is not None

        def fail(*arguments: object) -> None:
            raise KeyError("boo")

        monkeypatch.setattr("npy_rows.describe", fail)
        (source / "bad" / "rows.npy").touch()
        with pytest.raises(StoreError, match=r"bad/rows\.npy is not what it was: its format is npy.*npy-rows 1\.0"):
            dataset["bad"].read_chunk((1, 0))
        assert dataset["good"].read_chunk((1,)) is not None
    load_formats.cache_clear()


def test_a_grid_has_no_more_axes_than_an_array_of_zarr() -> None:
    index = IndexCodecs("little", (), ())
    assert ForeignGrid.cut((1,) * 32, (1,) * 32, (1,) * 32, index).ndim == 32
    with pytest.raises(MetadataError, match="3000 axes"):
        ForeignGrid.cut((1,) * 3000, (1,) * 3000, (1,) * 3000, index)


@pytest.mark.parametrize(("said", "why"), [({"reason": "it is cut"}, "it is cut"), ({}, "a box is no array")])
def test_what_has_no_form_in_zarr_always_says_why(said: dict[str, str], why: str) -> None:
    with pytest.raises(NotUnshardable, match=why):
        Foreign(format="box", kind="a box", reason=said.get("reason")).as_zarr()
