"""`shardfs.info`, `verify`, `compact` and `refs`: what the commands print, from Python."""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
import pytest

import shardfs
from shardfs import errors
from tests.support import commands
from tests.support.damage import document
from tests.support.datasets import store
from tests.support.s3_server import Bucket

pytestmark = pytest.mark.slow


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "data.zarr"
    store(directory / "image", document())
    store(directory / "mask", document())
    (directory / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    return directory


def make_waste(source: Path) -> None:
    with shardfs.open(source, write=True) as dataset:
        for data in (bytes(2000), b"short"):
            dataset["image"].write_chunk((0, 0), data)
            dataset.flush()


def break_shard(source: Path) -> None:
    shard = source / "mask/c/0/0"
    shard.write_bytes(bytes(shard.stat().st_size))


def test_they_return_what_the_commands_print(source: Path) -> None:
    make_waste(source)
    assert shardfs.info(source) == commands.run_json("info", "--json", source)
    assert shardfs.info(source, "image") == commands.run_json("info", "--json", source, "image")
    assert shardfs.verify(source) == commands.run_json("verify", "--json", source)
    for view in ("v3", "v2"):
        assert shardfs.refs(source, view=view) == json.loads(commands.run("refs", "--view", view, source).stdout)
    report = shardfs.compact(source, threshold=0.2)
    assert (report["compacted"], report["left"]) == (1, [])
    assert report["removed_nbytes"] >= 2000
    assert commands.run_json("compact", "--json", "--threshold=0.2", source)["compacted"] == 0


def test_they_reach_s3_as_the_commands_do(
    source: Path, s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    s3_bucket.upload(source, "data.zarr")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    options = shardfs.StoreOptions(endpoint_url=s3_bucket.endpoint_url)
    url = s3_bucket.url("data.zarr")
    assert shardfs.info(url, store_options=options) == shardfs.info(source)
    assert shardfs.verify(url, store_options=options) == shardfs.verify(source)
    assert shardfs.compact(url, store_options=options)["compacted"] == 0


def test_damage_is_reported_and_never_referenced_as_absence(source: Path) -> None:
    break_shard(source)
    report = shardfs.verify(source)
    assert not report["sound"]
    assert [problem["shard"] for problem in report["problems"]] == ["mask/c/0/0"]
    with pytest.raises(errors.CorruptionError, match="mask cannot be referenced"):
        shardfs.refs(source)


def test_references_are_those_that_fsspec_reads(source: Path) -> None:
    fs = fsspec.filesystem("reference", fo=shardfs.refs(source))
    with shardfs.open(source) as dataset:
        assert fs.cat_file("image/c/0/1") == dataset["image"].read_chunk((0, 1))


@pytest.mark.slow
def test_references_as_parquet_are_those_of_the_command(source: Path, tmp_path: Path) -> None:
    by_command, by_function = tmp_path / "by-command", tmp_path / "by-function"
    assert commands.run("refs", "--parquet", by_command, source).returncode == 0
    shardfs.refs(source, parquet=by_function)
    names = sorted(path.relative_to(by_command) for path in by_command.rglob("*"))
    assert names == sorted(path.relative_to(by_function) for path in by_function.rglob("*"))
    assert len([name for name in names if name.suffix == ".parq"]) == len(list(source.glob("*/zarr.json")))
    for name in names:
        assert (by_command / name).is_dir() or (by_command / name).read_bytes() == (by_function / name).read_bytes()
    with pytest.raises(errors.UsageError, match="by-function exists"):
        shardfs.refs(source, parquet=by_function)
    with pytest.raises(errors.UsageError, match="view v2"):
        shardfs.refs(source, parquet=tmp_path / "new", view="v3")  # type: ignore[call-overload]
    break_shard(source)
    with pytest.raises(errors.CorruptionError, match="mask cannot be referenced"):
        shardfs.refs(source, parquet=tmp_path / "new")
    assert not list(tmp_path.glob("*new*"))


def test_progress_is_told_of_every_step(source: Path) -> None:
    done: dict[str, list[int]] = {}

    @contextmanager
    def progress(label: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
        yield done.setdefault(f"{label} {unit}", []).append

    shardfs.info(source, progress=progress)
    shardfs.verify(source, progress=progress)
    shardfs.refs(source, progress=progress)
    nshards = len(list(source.glob("*/c/*/*")))
    assert {label: sum(steps) for label, steps in done.items()}["counting shard"] == nshards
    assert {label.split()[0] for label in done} >= {"counting", "listing", "verifying", "referencing"}


def test_what_cannot_be_is_refused_by_name(source: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(errors.UsageError, match="threshold"):
        shardfs.compact(source, threshold=2)
    with pytest.raises(errors.UsageError, match="npy"):
        shardfs.refs(source, view="npy")  # type: ignore[call-overload]
    with pytest.raises(errors.SourceError):
        shardfs.verify(source / "nowhere")
    with shardfs.open(source, write=True) as dataset:
        dataset["image"].write_chunk((0, 0), b"new")
        shardfs.compact(source)  # beside a session, which commits first
    store(source / "turned", document() | {"data_type": "uint16"})
    stored = json.loads((source / "turned/zarr.json").read_text()) | {"data_type": "bfloat16"}
    (source / "turned/zarr.json").write_text(json.dumps(stored))
    with caplog.at_level(logging.WARNING):
        assert not [key for key in shardfs.refs(source, view="v2")["refs"] if key.startswith("turned")]
    assert "turned cannot be referenced" in caplog.text
