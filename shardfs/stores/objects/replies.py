"""Replies as values, checked field by field.

Whoever answers may be no server of the kind that it is taken for, or may be behind a proxy that changes what it passes
on. Every function here raises `FailedRequest` for a reply that cannot be used, with a reason that names the field.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Final
from urllib.parse import unquote, unquote_plus
from xml.etree import ElementTree

from shardfs.stores.objects.failures import (
    COMPRESSED,
    NO_SUCH_SIZE,
    NO_VERSION,
    NONSENSE,
    TOO_LONG,
    WEAK_ETAG,
    FailedRequest,
    invalid,
)
from shardfs.stores.objects.requests import ListPage, ObjectStat

MAX_XML_NBYTES: Final = 8 * 2**20
"""More than any reply has that is no object: the longest are listings, of 1000 keys of 1024 bytes."""

_MAX_MARKUP: Final = 128 * 1024
"""How many characters of `_MARKUP` a reply may have: an entry of a listing has fewer than 100 of them."""

_MARKUP: Final = (b"<", b"'", b'"', b"&", b"\n", b"\r")
"""What begins an element, an attribute, or a piece of text, each of which takes many times its length in memory."""

_MAX_SIZE: Final = 2**63 - 1
_MAX_DATE: Final = 64
_NUMBER: Final = re.compile(r"\d{1,19}")
_ETAG: Final = re.compile(r"[\x20-\x7e\x80-\xff]{1,1024}")
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,20})-(\d{1,20})/(\d{1,20})")
_DOCTYPE: Final = b"<!DOCTYPE"
_QUOTE: Final = '"'


def content_range(headers: Mapping[str, str]) -> tuple[int, int, int] | None:
    """Return offset and size of the part that came, and the size of the object; None if the reply does not say."""
    found = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
    return (int(found[1]), int(found[2]) + 1 - int(found[1]), int(found[3])) if found is not None else None


def content_length(headers: Mapping[str, str]) -> int:
    """Return the size of the object that was asked for by HEAD."""
    return number(headers.get("content-length"), "Content-Length")


def states_more(length: str, nbytes: int) -> bool:
    """Whether a `Content-Length` is a number, and more than *nbytes*."""
    return length.isdecimal() and (_NUMBER.fullmatch(length) is None or int(length) > nbytes)


def number(words: str | None, field: str) -> int:
    """Return a size."""
    if words is None or _NUMBER.fullmatch(words) is None or int(words) > _MAX_SIZE:
        raise FailedRequest(invalid(field))
    return int(words)


def strict_stat(size: int, etag: str | None, modified: int | None) -> ObjectStat:
    """Return the state of an object on a server that gives each version its ETag; *modified* is in seconds."""
    if modified is None:
        raise FailedRequest(invalid("Last-Modified"))
    return ObjectStat(_checked(size), quoted(etag), modified * 10**9)


def lenient_stat(size: int, etag: str | None, modified: int | None) -> ObjectStat:
    """Return the state of an object; its ETag names a version also if the server has no strong ETag for it."""
    seconds = max(0, modified or 0)
    if etag and not etag.startswith("W/"):
        version = quoted(etag)
    elif modified is not None:
        version = f"modified {seconds} with {size} bytes"
    else:
        raise FailedRequest(NO_VERSION)
    return ObjectStat(_checked(size), version, seconds * 10**9)


def modified_of(etag: str) -> int | None:
    """Return the time that names a version, of `lenient_stat`; None if a strong ETag does."""
    words = etag.split()
    return int(words[1]) if len(words) == 5 and words[0] == "modified" else None


def _checked(size: int) -> int:
    if size > _MAX_SIZE:
        raise FailedRequest(NO_SUCH_SIZE)
    return size


def quoted(etag: object) -> str:
    """Return an ETag with the quotes that some servers omit; it goes back to the server as a header."""
    if not isinstance(etag, str) or _ETAG.fullmatch(etag.strip('"')) is None:
        raise FailedRequest(invalid("ETag, by which versions of an object are told apart"))
    if etag.startswith("W/"):
        raise FailedRequest(WEAK_ETAG)
    return etag if etag[0] == etag[-1] == _QUOTE else f'"{etag.strip(_QUOTE)}"'


def last_modified(headers: Mapping[str, str]) -> int | None:
    """Return the time of the last change in seconds; None if the reply states none."""
    modified = headers.get("last-modified")
    return seconds_of(modified, "Last-Modified") if modified is not None else None


@lru_cache(maxsize=256)
def seconds_of(date: str, field: str) -> int:
    """Return a time as HTTP has it, or as listings of S3 do, in whole seconds: headers have no fractions."""
    if len(date) > _MAX_DATE:
        raise FailedRequest(invalid(field))
    try:
        when = datetime.fromisoformat(date) if date[:1].isdecimal() else parsedate_to_datetime(date)
        return int((when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        raise FailedRequest(invalid(field)) from None


def require_xml(headers: Mapping[str, str]) -> int:
    """Return how long a reply that is XML may be."""
    if headers.get("content-encoding", "identity") not in ("", "identity", "aws-chunked"):
        raise FailedRequest(COMPRESSED)
    if number(headers.get("content-length", "0"), "Content-Length") > MAX_XML_NBYTES:
        raise FailedRequest(TOO_LONG)
    return MAX_XML_NBYTES


def require_little_markup(data: bytes) -> None:
    """Check that XML takes not much more memory than its text, before it is parsed."""
    if sum(map(data.count, _MARKUP)) > _MAX_MARKUP:
        raise FailedRequest(TOO_LONG)


def xml_of(body: memoryview, root: str) -> ElementTree.Element:
    """Return the element *root* that is all of a body, without namespaces."""
    data = bytes(body)
    require_little_markup(data)
    try:
        # Other encodings hide what is looked for: UTF-16 has NULs, and the parser takes no others.
        if _DOCTYPE in data or b"\0" in data:
            raise FailedRequest(NONSENSE)
        parser = ElementTree.XMLParser(encoding="utf-8")  # noqa: S314 - what would expand begins with a document type
        element = ElementTree.fromstring(data, parser)  # noqa: S314
    except ElementTree.ParseError:
        raise FailedRequest(NONSENSE) from None
    for one in element.iter():
        one.tag = one.tag.rpartition("}")[2]
    if element.tag != root:
        raise FailedRequest(NONSENSE)
    return element


def error_of(body: memoryview) -> ElementTree.Element | None:
    """Return the body of an error; None if it is none that is understood."""
    try:
        return xml_of(body, "Error")
    except FailedRequest:
        return None


def code_of(body: memoryview) -> str:
    """Return the code in the body of an error; "" if it has none."""
    error = error_of(body)
    return "" if error is None else error.findtext("Code", "")


def text(element: ElementTree.Element, field: str) -> str:
    """Return a field that is never empty."""
    value = element.findtext(field)
    if not value:
        raise FailedRequest(invalid(field))
    return value


def s3_page(body: memoryview) -> ListPage:
    """Return a page of ListObjectsV2, with full keys."""
    page = xml_of(body, "ListBucketResult")
    decode = unquote_plus if page.findtext("EncodingType") == "url" else str
    objects = []
    for entry in page.iter("Contents"):
        key, size = decode(text(entry, "Key")), number(entry.findtext("Size"), "Size")
        modified = seconds_of(text(entry, "LastModified"), "LastModified")
        objects.append((key, strict_stat(size, entry.findtext("ETag"), modified)))
    prefixes = [decode(text(entry, "Prefix")) for entry in page.iter("CommonPrefixes")]
    is_cut = page.findtext("IsTruncated", "").strip() == "true"
    return ListPage(objects, prefixes, page.findtext("NextContinuationToken", "") if is_cut else None)


def azure_page(body: memoryview) -> ListPage:
    """Return a page of List Blobs, with full keys; entries for directories, as hierarchical accounts have, are not."""
    page = xml_of(body, "EnumerationResults")
    objects = [_blob(blob) for blob in page.iter("Blob") if blob.findtext("Properties/ResourceType") != "directory"]
    prefixes = [_blob_name(entry) for entry in page.iter("BlobPrefix")]
    return ListPage(objects, prefixes, page.findtext("NextMarker") or None)


def _blob(blob: ElementTree.Element) -> tuple[str, ObjectStat]:
    size = number(blob.findtext("Properties/Content-Length"), "Content-Length")
    modified = seconds_of(text(blob, "Properties/Last-Modified"), "Last-Modified")
    return _blob_name(blob), strict_stat(size, blob.findtext("Properties/Etag"), modified)


def _blob_name(entry: ElementTree.Element) -> str:
    name = entry.find("Name")
    decode = unquote if name is not None and name.get("Encoded") == "true" else str
    return decode(text(entry, "Name"))


def below(page: ListPage, full: str, start: int) -> ListPage:
    """Return a page with the keys that begin with *full*, from character *start* on.

    Some servers list others too, if a prefix ends with several slashes.
    """
    return ListPage(
        [(key[start:], stat) for key, stat in page.objects if key.startswith(full)],
        [name[start:] for name in page.prefixes if name.startswith(full)],
        page.token,
    )
