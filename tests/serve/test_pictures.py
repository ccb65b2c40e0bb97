"""Pictures of planes: what each pixel is, what is read for it, and what is said of what cannot be shown."""

import json
import re
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.corpus import GZIP, LITTLE, array, extension, rectilinear, sharding
from tests.support.datasets import age, store
from tests.support.images import image, put, write_group
from tests.support.mounting import PATIENCE, eventually
from tests.support.png import pixels_of
from tests.support.s3_faults import Before
from tests.support.s3_proxy import S3Proxy
from tests.support.serving import Served, served

RNG = np.random.default_rng(7)


def picture(site: Served, target: str) -> tuple[np.ndarray, dict[str, Any]]:
    """The pixels of a picture, and what is said of it."""
    reply = site.ask(f"/-/plane/{target}")
    assert (reply.status, reply["Content-Type"]) == (200, "image/png"), reply.body
    return pixels_of(reply.body), json.loads(reply["Shardfs-Picture"])


def refused(site: Served, target: str) -> str:
    """Why there is no picture, in words."""
    reply = site.ask(f"/-/plane/{target}")
    assert (reply.status, reply["Content-Type"]) == (422, "text/plain; charset=utf-8")
    return reply.body.decode()


def gray(values: np.ndarray, low: float = 1.0, high: float = 99.0) -> np.ndarray:
    """The grays of finite numbers, of which there are 252."""
    numbers = values.astype(np.float64)
    black, white = np.percentile(numbers, [low, high])
    return np.round(255 / 251 * np.round(251 * np.clip((numbers - black) / (white - black), 0, 1))).astype(np.uint8)


def close(pixels: np.ndarray, expected: np.ndarray) -> bool:
    """Whether all is opaque, and grays are the same, up to rounding."""
    far = np.abs(pixels[..., :3].astype(int) - expected.astype(int)[..., np.newaxis]) > 1
    return pixels.shape == (*expected.shape, 4) and not far.any() and bool((pixels[..., 3] == 255).all())


NUMBERS = [
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
]  # fmt: skip


def test_each_type_of_numbers_is_drawn_between_its_percentiles(tmp_path: Path) -> None:
    values = RNG.integers(-100, 100, (13, 17))
    write_group(tmp_path)
    for name in NUMBERS:
        put(tmp_path / name, values.astype(name), (8, 8), (4, 4))
    with served(tmp_path) as site:
        for name in NUMBERS:
            pixels, about = picture(site, name)
            assert close(pixels, gray(values.astype(name))), name
            black, white = np.percentile(values.astype(name).astype(float), [1, 99])
            assert (float(about["black"]), float(about["white"])) == pytest.approx((black, white), rel=1e-5)
        pixels, _ = picture(site, "int32?low=20&high=60")
        assert close(pixels, gray(values, 20, 60))


def test_booleans_are_black_and_white(tmp_path: Path) -> None:
    values = RNG.integers(0, 2, (9, 9)).astype(bool)
    put(tmp_path / "mask", values, (8, 8), (4, 4), fill_value=False)
    with served(tmp_path) as site:
        assert close(picture(site, "mask")[0], np.where(values, 255, 0))


def test_what_is_no_number_is_transparent_and_infinity_is_black_or_white(tmp_path: Path) -> None:
    values = np.linspace(0, 1, 64).reshape(8, 8)
    expected = gray(values)
    values[2, 3], values[4, 5], values[6, 7] = np.nan, np.inf, -np.inf
    put(tmp_path / "image", values, (8, 8), (4, 4), fill_value="NaN")
    put(tmp_path / "nothing", np.full((3, 3), np.nan), (3, 3), (3, 3), fill_value=0.0)
    put(tmp_path / "wide", np.array([[-1.7e308, 0, 1.7e308]]), (1, 3), (1, 3), fill_value=0.0)
    with served(tmp_path) as site:
        pixels, _ = picture(site, "image?low=0&high=100")
        assert list(zip(*np.nonzero(pixels[..., 3] == 0), strict=True)) == [(2, 3)]
        assert (pixels[4, 5, 0], pixels[6, 7, 0]) == (255, 0)
        finite = np.isfinite(values)
        assert np.abs(pixels[..., 0].astype(int) - expected)[finite].max() <= 4
        assert not picture(site, "nothing")[0][..., 3].any()
        assert picture(site, "wide?low=0&high=100")[0][0, :, 0].tolist() == [0, 128, 255]


