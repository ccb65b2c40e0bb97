"""Buckets of other clouds, by their own protocol: that of Google for XML is what servers of S3 speak, too."""

import hmac
import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import shardfs
from shardfs.dataset.source import open_store
from shardfs.errors import AccessDeniedError, NotFoundError
from shardfs.stores.clouds.azure import shared_key
from shardfs.stores.clouds.google import GoogleService
from shardfs.stores.objects.client import Client
from shardfs.stores.objects.location import CloudLocation
from shardfs.stores.objects.requests import Counts, Range
from tests.mounts.test_values import write_meshes
from tests.stores.clouds.test_web_formats import VALUES as V2_VALUES
from tests.stores.clouds.test_web_formats import write_precomputed, write_v2
from tests.support.commands import one_line_of, run, run_json
from tests.support.mounting import Mounter
from tests.support.opened import in_trio
from tests.support.precomputed import read_volume
from tests.support.s3_server import Bucket
from tests.support.web_server import web_server

VALUES = np.arange(1, 1025, dtype="u2").reshape(32, 32)


@pytest.fixture
def google(s3_bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a group in a bucket that is asked as one of Google is."""
    group = zarr.open_group(tmp_path / "image.zarr", mode="w", zarr_format=3)
    array = group.create_array("a b/0", shape=(32, 32), chunks=(8, 8), shards=(16, 16), dtype="u2")
    array[:16] = VALUES[:16]
    for path in (tmp_path / "image.zarr").rglob("*"):
        if path.is_file():
            key = f"some/{path.relative_to(tmp_path)}"
            s3_bucket.put(key, path.read_bytes())
    for name, value in s3_bucket.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GOOGLE_BASE_URL", s3_bucket.endpoint_url)
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    return f"gs://{s3_bucket.name}/some/image.zarr"


@pytest.mark.slow
def test_a_bucket_of_google_is_listed_and_read(google: str, tmp_path: Path) -> None:
    (described,) = (one for one in run_json("info", "--json", google)["arrays"] if one["path"] == "a b/0")
    assert (described["stored_shards"], described["shards"]) == (2, 4)
    assert run("verify", "--data", "--jobs=1", google).returncode == 0
    assert run("unpack", "--jobs=1", google, tmp_path / "chunks.zarr").returncode == 0
    chunks: Any = zarr.open_group(tmp_path / "chunks.zarr", mode="r")["a b/0"]
    np.testing.assert_array_equal(chunks[:16], VALUES[:16])
    with shardfs.open(google) as dataset:
        assert dataset["a b/0"].read_chunk((3, 3)) is None
    assert f"{google} can only be read" in one_line_of(run("compact", google), 3)
    assert "nothing is stored at" in one_line_of(run("info", f"{google}/nothing"), 3)
    assert "the bucket nowhere does not exist" in one_line_of(run("info", "gs://nowhere/x"), 3)


@pytest.mark.slow
def test_volumes_meshes_and_zarr_v2_in_a_bucket_of_google_are_found(
    google: str, s3_bucket: Bucket, tmp_path: Path, mount: Mounter
) -> None:
    write_precomputed(tmp_path / "mixed/volume")
    write_v2(tmp_path / "mixed/v2", consolidated=False)
    meshes = write_meshes(tmp_path / "mixed/volume/mesh")
    for path in (tmp_path / "mixed").rglob("*"):
        if path.is_file():
            s3_bucket.put(str(path.relative_to(tmp_path)), path.read_bytes())
    url = f"gs://{s3_bucket.name}/mixed"
    report = run_json("verify", "--json", "--data", "--jobs=1", url)
    assert (report["sound"], report["arrays"]) == (True, 3)
    root = mount(url).path
    assert np.array_equal(read_volume(root / "volume"), read_volume(tmp_path / "mixed/volume"))
    assert len(list((root / "volume/mesh").iterdir())) == 1 + 2 * len(meshes)
    assert (root / "volume/mesh/7").read_bytes() == meshes[7][0]
    assert np.array_equal(zarr.open_group(root / "v2", mode="r", zarr_format=2)["more/beside"][...], V2_VALUES[0])


@in_trio
async def test_names_in_a_bucket_are_files_and_directories(google: str) -> None:
    async with open_store(google) as store:
        assert {entry.name for entry in await store.list("a b/0")} == {"c", "zarr.json"}
        stats = [(await store.stat(key)).kind.name for key in ("", "a b", "a b/0", "a b/0/c/0/0")]
        assert stats == ["DIRECTORY"] * 3 + ["FILE"]
        assert [await store.is_absent(key) for key in ("a b/0/c/1/1", "a b/0/zarr.json")] == [True, False]


@in_trio
async def test_what_a_name_stands_for_is_asked_once_in_its_ttl(google: str) -> None:
    async with open_store(google) as store:

        async def asked(key: str) -> tuple[str, int]:
            before = sum(store.statistics()["requests"].values())  # type: ignore[attr-defined]
            try:
                found = (await store.stat(key)).kind.name
            except NotFoundError:
                found = "nothing"
            return found, sum(store.statistics()["requests"].values()) - before  # type: ignore[attr-defined]

        expected = {"a b": "DIRECTORY", "a b/0/zarr.json": "FILE", "absent": "nothing"}
        for key, kind in expected.items():
            assert await asked(key) in ((kind, 0), (kind, 1)), "its directory may be listed, once names are asked for"
            assert await asked(key) == (kind, 0), key
            store.forget(key)
            assert await asked(key) == (kind, 1), key
        assert await asked("absent/below") == ("nothing", 0), "nothing is below what is absent"


@in_trio
async def test_tokens_of_google_come_from_the_file_with_its_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "files/bucket").mkdir(parents=True)
    (tmp_path / "files/bucket/key").write_bytes(b"0123456789")
    secret = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    with web_server(tmp_path / "files") as web:
        account = {"type": "service_account", "client_email": "me@example.org", "private_key": pem}
        (tmp_path / "account.json").write_text(json.dumps({**account, "token_uri": f"{web.url}/token"}))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
        monkeypatch.setenv("GOOGLE_BASE_URL", web.url)
        client = Client(GoogleService(CloudLocation.parse("gs://bucket")), Counts())
        assert bytes((await client.get("key", Range(2, 3))).data) == b"234"
        assert [key for key, _ in (await client.list_page("")).objects] == ["key"]
        assert web.authorizations == {"Bearer a-token"}
        (tmp_path / "account.json").write_text("{}")
        client = Client(GoogleService(CloudLocation.parse("gs://bucket")), Counts())
        with pytest.raises(AccessDeniedError, match="GOOGLE_APPLICATION_CREDENTIALS names a file"):
            await client.head("key")


def test_settings_of_azure_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "somebody")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "no base64")
    assert "another setting of Azure" in one_line_of(run("info", "az://container/x"), 3)
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")
    assert "AZURE_STORAGE_ACCOUNT_NAME" in one_line_of(run("info", "az://container/x"), 3)


def test_the_key_of_an_account_signs_as_the_reference_of_azure_says() -> None:
    """Beside a signature that Azurite 3.35 accepts."""
    headers = {"Range": "bytes=0-9", "If-Match": '"0x1"', "x-ms-version": "2023-11-03", "x-ms-date": "a date"}
    url = "https://somebody.blob.core.windows.net/bucket/a%20b?comp=list&restype=container&prefix=a%2Fb"
    expected = hmac.digest(
        b"key",
        b'GET\n\n\n\n\n\n\n\n"0x1"\n\n\nbytes=0-9\nx-ms-date:a date\nx-ms-version:2023-11-03\n'
        b"/somebody/bucket/a%20b\ncomp:list\nprefix:a/b\nrestype:container",
        "sha256",
    )
    assert b64decode(shared_key("somebody", b"key", "GET", url, headers)) == expected
