"""What a tree shows, and whether it may be changed: options that a mount and all other doors have."""

from dataclasses import dataclass
from typing import ClassVar, Final

from shardfs.errors import UsageError
from shardfs.format.document import drafts_of

VIEWS: Final = ("v3", "v2", "npy")
"""The views; `shardfs.vfs.views.make_view` makes them."""

DIMENSION_SEPARATORS: Final = (".", "/")
"""The separators of chunk coordinates in Zarr v2."""


def parse_address(option: str, text: str) -> tuple[str, int]:
    """Return host and port of ADDRESS:PORT, given as *option*; the default address is this machine.

    Raises `UsageError`.
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and len(port) <= 5) or int(port) >= 2**16:
        raise UsageError(f"{option} takes ADDRESS:PORT, or a port of 127.0.0.1, and not {text!r}")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


@dataclass(frozen=True)
class TreeOptions:
    """Options with the names and the meaning that they have on the command line.

    *view* is the view, "v3", "v2" or "npy"; with *decode*, chunk files of v3 and v2 contain plain array bytes.
    *dimension_separator* separates the coordinates in chunk names of the view v2; None is ".". With *fill_missing*,
    that view shows the missing value of xarray as the fill value. Arrays that only the *draft* of a specification
    allows, "sharding-1.1", are shown by the view v3. At most *decode_cache* bytes of decoded chunks are
    cached.

    With *write*, files can be written. *shards*, one number of chunks for all axes or one for each, makes new arrays
    sharded. *auto_compact* is the share of dead bytes from which a shard is rewritten, not appended to. *single_writer*
    promises that nobody else writes to a remote source, so that its server need not keep writers apart.

    Names, sizes and listings are cached for *metadata_ttl* seconds; None is 1 for a directory and 60 for S3.

    Raises `UsageError` for options that contradict each other. With *shows_every_view*, the others are shown beside
    *view*, with the options that they have.
    """

    shows_every_view: ClassVar[bool] = False

    metadata_ttl: float | None = None
    write: bool = False
    shards: tuple[int, ...] | None = None
    auto_compact: float | None = None
    single_writer: bool = False
    view: str = "v3"
    decode: bool = False
    dimension_separator: str | None = None
    fill_missing: bool = True
    draft: str | None = None
    decode_cache: int = 256 * 2**20

    def __post_init__(self) -> None:
        is_npy, is_v2, separator = self.view == "npy", self.view == "v2", self.dimension_separator
        has_v2 = is_v2 or self.shows_every_view
        decodes = self.decode or is_npy or self.shows_every_view
        has_cache_size = self.decode_cache != TreeOptions.decode_cache
        mistakes = {
            "--shards needs a writing mount: add --write": self.shards is not None and not self.write,
            "--auto-compact needs a writing mount: add --write": self.auto_compact is not None and not self.write,
            "--single-writer needs a writing mount: add --write": self.single_writer and not self.write,
            "--metadata-ttl must be at least 0 seconds": self.metadata_ttl is not None and not self.metadata_ttl >= 0,
            f"there is no view {self.view!r}: choose v3, v2 or npy": self.view not in VIEWS,
            "--view npy is read-only: leave out --write, or write through --view v3 or v2": is_npy and self.write,
            "--view npy is always decoded: leave out --decode": is_npy and self.decode,
            "--dimension-separator needs Zarr v2: add --view v2": separator is not None and not has_v2,
            f"--dimension-separator cannot be {separator!r}: choose . or /": separator not in (None, ".", "/"),
            "--fill-missing needs Zarr v2: add --view v2": not self.fill_missing and not has_v2,
            "--draft is read-only: leave out --write": self.draft is not None and self.write,
            "--draft needs --view v3": self.draft is not None and self.view != "v3" and not self.shows_every_view,
            "--decode-cache must be at least 1 byte": self.decode_cache < 1,
            "--decode-cache needs a mount that decodes: add --decode or --view npy": has_cache_size and not decodes,
        }
        for mistake, is_made in mistakes.items():
            if is_made:
                raise UsageError(mistake)
        drafts_of(self.draft)  # or an error, if there is no such draft

    @property
    def access(self) -> str:
        """Whether files can be written, in a word."""
        return "read-write" if self.write else "read-only"

    @property
    def view_words(self) -> str:
        """The view, in words."""
        return self.view + (", decoded" if self.decode else "")