def test_complex_numbers_are_drawn_by_part(tmp_path: Path) -> None:
    values = (RNG.normal(size=(6, 6)) + 1j * RNG.normal(size=(6, 6))).astype("complex64")
    put(tmp_path / "waves", values, (6, 6), (3, 3), fill_value=[0.0, 0.0])
    parts = {"magnitude": np.abs, "phase": np.angle, "real": np.real, "imaginary": np.imag}
    with served(tmp_path) as site:
        for part, function in parts.items():
            assert close(picture(site, f"waves?part={part}")[0], gray(function(values))), part
        assert close(picture(site, "waves")[0], gray(np.abs(values)))


def test_times_are_drawn_and_no_time_is_transparent(tmp_path: Path) -> None:
    values = np.arange(12).reshape(3, 4).astype("datetime64[s]")
    values[1, 2] = "NaT"
    data_type = extension("numpy.datetime64", unit="s", scale_factor=1)
    put(tmp_path / "times", values, (3, 4), (3, 2), data_type, fill_value=0)
    with served(tmp_path) as site:
        pixels, _ = picture(site, "times?low=0&high=100")
    assert (pixels[0, 0, 0], pixels[2, 3, 0]) == (0, 255)
    assert list(zip(*np.nonzero(pixels[..., 3] == 0), strict=True)) == [(1, 2)]


def test_labels_have_colours_that_differ_and_zero_has_none(tmp_path: Path) -> None:
    with_zero = np.arange(64, dtype="uint64").reshape(8, 8)
    put(tmp_path / "small", with_zero, (8, 8), (4, 4))
    put(tmp_path / "large", with_zero * 2**50, (8, 8), (4, 4))
    put(tmp_path / "negative", with_zero.astype("int16") - 9, (8, 8), (4, 4))
    with served(tmp_path) as site:
        for name, zero in (("small", (0, 0)), ("large", (0, 0)), ("negative", (1, 1))):
            pixels, about = picture(site, f"{name}?colors=labels")
            assert (about["black"], about["white"]) == (None, None)
            assert list(zip(*np.nonzero(pixels[..., 3] == 0), strict=True)) == [zero]
            assert len({tuple(pixel) for pixel in pixels.reshape(-1, 4)}) > 60
            beside = np.abs(pixels[:, 1:, :3].astype(int) - pixels[:, :-1, :3]).max(axis=-1)
            assert np.percentile(beside, 10) > 20


def test_a_missing_chunk_is_drawn_as_the_fill_value_and_said_to_be_missing(tmp_path: Path) -> None:
    values = RNG.integers(10, 100, (8, 8)).astype("uint8")
    document = array((8, 8), (8, 8), sharding((4, 4), LITTLE), data_type="uint8", fill_value=7)
    store(tmp_path / "image", document, values, absent=[(0, 1)])
    values[:4, 4:] = 7
    with served(tmp_path) as site:
        pixels, about = picture(site, "image?low=0&high=100")
        assert close(pixels, gray(values, 0, 100))
        assert "1 of 4 chunks not stored, shown as the fill value" in about["text"]
        assert site.ask("/-/plane/image")["Cache-Control"] == "no-cache"


def test_any_two_axes_make_a_plane_at_any_index_of_the_others(tmp_path: Path) -> None:
    values = RNG.integers(0, 1000, (5, 6, 7, 8)).astype("uint16")
    names = ["t", "z", "y", "x"]
    put(tmp_path / "image", values, (4, 4, 4, 4), (2, 2, 4, 2), dimension_names=names)
    with served(tmp_path) as site:
        client = site.connect()
        for rows in range(4):
            for columns in range(4):
                query = f"rows={rows}&columns={columns}&i0=3&i1=5&i2=2&i3=7"
                reply = (
                    client.ask(f"/-/plane/image?{query}") if rows != columns else site.ask(f"/-/plane/image?{query}")
                )
                if rows == columns:
                    assert reply.status == 400
                    continue
                index: list[Any] = [3, 5, 2, 7]
                index[rows] = index[columns] = slice(None)
                plane = values[tuple(index)]
                assert close(pixels_of(reply.body), gray(plane if rows < columns else plane.T)), query
        assert close(picture(site, "image")[0], gray(values[0, 3]))  # the first time, the middle of z
        assert close(picture(site, "image?top=2&bottom=5&left=3&right=8&i1=1")[0], gray(values[0, 1, 2:5, 3:8]))


