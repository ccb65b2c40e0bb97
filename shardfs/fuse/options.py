"""How to mount, as the command line, the Python interface and `-o` say it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardfs.errors import UsageError


@dataclass(frozen=True)
class MountOptions:
    """How to mount.

    *metadata_ttl* is for how many seconds what was seen is believed; *page_cache* lets the kernel keep the bytes of
    chunk files; *fuse_options* go to libfuse as they are.
    """

    metadata_ttl: float = 1.0
    allow_other: bool = False
    page_cache: bool = False
    fuse_options: tuple[str, ...] = ()

    def with_fuse_options(self, options: Sequence[str]) -> "MountOptions":
        """Return these options changed by the values of `-o`, each a list separated by commas.

        Raises `UsageError` for one that a read-only mount cannot honour.
        """
        changed = self
        for option in (word for value in options for word in value.split(",") if word):
            match option:
                case "ro":
                    pass
                case "rw":
                    raise UsageError("-o rw: writing through the mount is not supported yet; mount read-only")
                case "allow_other":
                    changed = replace(changed, allow_other=True)
                case _ if option.partition("=")[0] in ("subtype", "fsname"):
                    raise UsageError(f"-o {option}: shardfs sets it itself, to know its mounts again")
                case _ if not option.isascii():
                    raise UsageError(f"-o {option}: FUSE options are ASCII")
                case _:
                    changed = replace(changed, fuse_options=(*changed.fuse_options, option))
        return changed

    def to_arguments(self) -> list[str]:
        """Return the options as arguments of `shardfs mount`."""
        return [
            f"--metadata-ttl={self.metadata_ttl}",
            *(["--allow-other"] if self.allow_other else []),
            *(["--page-cache"] if self.page_cache else []),
            *(f"-o{option}" for option in self.fuse_options),
        ]
