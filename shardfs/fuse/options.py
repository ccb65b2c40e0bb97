"""The options of a mount, as given on the command line, in Python, or by `-o`."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from shardfs.errors import UsageError
from shardfs.vfs.options import TreeOptions, parse_address

NO_REMOUNT: Final = "-o remount: a mount cannot be changed; unmount it, and mount it again"


def _argument(field: str) -> str:
    return field.replace("_", "-")


@dataclass(frozen=True)
class MountOptions(TreeOptions):
    """The options of `shardfs mount`: those of `TreeOptions`, and those of a mount.

    With *page_cache*, the kernel caches chunk files. *allow_other* lets other users in. *uid*, *gid* and *umask*, if
    not None, are shown instead of the stored owner, group and mode. *fuse_options* go to libfuse unchanged. Prometheus
    can scrape the address *metrics*, such as "127.0.0.1:9464".

    Raises `UsageError` for options that contradict each other.
    """

    allow_other: bool = False
    page_cache: bool = False
    uid: int | None = None
    gid: int | None = None
    umask: int | None = None
    fuse_options: tuple[str, ...] = ()
    metrics: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metrics is not None:
            parse_address("--metrics", self.metrics)

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
