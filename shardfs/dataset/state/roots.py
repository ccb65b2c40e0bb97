"""Where the slots of a source are: in the source, or, for a remote one, in what stands for it on this machine.

That is a directory of the user's state home, `shardfs/remote/<name>-<hash>`; `source.json` in it names the source.
"""

import hashlib
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final

from shardfs.dataset.state.directory import NAMES, make_directories, needed, state_home, sync_directory
from shardfs.errors import SourceError
from shardfs.stores.base import Address, Descriptor, Reader
from shardfs.stores.kept_files import read_note, write_note

SOURCE: Final = "source.json"
NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,8}")
_MAX_NAME: Final = 80
_MAX_NAMES: Final = 10_000
"""How many names in a directory are looked at: others may have made any number of them."""


@dataclass(frozen=True, slots=True)
class StateRoot:
    """The directory at the absolute *path* in which the slots of the source at *address* are.

    *address* is None if the directory does not name its source. *opened* is its descriptor, as in `StateDirectory`.
    """

    path: str
    address: Address | None
    opened: Descriptor | None = None

    @property
    def at(self) -> str:
        """A path that leads to it."""
        return self.path if self.opened is None else self.opened.path


def root_of(store: Reader) -> StateRoot:
    """Return where the slots of a source are, or would be."""
    if store.root is not None:
        return StateRoot(store.root, store.address, store.directory)
    return remote_root(_directory(store.address))


def made_root(store: Reader) -> StateRoot:
    """Return where the slots of a source are; of a remote one, this is made if it is missing."""
    root = root_of(store)
    if store.root is None:
        make_directories(root.path)
        if not {SOURCE, *NAMES} & {*names_in(root.path)}:
            with needed(root.path):
                write_note(os.path.join(root.path, SOURCE), store.address._asdict())
                sync_directory(root.path)
        root = root_of(store)
        if root.address is None:
            raise SourceError(f"{root.path} does not name {store.address} as its source; move it away")
    return root


def remote_root(directory: str) -> StateRoot:
    """Return what stands for a remote source on this machine; without an address if it names none, or another one."""
    address = None
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        note = read_note(os.path.join(directory, SOURCE))
        address = Address(str(note["url"]), str(note["endpoint"]))
    return StateRoot(directory, address if address is not None and _directory(address) == directory else None)


def _remote_home() -> str:
    return os.path.join(state_home(), "shardfs", "remote")


def _directory(address: Address) -> str:
    name = re.sub(r"[^\w.-]+", "-", address.url.partition("://")[2], flags=re.ASCII).strip("-.")[:_MAX_NAME]
    digest = hashlib.sha256("\n".join(address).encode(errors="surrogateescape")).hexdigest()[:16]
    return os.path.join(_remote_home(), f"{name}-{digest}")


def all_roots() -> Sequence[StateRoot]:
    """Return what stands for remote sources on this machine."""
    home = _remote_home()
    return [remote_root(os.path.join(home, name)) for name in sorted(names_in(home))]


def names_in(directory: str) -> Sequence[str]:
    """Return the names in a directory, as far as there are not too many; none if it cannot be read."""
    with suppress(OSError), os.scandir(directory) as entries:
        return [entry.name for entry in islice(entries, _MAX_NAMES)]
    return []
