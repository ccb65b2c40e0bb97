"""The arrays that are written: where their chunks are in each view, and what is in them."""

import errno
import gzip
import hashlib
import math
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

Coordinates = tuple[int, ...]
ABSENT = ""
"""The content of a name that is not there; all others are tokens, which are the same for the same content."""
PRESENT = "any content"
"""What a listing tells of a name that is there."""
BROKEN = "no chunk"
"""The beginning of tokens of what is no chunk; all of it where files are decoded, and it fails with EIO."""


@dataclass(frozen=True)
class View:
    """How a mount shows arrays: in Zarr v3 or v2, encoded or decoded."""

    name: str = "v3"
    decodes: bool = False

    @property
    def arguments(self) -> list[str]:
        """Options of `shardfs mount`."""
        return [f"--view={self.name}", *(["--decode"] if self.decodes else [])]

    @property
    def documents(self) -> tuple[str, str]:
        """Where shape and attributes of an array are."""
        return (".zarray", ".zattrs") if self.name == "v2" else ("zarr.json", "zarr.json")


@dataclass(frozen=True)
class Geometry:
    """An array of bytes; *order* are the axes in which chunks are stored."""

    name: str
    shape: Coordinates
    chunk: Coordinates
    prefix: str = "c/"
    separator: str = "/"
    order: Coordinates | None = None
    is_compressed: bool = False
    is_sharded: bool = True

    @property
    def nbytes(self) -> int:
        return math.prod(self.chunk)

    def grid(self, shape: Sequence[int] | None = None) -> list[Coordinates]:
        """Coordinates of all chunks, for another shape if one is given."""
        pairs = zip(shape or self.shape, self.chunk, strict=True)
        return list(product(*(range(math.ceil(length / part)) for length, part in pairs)))

    def name_of(self, at: Coordinates) -> str:
        """What a chunk is called in notes, in any view."""
        return f"{self.name} {','.join(map(str, at))}"

    def path(self, at: Coordinates, view: View) -> str:
        """Where a chunk is on a mount."""
        if view.name == "v2":
            return f"{self.name}/{'.'.join(map(str, at))}"
        return f"{self.name}/{self.prefix}{self.separator.join(map(str, at))}"

    def is_shown(self, view: View) -> bool:
        return view.name != "v2" or self.order is None

    def is_plain(self, view: View) -> bool:
        """Whether its chunks are ordinary files of the source."""
        return not self.is_sharded and view == View()

    def values(self, chance: random.Random) -> bytes:
        """New values of a chunk, in C order."""
        return chance.randbytes(chance.randrange(1, self.nbytes)).ljust(self.nbytes, b"\7")

    def content(self, values: bytes, view: View) -> bytes:
        """What a file with these values contains."""
        if view.decodes:
            return values
        stored = bytes(values[place] for place in self._places()) if self.order else values
        return gzip.compress(stored, 1, mtime=0) if self.is_compressed else stored

    def decoded(self, content: bytes, view: View) -> bytes | None:
        """The values in a file; None if it is no chunk of this array."""
        if not view.decodes and self.is_compressed:
            try:
                decoder = zlib.decompressobj(31)
                content = decoder.decompress(content)
            except zlib.error:
                return None
            if not decoder.eof or decoder.unused_data.strip(b"\0"):  # gzip may be followed by zeros
                return None
        if len(content) != self.nbytes:
            return None
        if self.order and not view.decodes:
            values = bytearray(self.nbytes)
            for byte, place in zip(content, self._places(), strict=True):
                values[place] = byte
            return bytes(values)
        return content

    def token(self, content: bytes | None, view: View) -> str:
        """The same for the same values, however they are stored; else for the same bytes. None is no file."""
        if content is None:
            return ABSENT
        values = self.decoded(content, view)
        return f"{BROKEN} {_short(content)}" if values is None else _short(values)

    def read(self, path: str, view: View) -> str:
        """Return the token of a file."""
        try:
            with open(path, "rb") as file:
                return self.token(file.read(), view)
        except FileNotFoundError:
            return ABSENT
        except OSError as error:
            if error.errno == errno.EIO and view.decodes:
                return BROKEN
            raise

    def _places(self) -> Iterator[int]:
        """Where in C order the values are that are stored one after another."""
        assert self.order is not None
        strides = [math.prod(self.chunk[axis + 1 :]) for axis in range(len(self.chunk))]
        for at in product(*(range(self.chunk[axis]) for axis in self.order)):
            yield sum(place * strides[axis] for place, axis in zip(at, self.order, strict=True))


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:10]


GEOMETRIES = (
    Geometry("end", (56_000,), (3_000,), is_compressed=True),
    Geometry("unchecked", (7, 4_500), (1, 1_000)),
    Geometry("start", (36_000,), (2_000,), prefix="", separator="."),
    Geometry("nested", (120, 150), (30, 50), prefix="c.", separator="."),
    Geometry("encoded", (16_000,), (1_500,)),
    Geometry("cube", (20, 30, 40), (6, 12, 24), order=(2, 0, 1), is_compressed=True),
    Geometry("unsharded", (12_000,), (1_500,), is_compressed=True, is_sharded=False),
)
CHUNKS = [(geometry, at) for geometry in GEOMETRIES for at in geometry.grid()]
NUMBERS = {(geometry.name, at): number for number, (geometry, at) in enumerate(CHUNKS)}


@dataclass(frozen=True)
class Part:
    """The chunks that one host changes, if there are several: one *number* of so many parts."""

    number: int = 0
    nparts: int = 1

    def of(self, chunks: Sequence[Coordinates], geometry: Geometry) -> list[Coordinates]:
        """Those of an array that are in this part."""
        return [at for at in chunks if NUMBERS[geometry.name, at] % self.nparts == self.number]
