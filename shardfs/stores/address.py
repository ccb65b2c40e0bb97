"""How a source is told from all others, on whatever machine and however it was reached."""

from typing import NamedTuple


class Address(NamedTuple):
    """What names a source for good, on any machine: its URL, and the server where that is not the usual one."""

    url: str
    endpoint: str = ""

    def __str__(self) -> str:
        return f"{self.url} at {self.endpoint}" if self.endpoint else self.url
