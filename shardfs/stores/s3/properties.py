"""The properties of an object, from replies and to requests."""

from collections.abc import Mapping
from typing import Any, Final

from shardfs.stores.s3.objects import Properties

_HEADERS: Final = (
    "CacheControl",
    "ContentDisposition",
    "ContentEncoding",
    "ContentLanguage",
    "ContentType",
    "SSEKMSKeyId",
    "ServerSideEncryption",
    "StorageClass",
    "WebsiteRedirectLocation",
)
_TRUE: Final = "true"


def properties_of(reply: Mapping[str, Any]) -> Properties:
    """Return the properties that a reply to HEAD names."""
    headers = {name: str(reply[name]) for name in _HEADERS if reply.get(name)}
    if reply.get("BucketKeyEnabled"):
        headers["BucketKeyEnabled"] = _TRUE
    if "Expires" in reply:  # else it is no date, and could not be sent
        headers["Expires"] = str(reply["ExpiresString"])
    return Properties(headers, dict(reply.get("Metadata", {})))


def to_arguments(properties: Properties) -> dict[str, Any]:
    """Return the arguments with which a new object, or a multipart upload, gets the properties."""
    return {**_typed(properties.headers), "Metadata": dict(properties.metadata)}


def _typed(headers: Mapping[str, str]) -> dict[str, Any]:
    return {name: value == _TRUE if name == "BucketKeyEnabled" else value for name, value in headers.items()}
