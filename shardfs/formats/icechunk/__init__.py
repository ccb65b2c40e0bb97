"""Icechunk repositories, which are recognised, and read by their own library."""

from typing import Final

from shardfs.formats import Format


class Icechunk(Format):
    """A repository."""

    name = "icechunk"

    def remark(self, names: frozenset[str]) -> str | None:
        """Name the library."""
        is_one = "snapshots" in names and not names.isdisjoint({"refs", "repo"})
        return "it is an Icechunk repository; read it with the library icechunk" if is_one else None


FORMAT: Final = Icechunk()
