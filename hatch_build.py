"""Puts man pages and shell completion into a wheel, where `man` and shells look below a prefix."""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManualHook(BuildHookInterface[Any]):
    """Makes them of the commands when a wheel is built."""

    def dependencies(self) -> list[str]:
        """Return what the commands are loaded with."""
        return list(self.metadata.core.dependencies)

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the files; an installation that follows this tree has none."""
        if version == "standard":
            sys.path.insert(0, self.root)
            from scripts.manual import write  # only here: what it needs is not there yet when this is loaded

            self.share = Path(tempfile.mkdtemp())
            write(self.share)
            build_data["shared_data"][str(self.share)] = "share"

    def finalize(self, version: str, *_: object) -> None:
        """Remove them."""
        if version == "standard":
            shutil.rmtree(self.share)
