"""Fetch URLs over some keep-alive connections at a time, and print seconds and a checksum; knows no library for HTTP.

Arguments: the port, how many connections, and the paths, one per line on standard input.
"""

from __future__ import annotations

import socket
import sys
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor


def fetch(port: int, paths: Sequence[str]) -> int:
    """Fetch *paths* one after another over one connection; returns the sum of the checksums of the bodies."""
    found = 0
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = bytearray(2**21)
        for path in paths:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            filled, wanted, start = 0, 0, 0
            while not wanted or filled < wanted:
                count = connection.recv_into(memoryview(buffer)[filled:])
                if not count:
                    raise ConnectionError(f"{path} breaks off")
                filled += count
                if not wanted and (end := buffer.find(b"\r\n\r\n", 0, filled)) >= 0:
                    head = bytes(buffer[:end]).lower()
                    if b" 200" not in head[:16]:
                        raise RuntimeError(f"{path}: {head[:200]!r}")
                    start = end + 4
                    wanted = start + int(head.partition(b"content-length:")[2].split()[0])
            found += zlib.adler32(memoryview(buffer)[start:wanted])
    return found


def main() -> None:
    """Fetch what standard input names."""
    port, nconnections = int(sys.argv[1]), int(sys.argv[2])
    paths = sys.stdin.read().split()
    shares = [paths[n::nconnections] for n in range(nconnections)]
    with ThreadPoolExecutor(nconnections) as pool:
        begun = time.perf_counter()
        found = sum(pool.map(lambda share: fetch(port, share), shares))
        print(time.perf_counter() - begun, found)


if __name__ == "__main__":
    main()
