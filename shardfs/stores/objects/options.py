"""How to reach a remote source: `S3Options`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class S3Options:
    """How to reach S3; None is taken from the environment and the AWS configuration files, as boto3 does."""

    profile: str | None = None
    region: str | None = None
    endpoint_url: str | None = None
    anonymous: bool = False
    request_payer: bool = False
    max_connections: int = 64
