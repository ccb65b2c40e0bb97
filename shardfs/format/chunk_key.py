"""Chunk key encodings: coordinates in a chunk grid to the key of a chunk, and back.

Source: Zarr core specification 3.1, "Chunk key encoding" (`default`, `v2`).
"""

from dataclasses import dataclass
from typing import Final

from shardfs.errors import MetadataError
from shardfs.format.metadata import Extension, brief

_MAX_DIGITS: Final = 19  # 2**63 - 1 has as many; a longer name is no coordinate, and int() of it costs


@dataclass(frozen=True, slots=True)
class ChunkKeyEncoding:
    """One of the two encodings of the specification, with its separator."""

    name: str
    separator: str

    @classmethod
    def parse(cls, extension: Extension) -> "ChunkKeyEncoding":
        """Read the `chunk_key_encoding` member of an array."""
        defaults = {"default": "/", "v2": "."}
        if extension.name not in defaults:
            raise MetadataError(f"unknown chunk key encoding {extension.name!r}")
        extension.expect("separator")
        separator = extension.configuration.get("separator", defaults[extension.name])
        if separator not in ("/", "."):
            raise MetadataError(f'the separator of chunk keys must be "/" or ".", not {brief(separator)}')
        return cls(extension.name, separator)

    def to_json(self) -> dict[str, object]:
        """Return the long form for a document."""
        return {"name": self.name, "configuration": {"separator": self.separator}}

    def is_nested(self, ndim: int) -> bool:
        """Whether keys of an array with *ndim* axes have one path component per axis (else: one for all)."""
        return self.separator == "/" and ndim > 0

    def root(self, ndim: int) -> str:
        """Directory, relative to the array, below which the components of nested keys lie; "" is the array itself."""
        return "c" if self.name == "default" and self.is_nested(ndim) else ""

    def begins(self, name: str, ndim: int) -> bool:
        """Whether *name*, in the directory of an array with *ndim* axes, is a chunk key or the first part of one."""
        root = self.root(ndim)
        if root:
            return name == root
        return parse_coordinate(name) is not None if self.is_nested(ndim) else self.decode(name, ndim) is not None

    def encode(self, coords: tuple[int, ...]) -> str:
        """Return the key of the chunk at *coords*, relative to the array."""
        if self.name == "default":
            return self.separator.join(["c", *map(str, coords)])
        return self.separator.join(map(str, coords)) or "0"

    def decode(self, key: str, ndim: int) -> tuple[int, ...] | None:
        """Return the coordinates that *key* stands for in an array with *ndim* axes, or None if it is no chunk key."""
        if ndim == 0:
            return () if key == self.encode(()) else None
        components = key.split(self.separator)
        if self.name == "default" and components.pop(0) != "c":
            return None
        if len(components) != ndim:
            return None
        coords = tuple(map(parse_coordinate, components))
        return None if None in coords else coords  # type: ignore[return-value]


def parse_coordinate(text: str) -> int | None:
    """Return the number that one component of a chunk key stands for; None if it is not a canonical decimal."""
    if text.isdecimal() and text.isascii() and len(text) <= _MAX_DIGITS and (text[0] != "0" or len(text) == 1):
        return int(text)
    return None
