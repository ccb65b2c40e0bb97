"""S3 servers for tests: real ones, over HTTP, in processes of their own; their data is in memory.

`ministack` honours the conditions of GET, PUT, DELETE, UploadPartCopy and CompleteMultipartUpload, but takes parts of
any size. `moto_server` demands parts of 5 MiB, but ignores the ETags of UploadPartCopy and CompleteMultipartUpload: it
stands for the endpoints that several hosts must not write to.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import boto3
from botocore.config import Config

from tests.support.inside import quick_boto  # noqa: F401
from tests.support.processes import tied

ACCESS_KEY: Final = "test-access-key"
SECRET_KEY: Final = "test-secret-key"
"""Any credentials are right; these can be searched for in logs."""
REGION: Final = "us-east-1"

_PATIENCE = 60.0
_READY = re.compile(rb"Running on (http://127\.0\.0\.1:\d+)")
_SCRIPTS = os.path.dirname(sys.executable)
_NUMBERS = count(1)
_KEPT = threading.local()
_SIGNED: Final = {"Authorization": f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20300101/{REGION}/s3/aws4_request"}
"""No server looks at a signature, but `moto` whether there is one."""


@dataclass(frozen=True)
class Bucket:
    """A bucket, as a server or a proxy before it offers it at *endpoint_url*."""

    name: str
    endpoint_url: str

    @property
    def client(self) -> Any:
        """A client of boto3 that does not try again."""
        return _client(self.endpoint_url)

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which a process finds this endpoint, and nothing of the user's."""
        return {**credentials(), "AWS_ENDPOINT_URL": self.endpoint_url}

    def through(self, endpoint_url: str) -> Bucket:
        """The same bucket at another endpoint."""
        return replace(self, endpoint_url=endpoint_url)

    def url(self, key: str = "") -> str:
        return f"s3://{self.name}/{key}" if key else f"s3://{self.name}"

    def put(self, key: str, data: bytes, **arguments: Any) -> str:
        """Store an object with further arguments of boto3, and return its ETag."""
        if not arguments and (reply := self._ask("PUT", key, data)) is not None:
            return reply[0]
        return self.client.put_object(Bucket=self.name, Key=key, Body=data, **arguments)["ETag"]

    def get(self, key: str) -> bytes:
        if (reply := self._ask("GET", key)) is not None:
            return reply[1]
        return self.client.get_object(Bucket=self.name, Key=key)["Body"].read()

    def _ask(self, method: str, key: str, data: bytes | None = None) -> tuple[str, bytes] | None:
        """Return the ETag and the body of a reply, at a fifth of what boto3 costs; None unless it succeeded."""
        connection = _connection(self.endpoint_url)
        try:
            connection.request(method, f"/{self.name}/{quote(key, safe='/~')}", data, _SIGNED)
            reply = connection.getresponse()
            body = reply.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            return None
        return (reply.headers["ETag"], body) if reply.status in (200, 204) else None

    def head(self, key: str) -> dict[str, Any]:
        return self.client.head_object(Bucket=self.name, Key=key)

    def etag(self, key: str) -> str:
        return self.head(key)["ETag"]

    def delete(self, *keys: str) -> None:
        for key in keys:
            if self._ask("DELETE", key) is None:
                self.client.delete_object(Bucket=self.name, Key=key)

    def keys(self, prefix: str = "") -> list[str]:
        """All keys that begin with *prefix*, sorted."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return sorted(entry["Key"] for page in pages for entry in page.get("Contents", ()))

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """All objects whose keys begin with *prefix*."""
        return {key: self.get(key) for key in self.keys(prefix)}

    def uploads(self) -> list[str]:
        """Keys of the multipart uploads that are under way."""
        reply = self.client.list_multipart_uploads(Bucket=self.name)
        return [upload["Key"] for upload in reply.get("Uploads", ())]

    def sent_uploads(self) -> list[str]:
        """Keys of those to which something was sent."""
        found = self.client.list_multipart_uploads(Bucket=self.name).get("Uploads", ())
        places = [{"Bucket": self.name, "Key": each["Key"], "UploadId": each["UploadId"]} for each in found]
        return [place["Key"] for place in places if self.client.list_parts(**place).get("Parts")]

    def upload(self, directory: Path, prefix: str = "") -> None:
        """Store the files below a directory as objects below *prefix*."""
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                self.put(_join(prefix, path.relative_to(directory).as_posix()), path.read_bytes())

    def download(self, directory: Path, prefix: str = "") -> Path:
        """Write the objects below *prefix* as files below *directory*, and return it."""
        below = _join(prefix, "")
        for key in self.keys(below):
            path = directory / key.removeprefix(below)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.get(key))
        return directory


@dataclass(frozen=True)
class S3Server:
    """A server that runs."""

    endpoint_url: str
    process: subprocess.Popen[bytes]

    def make_bucket(self, name: str | None = None) -> Bucket:
        """Make a bucket that nobody else has."""
        bucket = Bucket(name or f"bucket-{os.getpid()}-{next(_NUMBERS)}", self.endpoint_url)
        bucket.client.create_bucket(Bucket=bucket.name)
        return bucket


def credentials() -> dict[str, str]:
    """Variables that hide the user's AWS configuration from a process, and the machine's."""
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextmanager
def ministack() -> Iterator[S3Server]:
    """Run a server that honours conditions, at a port of its own."""
    variables = {"GATEWAY_PORT": "0", "BIND_HOST": "127.0.0.1", "IOT_MTLS_ENABLED": "0", "SERVICES": "s3"}
    with _running([os.path.join(_SCRIPTS, "ministack")], variables) as server:
        yield server


@contextmanager
def moto() -> Iterator[S3Server]:
    """Run a server that ignores conditions of copies and of completed uploads, at a port of its own."""
    with _running([os.path.join(_SCRIPTS, "moto_server"), "-H", "127.0.0.1", "-p", "0"], {}) as server:
        yield server


@contextmanager
def guarded() -> Iterator[S3Server]:
    """Run a server that looks at policies from `guard` on, and else is that of `moto`."""
    command = [os.path.join(_SCRIPTS, "moto_server"), "-H", "127.0.0.1", "-p", "0"]
    with _running(command, {"INITIAL_NO_AUTH_ACTION_COUNT": "1000000"}) as server:
        yield server


def guard(server: S3Server) -> None:
    """Let a server of `guarded` look at policies from now on."""
    url, headers = f"{server.endpoint_url}/moto-api/reset-auth", {"Content-Type": "text/plain"}
    request = urllib.request.Request(url, data=b"0", headers=headers, method="POST")
    with urllib.request.urlopen(request, timeout=_PATIENCE):
        pass


def make_user(server: S3Server, name: str, *rules: tuple[Sequence[str], str]) -> dict[str, str]:
    """Make a user who may do what *rules* say, actions and a resource each; return variables with the credentials."""
    iam = boto3.client(
        "iam",
        endpoint_url=server.endpoint_url,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    )
    statements = [{"Effect": "Allow", "Action": list(actions), "Resource": resource} for actions, resource in rules]
    iam.create_user(UserName=name)
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
    iam.put_user_policy(UserName=name, PolicyName="rules", PolicyDocument=policy)
    made = iam.create_access_key(UserName=name)["AccessKey"]
    keys = {"AWS_ACCESS_KEY_ID": made["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": made["SecretAccessKey"]}
    return {**credentials(), **keys, "AWS_ENDPOINT_URL": server.endpoint_url}


@contextmanager
def _running(command: Sequence[str], variables: Mapping[str, str]) -> Iterator[S3Server]:
    with tempfile.TemporaryDirectory(prefix="shardfs-s3-") as directory:
        log = Path(directory, "log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                tied(*command, end=signal.SIGKILL),
                env={"PATH": os.environ.get("PATH", os.defpath), "TMPDIR": directory, **variables},
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            yield S3Server(_await_endpoint(process, log), process)
        finally:
            process.kill()
            process.wait()


def _await_endpoint(process: subprocess.Popen[bytes], log: Path) -> str:
    """Return where the server says that it listens: it chose the port itself, so that no other can have it."""
    deadline = time.monotonic() + _PATIENCE
    while not (found := _READY.search(log.read_bytes())):
        ended = process.poll() is not None
        if ended or time.monotonic() > deadline:
            raise RuntimeError(f"the server did not get ready: {log.read_text(errors='replace')}")
        time.sleep(0.01)
    return found[1].decode()


def _connection(endpoint_url: str) -> http.client.HTTPConnection:
    """Return the connection of this thread to a server, which is opened again if it was closed."""
    connections: dict[str, http.client.HTTPConnection] = _KEPT.__dict__
    if endpoint_url not in connections:
        connections[endpoint_url] = http.client.HTTPConnection(endpoint_url.removeprefix("http://"), timeout=_PATIENCE)
    return connections[endpoint_url]


@lru_cache(maxsize=8)
def _client(endpoint_url: str) -> Any:
    config = Config(
        retries={"total_max_attempts": 1},
        s3={"addressing_style": "path"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        max_pool_connections=64,
        read_timeout=_PATIENCE,
    )
    return boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=config,
    )


def _join(prefix: str, name: str) -> str:
    return f"{prefix.rstrip('/')}/{name}" if prefix else name
