"""Opens a source on a web server, or in a bucket of Google or Azure."""

import trio

from shardfs.errors import SourceError
from shardfs.stores.clouds.azure import AzureService
from shardfs.stores.clouds.google import GoogleService
from shardfs.stores.clouds.outline import OutlineOf
from shardfs.stores.clouds.store import CloudBucketStore, WebFiles, WebStore
from shardfs.stores.clouds.web import WebClient, WebService
from shardfs.stores.objects.client import Client
from shardfs.stores.objects.disk_cache import cache_of
from shardfs.stores.objects.location import CloudLocation
from shardfs.stores.objects.options import RemoteOptions
from shardfs.stores.objects.requests import Counts


def open_reader(
    session: trio.Nursery, location: CloudLocation, options: RemoteOptions, ttl: float, outline_of: OutlineOf | None
) -> CloudBucketStore | WebStore:
    """Open a source whose names are found by listing it, or on a web server by its documents."""
    if not location.is_web:
        return _bucket(session, location, options, ttl)
    if outline_of is None:
        raise SourceError(f"{location.url} cannot be opened here: nothing reads its documents, and it lists no names")
    client = _web_client(location, options)
    cache = cache_of(options.cache, options.cache_size, client.counts)
    complete = options.assume_complete
    return WebStore(client, session, outline_of, ttl=ttl, cache=cache, assumes_complete=complete)


def open_files(
    session: trio.Nursery, location: CloudLocation, options: RemoteOptions, ttl: float
) -> CloudBucketStore | WebFiles:
    """Open a source of which only files are read whose names are known."""
    if not location.is_web:
        return _bucket(session, location, options, ttl)
    client = _web_client(location, options)
    return WebFiles(client, session, ttl=ttl, cache=cache_of(options.cache, options.cache_size, client.counts))


def _web_client(location: CloudLocation, options: RemoteOptions) -> WebClient:
    return WebClient(WebService(location), Counts(), max_connections=options.max_connections)


def _bucket(session: trio.Nursery, location: CloudLocation, options: RemoteOptions, ttl: float) -> CloudBucketStore:
    service = (GoogleService if location.scheme == "gs" else AzureService)(location)
    client = Client(service, Counts(), max_connections=options.max_connections)
    cache = cache_of(options.cache, options.cache_size, client.counts)
    return CloudBucketStore(client, session, ttl=ttl, cache=cache)
