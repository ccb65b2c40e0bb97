"""Places for whole datasets: directories, and prefixes of buckets that tests edit as directories."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.datasets import files_below
from tests.support.s3_server import Bucket


@dataclass(frozen=True)
class Place:
    """A dataset, given to commands as its *url*. In a *bucket*, *path* is only a copy to edit."""

    path: Path
    bucket: Bucket | None = None

    @property
    def url(self) -> str:
        return str(self.path) if self.bucket is None else self.bucket.url(self.path.name)

    @contextmanager
    def edited(self) -> Iterator[Path]:
        """Yield a directory; what is changed in it is changed in the place."""
        if self.bucket is None:
            yield self.path
            return
        shutil.rmtree(self.path, ignore_errors=True)
        before = self.files()
        self.bucket.download(self.path, self.path.name)
        yield self.path
        after = files_below(self.path)
        for key in before.keys() - after.keys():
            self.bucket.delete(f"{self.path.name}/{key}")
        for key, data in after.items():
            if before.get(key) != data:
                self.bucket.put(f"{self.path.name}/{key}", data)

    def files(self) -> dict[str, bytes]:
        """Everything that is stored, by its key."""
        if self.bucket is None:
            return files_below(self.path)
        prefix = f"{self.path.name}/"
        return {key.removeprefix(prefix): data for key, data in self.bucket.objects(prefix).items()}


@dataclass(frozen=True)
class Places:
    """Where a source is, and where destinations are."""

    source: Place
    directory: Path
    bucket: Bucket | None

    def made(self, name: str = "made") -> Place:
        """A destination."""
        return Place(self.directory / name, self.bucket)
