"""References that come from a web server lead nowhere else: to no file here, and to no other host or directory."""

import json
from pathlib import Path

import pytest

from shardfs.dataset.source import open_store
from shardfs.errors import AccessDeniedError, CorruptionError, ShardfsError
from tests.support.opened import in_trio
from tests.support.web_server import web_server

pytestmark = pytest.mark.slow


@in_trio
async def test_references_on_a_web_server_lead_to_files_beside_them_alone(tmp_path: Path) -> None:
    (tmp_path / "files/set").mkdir(parents=True)
    (tmp_path / "internal").mkdir()
    for path in ("files/set/data", "files/secret", "internal/secret"):
        (tmp_path / path).write_bytes(b"12345678")
    with web_server(tmp_path / "files") as web, web_server(tmp_path / "internal") as internal:
        here, there = f"127.0.0.1:{internal.port}/secret", f"{web.url}/set"
        elsewhere = [
            *(str(tmp_path / "files/secret"), f"file://{tmp_path}/files/secret", "file:///etc/passwd", "/etc/passwd"),
            *("../secret", "x/../../secret", "%2e%2e/secret", "./../secret", f"{web.url}/secret", f"{there}/../secret"),
            *(f"http://{here}", f"HTTP://{here}", f"//{here}", f"http://x@{here}", f"{web.url}@{here}"),
            *(f"{there}/\r\nHost: evil", "s3://bucket/secret", "gs://bucket/secret", "az://bucket/secret"),
            *("memory://secret", "reference://secret", "data:,secret", "ftp://127.0.0.1/secret", "\0", "a\0b"),
        ]
        refs = {f"a/{number}": [url, 0, 8] for number, url in enumerate(elsewhere)}
        refs |= {"a/own": ["data", 0, 8], "a/same": [f"{web.url}/set/data", 0, 8]}
        (tmp_path / "files/set/refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
        async with open_store(f"{web.url}/set/refs.json") as store:
            for name in ("a/own", "a/same"):
                assert bytes(await (await store.open(name)).read(0, 8)) == b"12345678"
            for number, url in enumerate(elsewhere):
                with pytest.raises(ShardfsError) as raised:
                    await store.open(f"a/{number}")
                assert isinstance(raised.value, AccessDeniedError | CorruptionError), (url, raised.value)
        assert not internal.log
        assert all(path.startswith("/set/") and ".." not in path for _, path, _ in web.log)


@in_trio
async def test_redirects_of_what_references_name_are_followed_as_the_docs_warn(tmp_path: Path) -> None:
    """The rule for locations is about what a document says, not about what the server does that it names."""
    (tmp_path / "files").mkdir()
    (tmp_path / "internal").mkdir()
    (tmp_path / "internal/secret").write_bytes(b"12345678")
    (tmp_path / "files/refs.json").write_text(json.dumps({"version": 1, "refs": {"a/0": ["data", 0, 8]}}))
    with web_server(tmp_path / "files") as web, web_server(tmp_path / "internal") as internal:
        web.moved["/data"] = f"{internal.url}/secret"
        async with open_store(f"{web.url}/refs.json") as store:
            assert bytes(await (await store.open("a/0")).read(0, 8)) == b"12345678"
        assert {method for method, _, _ in internal.log} <= {"GET", "HEAD"}
        assert not internal.signed
