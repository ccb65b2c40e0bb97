"""What XML of servers may take: memory in proportion to what a listing needs, whatever it is made of."""

import tracemalloc
from collections.abc import Callable

import pytest

from shardfs.stores.objects import replies
from shardfs.stores.objects.failures import FailedRequest
from shardfs.stores.objects.pace import TIMEOUTS
from shardfs.stores.objects.requests import ListPage
from shardfs.stores.s3.replies import read_xml

MOST_NBYTES = replies.MAX_XML_NBYTES
ROOT = b"<ListBucketResult>%b</ListBucketResult>"


def filled(piece: bytes) -> bytes:
    """A reply of full length, of many times the same."""
    return ROOT % (piece * ((MOST_NBYTES - 100) // len(piece)))


HOSTILE = {
    "elements": filled(b"<a/>"),
    "attributes": ROOT % b"".join(b"<a%b/>" % b"".join(b" a%x=''" % n for n in range(1000)) for _ in range(800)),
    "lines": filled(b"ab\n"),
    "returns": filled(b"ab\r"),
    "references": filled(b"ab&lt;"),
    "UTF-16": filled(b"<a/>")[: MOST_NBYTES // 2 - 2].decode().encode("utf-16"),
    "another alphabet": b"<?xml version='1.0' encoding='cp037'?>" + filled(b"<a/>").decode().encode("cp037"),
    "document type": "<!DOCTYPE a [<!ENTITY b 'c'>]><ListBucketResult>&b;</ListBucketResult>".encode("utf-16"),
}


@pytest.mark.parametrize("parse", [replies.s3_page, replies.azure_page], ids=["s3", "azure"])
@pytest.mark.parametrize("name", HOSTILE)
def test_xml_of_whatever_kind_takes_little_more_memory_than_its_length(
    parse: Callable[[memoryview], ListPage], name: str
) -> None:
    body = HOSTILE[name]
    assert len(body) <= MOST_NBYTES
    tracemalloc.start()
    try:
        with pytest.raises(FailedRequest):
            parse(memoryview(body))
        assert tracemalloc.get_traced_memory()[1] < 4 * MOST_NBYTES
    finally:
        tracemalloc.stop()


def test_what_boto3_will_parse_is_judged_by_the_same() -> None:
    body = [HOSTILE["elements"]]
    with pytest.raises(FailedRequest):
        read_xml("", lambda nbytes: body.pop() if body else b"", TIMEOUTS)


S3_ENTRY = """<Contents>
  <Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;abc&quot;</ETag><Size>1</Size>
  <ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm><ChecksumType>FULL_OBJECT</ChecksumType>
  <StorageClass>STANDARD</StorageClass><Owner><ID>me</ID><DisplayName>me</DisplayName></Owner>
  <RestoreStatus><IsRestoreInProgress>false</IsRestoreInProgress></RestoreStatus>
</Contents>
"""
AZURE_ENTRY = f"""<Blob>
  <Name>{{key}}</Name><Properties><Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified><Etag>"0x1"</Etag>
  <Content-Length>1</Content-Length>{"".join(f"<Property-{number}>value</Property-{number}>" for number in range(40))}
  </Properties><OrMetadata/></Blob>
"""


def test_the_longest_listings_that_servers_give_are_read() -> None:
    """Of 1000 keys of 1024 bytes, with everything that a server may say of each."""
    rows = "".join(S3_ENTRY.format(key="%C3%A9" * 508 + f"{number:08}") for number in range(1000))
    body = f"<ListBucketResult><EncodingType>url</EncodingType>{rows}</ListBucketResult>"
    assert len(replies.s3_page(memoryview(body.encode())).objects) == 1000
    rows = "".join(AZURE_ENTRY.format(key="\u00e9" * 1016 + f"{number:08}") for number in range(1000))
    body = f"<EnumerationResults><Blobs>{rows}</Blobs></EnumerationResults>"
    assert len(replies.azure_page(memoryview(body.encode())).objects) == 1000
    assert replies.require_xml({"content-length": str(len(body.encode()))}) == MOST_NBYTES
