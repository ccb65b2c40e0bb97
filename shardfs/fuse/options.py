"""How to mount, as the command line, the Python interface and `-o` say it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardfs.errors import UsageError


@dataclass(frozen=True)
class MountOptions:
    """How to mount.

    *metadata_ttl* is for how many seconds what was seen is believed, None being what suits the source; *page_cache*
    lets the kernel keep the bytes of chunk files; *fuse_options* go to libfuse as they are.  With *write* the mount may
    be written to; *chunks_per_shard* is how new arrays are sharded then, one number for all axes or one for each, and
    *auto_compact* from which share of dead bytes on a shard that was written is rewritten.  A *single_writer* promises
    that nobody else writes to a remote source, whose server then need not keep writers apart.
    """

    metadata_ttl: float | None = None
    allow_other: bool = False
    page_cache: bool = False
    fuse_options: tuple[str, ...] = ()
    write: bool = False
    chunks_per_shard: tuple[int, ...] | None = None
    auto_compact: float | None = None
    single_writer: bool = False

    def __post_init__(self) -> None:
        if not self.write and (self.chunks_per_shard is not None or self.auto_compact is not None):
            raise UsageError("--shards and --auto-compact are for a mount that is written to: add --write")
        if not self.write and self.single_writer:
            raise UsageError("--single-writer is for a mount that is written to: add --write")

    def with_fuse_options(self, options: Sequence[str]) -> "MountOptions":
        """Return these options changed by the values of `-o`, each a list separated by commas.

        Raises `UsageError` for one that the mount cannot honour.
        """
        changed = self
        words = [word for value in options for word in value.split(",") if word]
        if "ro" in words and (self.write or "rw" in words):
            raise UsageError(f"-o ro contradicts {'--write' if self.write else '-o rw'}: give one of them")
        for option in words:
            match option:
                case "ro":
                    pass
                case "rw":
                    changed = replace(changed, write=True)
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
            *([f"--metadata-ttl={self.metadata_ttl}"] if self.metadata_ttl is not None else []),
            *(["--allow-other"] if self.allow_other else []),
            *(["--page-cache"] if self.page_cache else []),
            *(["--write"] if self.write else []),
            *([f"--shards={','.join(map(str, self.chunks_per_shard))}"] if self.chunks_per_shard else []),
            *([f"--auto-compact={self.auto_compact}"] if self.auto_compact is not None else []),
            *(["--single-writer"] if self.single_writer else []),
            *(f"-o{option}" for option in self.fuse_options),
        ]
