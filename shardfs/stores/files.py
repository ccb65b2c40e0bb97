"""Locations: directories, and parts of buckets and web servers, of which files are read by names that are known."""

from collections.abc import Mapping, Sequence
from os.path import normpath
from typing import Any, Protocol

from shardfs.stores.base import Address, ListedName, Snapshot, Stat
from shardfs.stores.objects.location import CloudLocation, S3Location

AnyLocation = str | S3Location | CloudLocation
"""A directory by its absolute path, or a part of a bucket or of a web server."""


class TargetFiles(Protocol):
    """Files below a root, opened by names that are known otherwise."""

    @property
    def address(self) -> Address:
        """The permanent name of the root."""

    @property
    def lists(self) -> bool:
        """Whether directories can be listed."""

    async def list(self, key: str) -> Sequence[ListedName]:
        """Return the names in a directory."""

    async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> Snapshot:
        """Open a file; links are only followed within the root. Raises the errors of `Reader.open`."""

    async def fresh(self, key: str) -> Stat:
        """Return the status of a file as it is stored now."""

    def forget(self, key: str) -> None:
        """Ask again for *key* at the next request."""

    def statistics(self) -> Mapping[str, Any]:
        """Return counts of requests."""


def name_of(location: AnyLocation) -> str:
    """Return the name of a location, with which those of all files below it begin."""
    match location:
        case str():
            return normpath(location)
        case S3Location():
            return location.url
        case _:
            return location.url.replace(location.base, location.base.lower(), 1) if location.is_web else location.url
