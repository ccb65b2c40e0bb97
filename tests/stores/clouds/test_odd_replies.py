"""Replies that no server of files makes: each is an error of the request, in our own words."""

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from shardfs.errors import ShardfsError, StoreError, UnreachableError
from shardfs.stores.clouds.azure import AzureService
from shardfs.stores.clouds.google import GoogleService
from shardfs.stores.clouds.web import WebService
from shardfs.stores.objects.client import Backoff, Client
from shardfs.stores.objects.location import CloudLocation
from shardfs.stores.objects.requests import Counts, Range
from tests.support.opened import in_trio

MANY = "9" * 5000
"""More digits than Python makes a number of."""

DATE = "Mon, 01 Jan 2024 00:00:00 GMT"
SOUND = {"Content-Length": "10", "Content-Range": "bytes 0-9/20", "ETag": '"one"', "Last-Modified": DATE}


@contextmanager
def answering(reply: bytes) -> Iterator[str]:
    """The URL of what answers every request with the same bytes."""

    def answer() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    connection.settimeout(10)
                    while not connection.recv(2**16).endswith(b"\r\n\r\n"):
                        pass
                    connection.sendall(reply)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def reply_of(status: str, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers.items()), "Connection: close"]
    return "\r\n".join([*lines, "", "0123456789"]).encode("latin-1")


def client_of(kind: str, url: str, monkeypatch: pytest.MonkeyPatch) -> Client:
    for name, value in {
        "GOOGLE_BASE_URL": url,
        "GOOGLE_SKIP_SIGNATURE": "true",
        "AZURE_STORAGE_ENDPOINT": url,
        "AZURE_STORAGE_ACCOUNT_NAME": "somebody",
        "AZURE_SKIP_SIGNATURE": "true",
    }.items():
        monkeypatch.setenv(name, value)
    source, service = {
        "web": (f"{url}/bucket", WebService),
        "google": ("gs://bucket", GoogleService),
        "azure": ("az://bucket", AzureService),
    }[kind]
    backoff = Backoff(attempts=2, patience=0.1, pause=lambda _: None)
    return Client(service(CloudLocation.parse(source)), Counts(), backoff=backoff)


KINDS = ["web", "google", "azure"]
ODD = {
    "length": ("206 Partial", {"Content-Length": MANY}),
    "length of an error": ("404 Not Found", {"Content-Length": MANY}),
    "length of a failure": ("500 Failure", {"Content-Length": MANY}),
    "length that is no number": ("206 Partial", {"Content-Length": "ten"}),
    "end of the range": ("206 Partial", {"Content-Range": f"bytes 0-{MANY}/{MANY}"}),
    "size": ("206 Partial", {"Content-Range": f"bytes 0-9/{MANY}"}),
    "range backwards": ("206 Partial", {"Content-Range": "bytes 9-0/20"}),
    "date": ("206 Partial", {"Last-Modified": f"Mon, {MANY} Jan 2024 00:00:00 GMT"}),
    "year": ("206 Partial", {"Last-Modified": f"Mon, 01 Jan {MANY} 00:00:00 GMT"}),
    "zone": ("206 Partial", {"Last-Modified": f"Mon, 01 Jan 2024 00:00:00 +{MANY}"}),
    "long ETag": ("206 Partial", {"ETag": f'"{MANY}"'}),
    "ETag with a control character": ("206 Partial", {"ETag": '"a\x01b"'}),
    "status": (f"{MANY} OK", {}),
    "short status": ("20 OK", {}),
    "wait": ("503 Later", {"Retry-After": MANY}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", ODD)
@in_trio
async def test_a_header_that_makes_no_sense_is_an_error(
    kind: str, case: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    status, changed = ODD[case]
    with answering(reply_of(status, SOUND | changed)) as url:
        client = client_of(kind, url, monkeypatch)
        with pytest.raises(ShardfsError):
            await client.get("key", Range(0, 10))
        with suppress(ShardfsError):  # HEAD has no range
            await client.head("key")
    assert "Traceback" not in capfd.readouterr().err, "callbacks of libcurl print what they raise"


@in_trio
async def test_an_etag_that_looks_like_ours_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(reply_of("206 Partial", SOUND | {"ETag": f'modified {MANY[:900]} with 20 bytes"'})) as url:
        client = client_of("web", url, monkeypatch)
        etag = (await client.get("key", Range(0, 10))).stat.etag
        assert bytes((await client.get("key", Range(0, 10), etag=etag)).data) == b"0123456789"


@pytest.mark.parametrize("kind", KINDS)
@in_trio
async def test_no_message_has_what_a_redirect_holds(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "shardfs")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
    for to, error, words in (
        (f"http://{nobody}?token=secret", UnreachableError, f"http://{nobody} cannot be reached"),
        (f"http://{nobody}#secret", UnreachableError, f"http://{nobody} cannot be reached"),
        (f"http://{nobody}/path?token=secret", UnreachableError, f"http://{nobody} cannot be reached"),
        (f"http://me:secret@{nobody}/path", StoreError, "holds a name or a password"),
    ):
        with answering(reply_of("302 Found", {"Location": to, "Content-Length": "10"})) as url:
            with pytest.raises(error, match=words) as failed:
                await client_of(kind, url, monkeypatch).get("key", Range(0, 10))
            assert "secret" not in f"{failed.value} {caplog.text}"
