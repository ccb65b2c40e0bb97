"""The same machine as of directories, on a bucket: a writing mount and a plain directory do the same.

Beyond what `tests/support/write_model.py` says, by design: objects have one name and no times of their own, a directory
with objects is not renamed, an empty one is known to its mount only, and who has an object open to read it keeps its
version.
"""

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import rule

from tests.mounts import test_writing_model as local
from tests.mounts.test_writing_model import LONG, files
from tests.support.mounting import Mount
from tests.support.s3_server import S3Server
from tests.support.write_model import make_source, place

PREFIX = "some/data.zarr"


class WritingS3Mount(local.WritingMount):
    """A mount of a bucket and its model."""

    server: ClassVar[S3Server]
    has_objects = True

    def _make_source(self) -> None:
        self.bucket = self.server.make_bucket()
        make_source(self.source)
        (self.source / "g/folder/file").write_bytes(b"file")
        self.bucket.upload(self.source, PREFIX)

    def _mount(self) -> Mount:
        expected = (r"ERROR shardfs\.fuse\.operations: \w+: ",)
        return self.mount_source(self.bucket.url(PREFIX), write=True, env=self.bucket.environment, expect=expected)

    def _stored(self) -> Path:
        return self.bucket.download(Path(tempfile.mkdtemp(dir=self.source.parent)), PREFIX)

    def _mount_again(self) -> None:
        """Empty directories are known to the mount that made them."""
        top = self.model.root
        for directory in sorted(filter(Path.is_dir, top.rglob("*")), reverse=True):
            with suppress(OSError):
                directory.rmdir()
        self.model.make_directories()
        super()._mount_again()

    @rule(old=files, new=files)
    def link(self, old: str, new: str) -> None:
        """Objects have one name."""
        if place(old).kind != "file" or place(new).kind != "file":
            super().link(old, new)

    @rule()
    def crash(self) -> None:
        self.compare()  # the last file that was closed may be on its way yet
        super().crash()

    @rule(old=st.nothing(), new=st.nothing())
    def rename_directory(self, old: str, new: str) -> None:
        """S3 moves no directories."""

    @rule(index=st.nothing())
    def move_array_there_and_back(self, index: int) -> None:
        """S3 moves no directories."""


@pytest.fixture(autouse=True)
def server(s3_server: S3Server, aws_environment: None) -> None:
    WritingS3Mount.server = s3_server


TestWritingS3Mount = WritingS3Mount.TestCase
TestWritingS3Mount.settings = settings(
    max_examples=100 if LONG else 1,
    stateful_step_count=100 if LONG else 50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
