"""Files with a tree in them are read by ranges over https, as over http."""

import ssl
from pathlib import Path

import h5py
import numpy as np
import pytest
import trustme
import zarr
from zarr.storage import ZipStore

import shardfs
from tests.support.web_server import web_server


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """What a web server needs that shardfs trusts."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    return context


@pytest.mark.parametrize("suffix", ["h5", "zip"])
def test_a_file_is_read_over_https(tmp_path: Path, tls: ssl.SSLContext, suffix: str) -> None:
    values = np.random.default_rng(3).integers(0, 256, (20, 2**15), np.uint8)
    (tmp_path / "web").mkdir()
    path = tmp_path / "web" / f"a.{suffix}"
    if suffix == "h5":
        with h5py.File(path, "w") as file:
            file.create_dataset("g/x", data=values, chunks=(1, 2**15), compression="gzip")
    else:
        with ZipStore(path, mode="w") as store:
            made = zarr.create_group(store).create_array("g/x", shape=values.shape, chunks=(1, 2**15), dtype="u1")
            made[...] = values
    made_nbytes = path.stat().st_size
    with web_server(tmp_path / "web", tls) as web, shardfs.open(f"{web.url}/a.{suffix}") as dataset:
        assert web.url.startswith("https://")
        found = zarr.open_group(dataset.store(), mode="r")["g/x"]

        def fetched() -> int:
            """Return how many bytes were asked for since the last call, all of them by ranges."""
            asked = [wanted for method, path, wanted in web.asked() if (method, path) == ("GET", f"/a.{suffix}")]
            bounds = [wanted.removeprefix("bytes=").split("-") for wanted in asked if wanted.startswith("bytes=")]
            assert len(bounds) == len(asked)
            return sum(int(last) - int(first) + 1 if first else int(last) for first, last in bounds)

        assert np.array_equal(found[7], values[7])
        assert 0 < fetched() < made_nbytes / 2
        assert np.array_equal(found[...], values)
        assert 0 < fetched() <= made_nbytes
