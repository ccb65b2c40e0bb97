"""An S3 server on this machine, behind a line on which each request takes longer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

BUCKET = "bench"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": "us-east-1"}

LATENCY = 0.02
"""How much longer each request takes, in seconds: about what a client has that is not in the same data centre."""

_PATIENCE = 30.0
_READY = re.compile(rb"Running on http://127\.0\.0\.1:(\d+)")
_NO_CONFIGURATION = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}


@dataclass(frozen=True)
class Service:
    """A server whose data is in memory, with one bucket: clients reach it at `endpoint_url`, late."""

    endpoint_url: str
    direct_url: str
    processes: Mapping[str, int]
    log: Path

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which a client of AWS finds this server, and nothing of the user's."""
        others = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return {**others, **CREDENTIALS, **_NO_CONFIGURATION, "AWS_ENDPOINT_URL": self.endpoint_url}

    @cached_property
    def client(self) -> Any:
        """A client that does not have to wait."""
        return boto3.client(
            "s3",
            endpoint_url=self.direct_url,
            region_name=CREDENTIALS["AWS_REGION"],
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            config=Config(s3={"addressing_style": "path"}),
        )

    def upload(self, directory: Path, prefix: str) -> None:
        """Store the files below a directory as objects, unless they are there."""
        if self.client.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/", MaxKeys=1)["KeyCount"]:
            return
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                with path.open("rb") as body:
                    self.client.put_object(Bucket=BUCKET, Key=f"{prefix}/{path.relative_to(directory)}", Body=body)

    def requests(self) -> int:
        """How many requests came over the line until now."""
        return self.log.read_bytes().count(b"\n")

    def read(self, key: str) -> bytes:
        """The bytes of an object."""
        body: bytes = self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return body

    def delete(self, prefix: str) -> None:
        """Delete all objects below a prefix."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{prefix}/")
        for key in [entry["Key"] for page in pages for entry in page.get("Contents", ())]:
            self.client.delete_object(Bucket=BUCKET, Key=key)


@contextmanager
def serving(latency: float) -> Iterator[Service]:
    """Run the server, and the line before it, until the block is left."""
    with tempfile.TemporaryDirectory(prefix="shardfs-bench-") as directory:
        log = Path(directory, "log")
        variables = {"GATEWAY_PORT": "0", "BIND_HOST": "127.0.0.1", "SERVICES": "s3", "IOT_MTLS_ENABLED": "0"}
        command = [str(Path(sys.executable).with_name("ministack"))]
        with log.open("wb") as output:
            server = subprocess.Popen(
                command,
                cwd=directory,
                env=os.environ | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            port = _await_port(server, log)
            program = str(Path(__file__).with_name("slow_link.py"))
            line = subprocess.Popen(
                [
                    sys.executable,
                    program,
                    "--to",
                    str(port),
                    "--latency",
                    str(latency),
                    "--log",
                    f"{directory}/requests",
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                assert line.stdout is not None
                late = int(line.stdout.readline())
                processes = {"server": server.pid, "line": line.pid}
                service = Service(
                    f"http://127.0.0.1:{late}", f"http://127.0.0.1:{port}", processes, Path(directory, "requests")
                )
                service.client.create_bucket(Bucket=BUCKET)
                yield service
            finally:
                _end(line)
        finally:
            _end(server)


def _await_port(server: subprocess.Popen[bytes], log: Path) -> int:
    """The port that the server chose by itself."""
    deadline = time.monotonic() + _PATIENCE
    while not (found := _READY.search(log.read_bytes())):
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the S3 server does not get ready: {log.read_text(errors='replace')[-1000:]}")
        time.sleep(0.01)
    return int(found[1])


def _end(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
