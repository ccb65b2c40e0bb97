"""Sources around and within another one: who writes one of them writes alone."""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from shardfs.dataset.node import DOCUMENT
from shardfs.dataset.state.directory import NAMES, shown
from shardfs.dataset.state.entering import refusal
from shardfs.dataset.state.holder import Holder
from shardfs.dataset.state.roots import StateRoot
from shardfs.dataset.state.slots import Slot, slots_above, slots_in
from shardfs.errors import ShardfsError, SourceError
from shardfs.format.document import MAX_DOCUMENT_NBYTES
from shardfs.format.metadata import ArrayMetadata, parse_document
from shardfs.stores.base import Address, Reader
from shardfs.stores.local.syscalls import READ, user_name


@contextmanager
def overlapping_first(store: Reader, root: StateRoot) -> Iterator[None]:
    """Let an error in the block be about a source around or within this one, if there is one that is written.

    Whose mount that is says more than what this user may not do beside it. Of other sessions of the source it says who
    they are.
    """
    try:
        yield
    except SourceError as error:
        if store.root is not None:
            require_no_overlap(root.path)
        others = [line for slot in slots_in(root) if (line := _described(slot)) and line not in str(error)]
        raise SourceError("; ".join([str(error), *others])) from None


def _described(slot: Slot) -> str | None:
    """Say who has a slot of another user, or what was left in it; None of one with nothing to say."""
    if slot.is_in_use:
        return f"{slot.holder} writes it"
    left = slot.state.left() if slot.owner != os.geteuid() else []
    if not left:
        return None
    owner, command = user_name(slot.owner), shlex.join(["shardfs", "recover", "--apply", slot.state.root])
    what = f"{shown(slot.state.path)} was left by a session of {owner}, with {' and '.join(left)}"
    return f"{what}; run `{command}` as {owner} or root"


def require_in_place(root: StateRoot) -> None:
    """Raise `SourceError` if another directory has the path of *root*: its surroundings are examined by path."""
    if root.opened is not None:
        with suppress(OSError):
            if os.path.samestat(os.stat(root.path), os.fstat(root.opened.fd)):
                return
        raise SourceError(f"{root.path} was moved away or replaced while it was opened; try again")


def require_no_overlap(path: str) -> None:
    """Raise `SourceError` if a directory around *path* or within it is being written, or has a journal."""
    below = (slot for root in _descendants(path) for slot in slots_in(StateRoot(root, Address(root))) if slot.counts)
    for slot in (*slots_above(path), *below):
        root = slot.state.root
        if slot.holder is not None and slot.holder != Holder():
            raise SourceError(refusal(f"{root}, which overlaps {path}, is", slot.state, slot.holder))
        if slot.state.has_journal():
            raise SourceError(
                f"{root}, which overlaps {path}, has a journal of chunks that are not committed yet; "
                f"run `shardfs recover --apply {shlex.quote(root)}` first"
            )


def _descendants(root: str) -> Iterator[str]:
    """Yield the directories below *root* that may contain slots; directories of chunks are not entered.

    A name like a chunk's may be an array: the levels of an image pyramid are `0`, `1` and so on.
    """
    for path, names, _ in os.walk(root):
        if path != root and not {*NAMES}.isdisjoint(names):
            yield path
        array = _array_at(path)
        names[:] = [name for name in names if name not in NAMES and not (array and array.has_shards_at(name))]


def _array_at(directory: str) -> ArrayMetadata | None:
    """Return what the document in a directory says of an array; None if there is none, or it cannot be read."""
    try:
        with open(os.open(os.path.join(directory, DOCUMENT), READ), "rb") as file:
            node = parse_document(file.read(MAX_DOCUMENT_NBYTES + 1))
    except (OSError, ShardfsError):
        return None
    return node if isinstance(node, ArrayMetadata) else None
