"""PNG, read plainly from its specification: the oracle for pictures."""

import struct
import zlib
from typing import Any

import numpy as np

CHANNELS = {3: 1, 6: 4}


def pixels_of(data: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Rows, columns and channels (red, green, blue, opacity) of a PNG without filters; every checksum is right."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        (nbytes,) = struct.unpack_from(">I", data, at)
        name, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + nbytes]
        assert struct.unpack_from(">I", data, at + 8 + nbytes) == (zlib.crc32(name + body),)
        chunks[name] = body
        at += 12 + nbytes
    width, height, depth, color, *others = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert list(chunks) == [b"IHDR", *([b"PLTE", b"tRNS"] if color == 3 else []), b"IDAT", b"IEND"]
    assert (depth, others) == (8, [0, 0, 0])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not rows[:, 0].any()
    pixels = rows[:, 1:].reshape(height, width, CHANNELS[color])
    if color == 3:
        colors = np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)
        palette = np.concatenate([colors, np.frombuffer(chunks[b"tRNS"], np.uint8)[:, np.newaxis]], axis=-1)
        pixels = palette[pixels[..., 0]]
    return pixels
