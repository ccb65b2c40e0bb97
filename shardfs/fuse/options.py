"""The options of a mount, as given on the command line, in Python, or by `-o`."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from shardfs.errors import UsageError

VIEWS: Final = ("v3", "v2", "npy")
"""The views; `shardfs.vfs.make_view` makes them."""

DIMENSION_SEPARATORS: Final = (".", "/")
"""The separators of chunk coordinates in Zarr v2."""

NO_REMOUNT: Final = "-o remount: a mount cannot be changed; unmount it, and mount it again"

_ARGUMENTS: Final = {"chunks_per_shard": "shards", "decode_cache_nbytes": "decode-cache"}
"""Options whose names on the command line differ from those here."""


def _argument(field: str) -> str:
    return _ARGUMENTS.get(field, field.replace("_", "-"))


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ADDRESS:PORT; the default address is this machine. Raises `UsageError`."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) >= 2**16:
        raise UsageError(f"--metrics takes ADDRESS:PORT, or a port of 127.0.0.1, and not {text!r}")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


@dataclass(frozen=True)
class MountOptions:
    """The options of `shardfs mount`.

    *view* is the view, "v3", "v2" or "npy"; with *decode*, chunk files of v3 and v2 contain plain array bytes.
    *dimension_separator* separates the coordinates in chunk names of the view v2; None is ".". With *fill_missing*,
    that view shows the missing value of xarray as the fill value. At most *decode_cache_nbytes* bytes of decoded chunks
    are cached.

    With *write*, programs can write to the mount. *chunks_per_shard*, one number for all axes or one for each, makes
    new arrays sharded. *auto_compact* is the share of dead bytes from which a shard is rewritten, not appended to.
    *single_writer* promises that nobody else writes to a remote source, so that its server need not keep writers apart.

    Names, sizes and listings are cached for *metadata_ttl* seconds; None is 1 for a directory and 60 for S3. With
    *page_cache*, the kernel caches chunk files. *allow_other* lets other users in. *uid*, *gid* and *umask*, if not
    None, are shown instead of the stored owner, group and mode. *fuse_options* go to libfuse unchanged. Prometheus can
    scrape the address *metrics*, such as "127.0.0.1:9464".

    Raises `UsageError` for options that contradict each other.
    """

    metadata_ttl: float | None = None
    allow_other: bool = False
    page_cache: bool = False
    uid: int | None = None
    gid: int | None = None
    umask: int | None = None
    fuse_options: tuple[str, ...] = ()
    write: bool = False
    chunks_per_shard: tuple[int, ...] | None = None
    auto_compact: float | None = None
    single_writer: bool = False
    view: str = "v3"
    decode: bool = False
    dimension_separator: str | None = None
    fill_missing: bool = True
    decode_cache_nbytes: int = 256 * 2**20
    metrics: str | None = None

    def __post_init__(self) -> None:
        is_npy, is_v2, separator = self.view == "npy", self.view == "v2", self.dimension_separator
        has_cache_size = self.decode_cache_nbytes != MountOptions.decode_cache_nbytes
        mistakes = {
            "--shards needs a writing mount: add --write": self.chunks_per_shard is not None and not self.write,
            "--auto-compact needs a writing mount: add --write": self.auto_compact is not None and not self.write,
            "--single-writer needs a writing mount: add --write": self.single_writer and not self.write,
            "--metadata-ttl must be at least 0 seconds": self.metadata_ttl is not None and not self.metadata_ttl >= 0,
            f"there is no view {self.view!r}: choose v3, v2 or npy": self.view not in VIEWS,
            "--view npy is read-only: leave out --write, or write through --view v3 or v2": is_npy and self.write,
            "--view npy is always decoded: leave out --decode": is_npy and self.decode,
            "--dimension-separator needs Zarr v2: add --view v2": separator is not None and not is_v2,
            f"--dimension-separator cannot be {separator!r}: choose . or /": separator not in (None, ".", "/"),
            "--fill-missing needs Zarr v2: add --view v2": not self.fill_missing and not is_v2,
            "--decode-cache must be at least 1 byte": self.decode_cache_nbytes < 1,
            "--decode-cache needs a mount that decodes: add --decode or --view npy": has_cache_size
            and not (self.decode or is_npy),
        }
        for mistake, is_made in mistakes.items():
            if is_made:
                raise UsageError(mistake)
        if self.metrics is not None:
            parse_address(self.metrics)

    def to_arguments(self) -> list[str]:
        """Return the options as arguments of `shardfs mount`."""
        arguments = [f"-o{option}" for option in self.fuse_options]
        for field in fields(self):
            value = getattr(self, field.name)
            if value == field.default or field.name == "fuse_options":
                continue
            if isinstance(value, bool):
                text = "" if value else "=no"
            elif isinstance(value, tuple):
                text = f"={','.join(map(str, value))}"
            else:
                text = f"={value:03o}" if field.name == "umask" else f"={value}"
            arguments.append(f"--{_argument(field.name)}{text}")
        return arguments


def parse_fuse_options(values: Sequence[str], *, write: bool, allow_other: bool) -> dict[str, Any]:
    """Return the fields of `MountOptions` that the values of `-o`, comma-separated lists, stand for.

    Raises `UsageError` for an option that the mount cannot honour.
    """
    words = [word for value in values for word in value.split(",") if word]
    if "ro" in words and (write or "rw" in words):
        raise UsageError(f"-o ro contradicts {'--write' if write else '-o rw'}: give one of them")
    ours = {"ro", "rw", "allow_other"}
    for word in words:
        key, _, value = word.partition("=")
        name = key.replace("_", "-")
        if word == "remount":
            raise UsageError(NO_REMOUNT)
        if word not in ours and name in {_argument(field.name) for field in fields(MountOptions)}:
            raise UsageError(f"-o {word}: -o is for options of FUSE; write --{name} {value}".rstrip())
        if name in ("subtype", "fsname") or not word.isascii():
            raise UsageError(f"-o {word}: shardfs sets the source and type itself, and FUSE options are ASCII")
    return {
        "write": write or "rw" in words,
        "allow_other": allow_other or "allow_other" in words,
        "fuse_options": tuple(word for word in words if word not in ours),
    }
