"""N5, which is recognised, and read by its own programs."""

from typing import Final

from shardfs.formats import Format


class N5(Format):
    """A group or an array of N5."""

    name = "n5"

    def remark(self, names: frozenset[str]) -> str | None:
        """Say that no mount is needed."""
        is_one = "attributes.json" in names
        return "it is N5, which has no Zarr shards; programs that read N5 need no mount" if is_one else None


FORMAT: Final = N5()
