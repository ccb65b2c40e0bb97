"""How to reach a remote source: `S3Options`, and how to cache and list it: `RemoteOptions`."""

from dataclasses import dataclass
from typing import Final

DEFAULT_CACHE_NBYTES: Final = 10 * 2**30


@dataclass(frozen=True, slots=True)
class S3Options:
    """How to reach S3; None is taken from the environment and the AWS configuration files, as boto3 does."""

    profile: str | None = None
    region: str | None = None
    endpoint_url: str | None = None
    anonymous: bool = False
    request_payer: bool = False
    max_connections: int = 64


@dataclass(frozen=True, slots=True)
class RemoteOptions(S3Options):
    """How to reach, cache and list any remote source.

    *cache* is a local directory that keeps at most *cache_size* of fetched data, also for later mounts.
    *assume_complete*: to list the chunks of a source on a web server, ask for each shard that an array may have.
    """

    cache: str | None = None
    cache_size: int = DEFAULT_CACHE_NBYTES
    assume_complete: bool = False
