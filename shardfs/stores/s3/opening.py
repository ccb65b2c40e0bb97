"""Opens a source in a bucket of S3, with the names that shardfs reserves on this machine."""

import trio

from shardfs.stores.clouds.outline import OutlineOf
from shardfs.stores.objects.disk_cache import cache_of
from shardfs.stores.objects.location import S3Location
from shardfs.stores.objects.options import RemoteOptions
from shardfs.stores.objects.requests import Counts
from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.routed import RoutedStore
from shardfs.stores.s3.store import S3Store


def open_reader(
    session: trio.Nursery, location: S3Location, options: RemoteOptions, ttl: float, outline_of: OutlineOf | None
) -> RoutedStore:
    """Open a source whose names are found by listing it."""
    return open_files(session, location, options, ttl)


def open_files(session: trio.Nursery, location: S3Location, options: RemoteOptions, ttl: float) -> RoutedStore:
    """Open a source of which only files are read whose names are known."""
    client = S3Client(location, options, Counts())
    cache = cache_of(options.cache, options.cache_size, client.counts)
    return RoutedStore(S3Store(client, session, ttl=ttl, cache=cache))
