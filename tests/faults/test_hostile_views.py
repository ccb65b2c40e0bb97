"""Documents that lie about sizes, types and codecs, in views that look into them: the mount answers, and is small."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.support.corpus import GZIP, LITTLE, array, extension, rectilinear, sharding, transpose
from tests.support.datasets import store
from tests.support.documents import GROUP
from tests.support.mounting import Mounter

MAX_MEMORY = 250 * 2**20
MAX_LINE = 700
MOST = 2**63 - 1
SOUND = array((8, 12), (4, 6), sharding((2, 3)))
EXPECTED = (r"\b(read|lookup|readdir|getattr|open): ", "unreadable shard: ")


def one(*codecs: Any, **members: Any) -> dict[str, Any]:
    """An unsharded array of one chunk."""
    return array((4,), (4,), *(codecs or (LITTLE,)), **members)


def struct(*fields: tuple[str, Any]) -> dict[str, Any]:
    return extension("struct", fields=[{"name": name, "data_type": data_type} for name, data_type in fields])


def holding(copies: dict[str, Any]) -> dict[str, Any]:
    return {**GROUP, "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": copies}}


DOCUMENTS: dict[str, Any] = {
    "chunks-beyond-files": array((MOST,), (MOST - 1,), sharding((MOST - 1,))),
    "chunks-of-2e82": array((4, 4), (2**40, 2**40), LITTLE),
    "chunks-of-2e82-gzip": array((4, 4), (2**40, 2**40), LITTLE, GZIP),
    "chunks-of-512m-gzip": array((2**40,), (2**27,), LITTLE, GZIP),
    "shape-beyond-files": array((MOST, MOST), (2**50, 2**50), LITTLE),
    "shape-with-nothing": array((MOST, 0, MOST), (1, 1, 1), LITTLE),
    "shape-of-32-axes": array((2,) * 32, (2,) * 32, LITTLE, data_type="uint8"),
    "raw-of-gigabytes": one(data_type="r80000000000", fill_value=[0]),
    "raw-of-many-digits": one(data_type="r8" + "0" * 10_000, fill_value=[0]),
    "raw-of-2e40": one(data_type=extension("raw_bytes", length_bytes=2**40), fill_value=""),
    "text-of-2e42": one(data_type=extension("fixed_length_utf32", length_bytes=2**42), fill_value=""),
    "struct-of-100000": one(
        data_type=struct(*((f"{i}", struct(*((f"{j}", "int8") for j in range(1000)))) for i in range(100))),
        fill_value="AA==",
    ),
    "struct-of-odd-names": one(
        data_type=struct(("a\0b", "int8"), ("\ud800", "int8"), ("'\n" * 99, "int16")), fill_value="AAAAAA=="
    ),
    "fill-of-4m": one(data_type="uint8", fill_value="x" * 2**22),
    "fill-beyond-doubles": one(data_type="float64", fill_value=10**4000),
    "attributes-of-4m": one(attributes={"a": "x" * 2**22}),
    "attributes-many": one(attributes={"a": [1] * 300_000}),
    "names-odd": array((4, 4), (4, 4), LITTLE, dimension_names=["a/../b\0\n", "\ud800"]),
    "names-long": one(dimension_names=["x" * 10**6]),
    "zstd-level": one(LITTLE, extension("zstd", level=10**9, checksum="no", window=2**60)),
    "gzip-level": one(LITTLE, extension("gzip", level=-(10**9))),
    "blosc-numbers": one(LITTLE, extension("blosc", cname="lz4", clevel=5, shuffle=2, typesize=-1, blocksize=2**70)),
    "blosc-none": one(LITTLE, extension("blosc", cname={"a": 1}, clevel=[], shuffle=None, typesize="a")),
    "numcodecs-pickle": one(extension("numcodecs.pickle", protocol=5)),
    "numcodecs-path": one(LITTLE, extension("numcodecs.../../x")),
    "numcodecs-other-id": one(LITTLE, extension("numcodecs.zlib", id="pickle")),
    "numcodecs-shuffle": one(LITTLE, extension("numcodecs.shuffle", elementsize=-(2**62)), GZIP),
    "numcodecs-delta": one(extension("numcodecs.delta", dtype="<f99999", astype="|O"), LITTLE),
    "codecs-many": one(LITTLE, *[GZIP] * 1000),
    "transposes-many": array((4, 4), (4, 4), *[transpose(1, 0)] * 1001, LITTLE),
    "endian-list": one(extension("bytes", endian=["little"])),
    "codec-name-long": one(extension("y" * 10**6)),
    "codec-member-long": one(extension("bytes", **{"x" * 10**6: 1})),
    "grid-overflows": array((4,), rectilinear([[1, 2**62], [2**62, 2**62]]), LITTLE),
    "key-separator": one(chunk_key_encoding=extension("default", separator="..")),
    "copies-odd": holding(
        dict.fromkeys(("..", "/root", "", "a//b", "a/../b", ".zarray", "x\0y", "\ud800", "ok", "ok/.zarray"), SOUND)
    ),
    "copies-many": holding({f"a{i}": GROUP for i in range(4000)}),
    "copies-multiplied": holding({"p" * 2000: holding({"q" * 2000: holding({str(i): GROUP for i in range(9000)})})}),
    "copies-of-nothing": holding({"a": 5, "b": None, "c": [], "d": {**SOUND, "shape": [-1]}, "e": holding({"f": 7})}),
    ".zattrs": SOUND,
    "zarr.json.npy": SOUND,
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    store(source / "sound", SOUND)
    for name, document in DOCUMENTS.items():
        (source / name / "c").mkdir(parents=True)
        (source / name / "c/0").write_bytes(bytes(16))
        (source / name / "zarr.json").write_text(json.dumps(document))
    (source / "links").mkdir()
    (source / "links/zarr.json").write_text(json.dumps(SOUND))
    (source / "links/c").symlink_to("c")
    (source / "here").symlink_to(".")
    (source / "one").symlink_to("other")
    (source / "other").symlink_to("one")
    return source


@pytest.mark.parametrize("arguments", [["--view=npy"], ["--view=v2", "--decode"]], ids=" ".join)
def test_whatever_documents_say_every_name_answers_and_the_daemon_is_small(
    source: Path, mount: Mounter, arguments: list[str]
) -> None:
    mounted = mount(source, arguments=arguments, address_space=2**32, expect=EXPECTED)
    documents, refused = 0, 0
    for directory, _, names in os.walk(mounted.path, onerror=lambda _: None):
        for name in names:
            path = Path(directory, name)
            try:
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    with path.open("rb") as file:
                        documents += bool(file.read(100_000))
                        file.seek(max(0, status.st_size - 100))
                        file.read()
            except OSError:
                refused += 1
    assert documents > 10
    assert refused
    shown = "sound.npy" if "--view=npy" in arguments else "sound"
    assert (mounted.path / shown).exists()
    assert mounted.peak_memory() < MAX_MEMORY
    assert max(map(len, mounted.log.splitlines())) < MAX_LINE
