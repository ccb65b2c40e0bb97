"""Decompression that stops at a limit, of streams that may have several members, or bytes behind them.

What may follow a member is what zarr-python, Python and numcodecs read: zero bytes behind gzip, as padding to a block;
anything behind zlib, of which only the first stream counts; what is no further stream behind bz2 and lzma.
"""

from collections.abc import Callable
from typing import Any, Final

from shardfs.errors import CorruptionError, OversizedDataError

Buffer = bytes | bytearray | memoryview

_MAX_COPIED_NBYTES: Final = 2**35  # for chunks of many parts: each part copies all that follow it


def check_size(size: int, limit: int) -> None:
    """Raise `OversizedDataError` for more than *limit* bytes."""
    if size > limit:
        raise OversizedDataError(f"the data decodes to more than {limit} bytes")


def decode_members(
    new_member: Callable[[], Any],
    data: Buffer,
    limit: int,
    *,
    most: int | None = None,
    padding: bytes = b"",
    no_member: type[Exception] | tuple[type[Exception], ...] = (),
) -> Buffer:
    """Decode concatenated members, at most *limit* bytes; *new_member* returns a decompressor like those of Python.

    Only the first *most* members are decoded. Behind each, *padding* may follow, any number of times. If the
    decompressor raises *no_member* behind the first one, the rest is ignored.
    """
    decoded, rest, copied, count = b"", data, 0, 0
    while True:
        member = new_member()
        try:
            part: bytes = member.decompress(rest, limit + 1 - len(decoded))
        except no_member:
            if not count:
                raise
            return decoded
        decoded += part
        check_size(len(decoded), limit)
        if not member.eof:
            raise CorruptionError("the data is cut short")
        count += 1
        rest = member.unused_data.lstrip(padding) if padding else member.unused_data
        if not rest or count == most:
            return decoded
        copied += len(rest) + len(decoded)
        if copied > _MAX_COPIED_NBYTES:
            raise CorruptionError("the data has too many parts")
