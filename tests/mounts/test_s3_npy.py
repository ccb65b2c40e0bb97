"""The npy view of a bucket: the same files, from the chunks that are needed."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.corpus import LITTLE, ZSTD, array, sharding
from tests.support.mounting import Mounter
from tests.support.s3_mounts import Remote
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket

VALUES = np.random.default_rng(0).integers(0, 2**16, (64, 128, 128), np.uint16)
DOCUMENT = array(
    VALUES.shape,
    (64, 128, 64),
    sharding((32, 64, 32), LITTLE, ZSTD),
    data_type="uint16",
    attributes={"unit": "nm"},
)


@pytest.fixture
def remote(s3_bucket: Bucket, s3_proxy: S3Proxy, mount: Mounter, tmp_path: Path) -> Remote:
    return Remote(s3_bucket, s3_proxy, mount, tmp_path / "local")


def test_an_array_in_a_bucket_is_read_mapped_and_fetched_once(remote: Remote) -> None:
    remote.store("group/image", DOCUMENT, absent=[(1, 1, 3)], values=VALUES)
    root = remote.mount(arguments=["--view=npy"])
    expected = VALUES.copy()
    expected[32:, 64:, 96:] = 0
    file = io.BytesIO()
    np.save(file, expected)
    assert (root / "group/image.npy").stat().st_size == len(file.getvalue())
    assert not [words for words in remote.asked() if "/c/" in words]
    mapped = np.load(root / "group/image.npy", mmap_mode="r")
    assert mapped[0, 0, 0] == expected[0, 0, 0]
    touched = {words.split()[1] for words in remote.asked() if "/c/" in words}
    assert "group/image/c/0/0/0" in touched
    assert (root / "group/image.npy").read_bytes() == file.getvalue()
    fetched = [request for request in remote.taken() if "/c/" in request.key]
    stored = sum(path.stat().st_size for path in (remote.local / "group/image/c").rglob("*") if path.is_file())
    assert sum(request.bytes_out for request in fetched) < 1.5 * stored
    assert json.loads((root / "group/image.json").read_text()) == {"unit": "nm"}


def test_a_bucket_that_fails_is_an_error_and_never_fill_values(remote: Remote) -> None:
    remote.store("image", DOCUMENT, values=VALUES)
    root = remote.mount(arguments=["--view=npy"], expect=(r"image",))
    with (root / "image.npy").open("rb", buffering=0) as file:
        remote.bucket.delete(remote.key("image/c/0/0/0"))
        remote.bucket.put(remote.key("image/c/0/0/0"), b"no shard")
        with pytest.raises(OSError) as raised:
            file.read(2**20)
        assert raised.value.errno == errno.EIO