def test_arrays_of_one_axis_and_of_none_are_drawn(tmp_path: Path) -> None:
    line = RNG.normal(size=20)
    put(tmp_path / "line", line, (10,), (5,), fill_value=0.0)
    store(tmp_path / "scalar", array((), (), sharding(()), data_type="int32"), np.array(42, "int32"))
    with served(tmp_path) as site:
        assert close(picture(site, "line")[0], gray(line)[np.newaxis])
        pixels, about = picture(site, "scalar")
        assert (pixels.shape, about["value"]) == ((1, 1, 4), "42")


def test_a_large_plane_is_drawn_smaller(tmp_path: Path) -> None:
    values = np.add.outer(np.arange(100), np.arange(90)).astype("int32")
    put(tmp_path / "image", values, (100, 90), (10, 9))
    with served(tmp_path) as site:
        pixels, about = picture(site, "image?size=20")
        assert close(pixels, gray(values[::5, ::5]))
        assert about["text"] == "100 × 90 of image, one of 5 × 5 elements shown"
        pixels, _ = picture(site, "image?size=95")  # which only one of the axes exceeds
        assert close(pixels, gray(values[::2, ::2]))


def test_a_picture_has_the_proportions_of_its_plane(tmp_path: Path) -> None:
    values = np.add.outer(np.arange(512), np.arange(768)).astype("int32")
    put(tmp_path / "image", values, (512, 768), (64, 64))
    with served(tmp_path) as site:
        for size in (512, 256, 100):
            pixels, about = picture(site, f"image?size={size}")
            step = -(-768 // size)
            assert close(pixels, gray(values[::step, ::step]))
            assert f"one of {step} × {step} elements" in about["text"]


def test_the_level_of_an_image_that_fits_is_drawn_and_no_other_is_read(tmp_path: Path) -> None:
    levels = image(tmp_path / "image", 256, 128, 64)
    with served(tmp_path) as site:
        for query, level, part, name in (
            ("size=64", levels[2], np.s_[:, :], "64 × 64 of image/2"),
            ("size=65", levels[1], np.s_[::2, ::2], "128 × 128 of image/1, one of 2 × 2 elements shown"),
            ("size=999", levels[0], np.s_[:, :], "256 × 256 of image/0"),
            ("size=32&top=0&bottom=64&left=64&right=128", levels[1], np.s_[:32, 32:64], "32 × 32 of image/1"),
        ):
            before = site.views.main.source.statistics.decoded_chunks
            for path in ("image", "image/0"):
                pixels, about = picture(site, f"{path}?{query}")
                assert about["text"] == name
                assert close(pixels, gray(level[part]))
            nchunks = np.prod([-(-(level.shape[0]) // 16)]) ** 2
            assert site.views.main.source.statistics.decoded_chunks - before <= nchunks
        assert picture(site, "image/1?size=999")[1]["text"] == "128 × 128 of image/1"


def test_only_the_chunks_of_a_plane_are_decoded(tmp_path: Path) -> None:
    put(tmp_path / "image", RNG.integers(0, 9, (8, 32, 32)).astype("uint8"), (8, 32, 32), (1, 8, 8))
    with served(tmp_path) as site:
        picture(site, "image?i0=2&top=0&bottom=8&left=9&right=15")
        assert site.views.main.source.statistics.decoded_chunks == 1
        picture(site, "image?i0=2")
        assert site.views.main.source.statistics.decoded_chunks == 16


HUGE = 2**22


@pytest.mark.slow
def test_sizes_that_are_mere_claims_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardfs.serve.pages.plane.MAX_CHUNKS", 256)
    for name, shape, chunk in (
        ("huge", (HUGE, HUGE), (128, 128)),
        ("long", (2**40,), (1024,)),
        ("deep", (*[4] * 20, HUGE, HUGE), (*[4] * 20, 1, 1)),
        ("chunks", (HUGE, HUGE), (2**20, 2**20)),
        ("bytes", (16 * HUGE, HUGE), (2**24, 1)),
        ("uncountable", (HUGE**2, HUGE**2), (1, 1)),
    ):
        directory = tmp_path / name
        directory.mkdir()
        document = array(shape, chunk, sharding(chunk, LITTLE, GZIP), data_type="float64")
        (directory / "zarr.json").write_text(json.dumps(document))
    with served(tmp_path) as site:
        tracemalloc.start()
        try:
            for target in ("huge?size=99999999", "long", "bytes?size=2048"):
                pixels, about = picture(site, target)
                assert max(pixels.shape) <= 2048
                missing = re.search(r"([0-9,]+) of \1 chunks? not stored", about["text"])
                assert missing is not None
                assert int(missing[1].replace(",", "")) <= 256
            for target in (f"huge?top=0&bottom={HUGE - 1}", f"huge?top={HUGE - 2}", f"long?left={2**40 - 9}"):
                assert picture(site, target)[0].size
            for name in ("deep", "chunks", "uncountable"):
                assert refused(site, name)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 100 * 2**20


def test_never_are_more_bytes_decoded_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardfs.serve.pages.plane.MAX_DECODED_NBYTES", 16 * 64)
    values = np.add.outer(np.arange(64), np.arange(64)).astype("uint8")
    put(tmp_path / "image", values, (64, 64), (8, 8))
    with served(tmp_path) as site:
        pixels, _ = picture(site, "image")
        assert site.views.main.source.statistics.decoded_bytes == 16 * 64
        assert close(pixels, gray(values[::16, ::16]))


def test_what_cannot_be_drawn_says_so_in_words(tmp_path: Path) -> None:
    text = extension("fixed_length_utf32", length_bytes=16)
    empty = array((0, 5), (2, 5), sharding((2, 5)), data_type="int32")
    store(tmp_path / "empty", empty, np.zeros((0, 5), "int32"))
    for name, document in {
        "text": array((4,), (4,), sharding((2,)), data_type=text, fill_value=""),
        "strange": array((4,), (4,), sharding((2,), LITTLE, extension("strange"))),
        "uneven": array((6,), rectilinear([2, 4]), LITTLE),
        "small": array((4,), (4,), sharding((2,)), data_type="float8_e4m3fn", fill_value=0.0),
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "zarr.json").write_text(json.dumps(document))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/zarr.json").write_text("{")
    age(tmp_path)
    with served(tmp_path) as site:
        assert "has no numbers that can be drawn" in refused(site, "text")
        assert "has no elements" in refused(site, "empty")
        assert "strange" in refused(site, "strange")
        assert refused(site, "uneven")
        assert "float8_e4m3fn" in refused(site, "small")
        assert refused(site, "broken")
        for target in ("nowhere", "", "text/c", "a/../text", "text//x", "%00"):
            assert site.ask(f"/-/plane/{target}").status == 404, target


@pytest.mark.slow
def test_damage_is_hatched_and_said_and_the_rest_is_drawn(tmp_path: Path) -> None:
    values = RNG.integers(10, 100, (8, 8)).astype("uint8")
    put(tmp_path / "image", values, (4, 8), (4, 4))
    (tmp_path / "image/c/1/0").write_bytes(b"no shard")
    with served(tmp_path) as site:
        reply = site.ask("/-/plane/image")
        pixels, about = pixels_of(reply.body), json.loads(reply["Shardfs-Picture"])
        assert pixels.shape == (256, 256, 4)  # so that stripes are seen
        stripes = {(200, 30, 30, 255), (250, 215, 215, 255)}
        assert {tuple(pixel) for pixel in pixels[128:].reshape(-1, 4)} == stripes
        assert not {tuple(pixel) for pixel in pixels[:128].reshape(-1, 4)} & stripes
        assert close(pixels[:128:32, ::32], gray(values[:4]))
        assert "2 chunks damaged, hatched: " in about["damage"]
        assert reply["Cache-Control"] == "no-cache"
        (tmp_path / "image/c/0/0").write_bytes(b"no shard either")
    with served(tmp_path) as site:
        pixels, about = picture(site, "image")
        assert {tuple(pixel) for pixel in pixels.reshape(-1, 4)} == stripes
        assert "4 chunks damaged, hatched: image/c/" in about["damage"]


def test_a_query_that_means_nothing_is_400(tmp_path: Path) -> None:
    put(tmp_path / "image", np.zeros((4, 4), "uint8"), (4, 4), (2, 2))
    with served(tmp_path) as site:
        for query in (
            "rows=x", "rows=0&columns=0", "rows=2", "columns=9", "size=-1", "low=-1", "high=101", "low=nan",
            "low=9&high=8", "part=all", "colors=red", "top=3&bottom=3", "left=9", "top=²",
            f"top={'9' * 30}", "&".join(["a=1"] * 200),
        ):  # fmt: skip
            assert site.ask(f"/-/plane/image?{query}").status == 400, query
        for query in ("", "&&", "unknown=1", "%zz", "i7=3", "rows=&columns=", "low=0&high=0"):
            assert site.ask(f"/-/plane/image?{query}").status == 200, query


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Served]:
    put(tmp_path / "image", RNG.integers(0, 9, (8, 8)).astype("uint8"), (8, 8), (4, 4))
    with served(tmp_path, metadata_ttl=60.0) as site:
        yield site


def test_a_picture_has_a_version_and_a_time_to_live(site: Served) -> None:
    first = site.ask("/-/plane/image")
    assert first["Cache-Control"] in ("max-age=59", "max-age=60")
    again = site.ask("/-/plane/image", If_None_Match=first["ETag"])
    assert (again.status, again.body, again["ETag"]) == (304, b"", first["ETag"])
    assert site.ask("/-/plane/image?low=30", If_None_Match=first["ETag"]).status == 200
    head = site.ask("/-/plane/image", "HEAD")
    assert (head.status, head["ETag"], head["Content-Type"], head.body) == (200, first["ETag"], "image/png", b"")
    assert site.ask("/-/plane/image", "HEAD", If_None_Match=first["ETag"]).status == 304
    assert site.ask("/-/plane/image", If_None_Match=f'"other", W/{first["ETag"]}').status == 304
    assert site.ask("/-/plane/image", If_Match=first["ETag"]).body == first.body
    assert site.ask("/-/plane/image", If_Match='"other"').status == 412
    assert site.ask("/-/plane/image", "PUT").status == 405


@pytest.mark.parametrize("place", ["directory", "bucket"])
def test_who_has_a_picture_or_asks_for_its_head_lets_nothing_be_decoded(
    tmp_path: Path, place: str, in_bucket: Callable[[Path], str]
) -> None:
    """Also after a restart."""
    put(tmp_path / "image", RNG.integers(0, 9, (8, 8)).astype("uint8"), (8, 8), (4, 4))
    age(tmp_path)
    source = in_bucket(tmp_path) if place == "bucket" else str(tmp_path)
    with served(source) as site:
        tag = site.ask("/-/plane/image")["ETag"]
    with served(source) as site:
        assert site.ask("/-/plane/image", If_None_Match=tag).status == 304
        assert site.ask("/-/plane/image", If_Match='"other"').status == 412
        assert site.ask("/-/plane/image", "HEAD")["ETag"] == tag
        assert site.views.main.source.statistics.decoded_chunks == 0
        assert site.ask("/-/plane/image")["ETag"] == tag


@pytest.mark.slow
def test_whatever_changes_a_picture_changes_its_version(tmp_path: Path) -> None:
    values = RNG.integers(0, 9, (8, 8)).astype("uint8")

    def version(query: str = "") -> str | None:
        with served(tmp_path) as site:
            reply = site.ask(f"/-/plane/image{query}")
            assert reply.status in (200, 500)
            return reply["ETag"]

    def rewrite(**members: Any) -> None:
        put(tmp_path / "image", values, (8, 8), (4, 4), **members)
        age(tmp_path)

    rewrite()
    found = {version(query) for query in ("", "?low=30", "?high=30", "?colors=labels", "?top=1", "?size=16&left=4")}
    assert len(found) == 6
    assert version("?size=2000") == version() in found
    rewrite(fill_value=3)
    found.add(version())
    (tmp_path / "image/c/0/0").unlink()
    found.add(version())
    values[0, 0] += 1
    rewrite(fill_value=3)
    found.add(version())
    rewrite(fill_value=3, data_type="int8")
    found.add(version())
    assert len(found - {None}) == 10
    data = bytearray((tmp_path / "image/c/0/0").read_bytes())
    data[5] ^= 0xFF  # of the first chunk, which does not decode any more
    (tmp_path / "image/c/0/0").write_bytes(data)
    age(tmp_path)
    assert version() not in found


def test_a_picture_has_no_version_until_what_it_shows_is_committed_and_has_a_time_of_its_own(tmp_path: Path) -> None:
    put(tmp_path / "image", np.zeros((4, 4), "uint8"), (4, 4), (2, 2))
    with served(tmp_path, write=True, decode=True) as site:
        assert site.ask("/-/plane/image")["ETag"] is not None
        site.ask("/image/c/0/0", "PUT", bytes([0, 9, 9, 9]))
        assert site.ask("/-/plane/image")["ETag"] is None
        assert site.ask("/-/plane/image", "HEAD")["ETag"] is None
        assert site.ask("/-/flush", "POST", b"").status == 204
        assert site.ask("/-/plane/image")["ETag"] is None
        age(tmp_path)
        assert site.ask("/-/plane/image")["ETag"] is not None


@pytest.mark.slow
def test_a_picture_that_nobody_waits_for_any_more_is_not_drawn(
    tmp_path: Path, in_bucket: Callable[[Path], str], s3_proxy: S3Proxy
) -> None:
    put(tmp_path / "image", RNG.integers(0, 9, (32, 32)).astype("uint8"), (2, 2), (1, 1))
    url = in_bucket(tmp_path)
    may_go_on = threading.Event()
    with served(url) as site:
        s3_proxy.fail("GetObject", Before(lambda: may_go_on.wait(PATIENCE)), key="/c/", times=None)
        clients = [site.connect() for _ in range(5)]  # more than are drawn at a time
        for client in clients:
            client.send("GET /-/plane/image HTTP/1.1\r\nHost: localhost\r\n\r\n")
        s3_proxy.log.wait_for("GetObject")
        for client in clients:
            client.close()
        for _ in range(3):
            assert site.ask("/-/healthy").status == 200
        may_go_on.set()
        eventually(lambda: b'status="none"} 5.0' in site.ask("/-/metrics").body)
        assert len([key for key in s3_proxy.log.keys("GetObject") if "/c/" in key]) <= 64
        s3_proxy.heal()
        assert site.ask("/-/plane/image").status == 200


def test_pictures_and_pages_that_are_asked_for_at_once_all_come(site: Served) -> None:
    client = site.connect()
    targets = ["/-/plane/image", "/image/", "/-/plane/image?low=3", "/-/plane/nothing", "/"] * 2
    for target in targets:
        client.send(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\n\r\n")
    assert [client.read().status for _ in targets] == [200, 200, 200, 404, 200] * 2


def test_what_is_written_is_seen_in_the_next_picture(tmp_path: Path) -> None:
    put(tmp_path / "image", np.zeros((4, 4), "uint8"), (4, 4), (2, 2))
    with served(tmp_path, write=True, decode=True, metadata_ttl=60.0) as site:
        before = site.ask("/-/plane/image")
        assert before["Cache-Control"] == "no-cache"
        assert site.ask("/image/c/0/0", "PUT", bytes([0, 9, 9, 9])).status in (201, 204)
        after = site.ask("/-/plane/image")
        assert pixels_of(after.body)[:2, :2, 0].tolist() == [[0, 255], [255, 255]]
        assert site.ask("/-/plane/image", If_None_Match=before["ETag"]).status == 200


@pytest.mark.slow
def test_the_first_picture_of_a_bucket_takes_few_requests_most_at_the_same_time(
    tmp_path: Path, in_bucket: Callable[[Path], str], s3_proxy: S3Proxy
) -> None:
    """Of an image of 512 × 512 in chunks of 64 × 64 and two shards along each axis, shown in 256 × 256."""
    image(tmp_path / "cells", 512, 256, 128, chunk=64, shard=256)
    write_group(tmp_path)
    url = in_bucket(tmp_path)
    with served(url) as site:
        s3_proxy.log.clear()
        assert site.ask("/-/plane/cells?size=256").status == 200
        documents = ["cells/zarr.json", *(f"cells/{level}/zarr.json" for level in range(3))]
        chunks = ["cells/1/c/0/0"] * 2  # the index, and all 16 chunks at once
        found = sorted(key.removeprefix("data.zarr/") for key in s3_proxy.log.keys("GetObject"))
        assert found == sorted([*documents, *chunks])
        assert s3_proxy.log.operations() == {"GetObject": 6, "ListObjectsV2": 4}
        s3_proxy.log.clear()
        assert site.ask("/-/plane/cells?size=512").status == 200
        assert s3_proxy.log.operations() == {"GetObject": 8}  # index and chunks of four shards
        assert s3_proxy.log.max_in_flight("GetObject") > 1
    with served(url) as site:
        s3_proxy.log.clear()
        assert site.ask("/cells/", Accept="text/html").status == 200
        assert s3_proxy.log.operations() == {"GetObject": 4, "ListObjectsV2": 4}
        s3_proxy.log.clear()
        assert site.ask("/-/plane/cells?size=256").status == 200
        assert s3_proxy.log.operations() == {"GetObject": 2}
