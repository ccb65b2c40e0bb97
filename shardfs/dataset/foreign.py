"""Asking all formats: what a directory is, and what documents say of the names below a node."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Final

from shardfs.dataset.worker import Worker
from shardfs.errors import IsADirectoryHereError, NotADirectoryHereError, NotFoundError
from shardfs.format.outline import Outline
from shardfs.formats import FoundNode, SourceDirectory, formats
from shardfs.stores.base import Reader, Stat
from shardfs.stores.cache import while_it_changes

_ABSENT: Final = (NotFoundError, NotADirectoryHereError, IsADirectoryHereError)


async def find_foreign(
    store: Reader, directory: Stat, path: str, known: Mapping[str, FoundNode]
) -> tuple[FoundNode | None, Mapping[str, FoundNode]]:
    """Return what the *directory* at *path* is in another format, None if it is nothing.

    The second value is what each format, by name, has found: it is what is *known* at the next call. The format that it
    had is asked first.
    """
    seen: dict[str, FoundNode] = {}

    def is_other(name: str) -> bool:
        before = known.get(name)
        return before is None or before.node is None

    for one in sorted(formats(), key=lambda one: is_other(one.name)):
        with suppress(*_ABSENT):
            asked = partial(one.find, SourceDirectory(store, path, directory), known.get(one.name))
            answer = await while_it_changes(asked)
            if answer is not None:
                seen[one.name] = answer
                if answer.node is not None:
                    return answer, {one.name: answer}
    return None, seen


def outline_of(path: str, names: tuple[str, ...], *texts: bytes) -> Outline | None:
    """Return what the documents of the node at *path* say; None if they are not those of a node.

    They have these *names*, which are paths relative to the node, and *texts*. What is no sound document says nothing.
    """
    for one in formats():
        if any(row[0] == names[0] for row, _ in one.web):
            return one.outline(path, dict(zip(names, texts, strict=True)))
    return None


class Outlines:
    """What documents say of names in sources that list nothing: the large ones are read by *worker*."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    @cached_property
    def nodes(self) -> Sequence[Sequence[str]]:
        """The documents that a node may have, by their paths: the first of each row is there if any is."""
        return [row for one in formats() for row, _ in one.web]

    @cached_property
    def below(self) -> Mapping[str, Sequence[Sequence[str]]]:
        """The rows that nodes below a source may have, by the first document of its own row."""
        return {row[0]: rows for one in formats() for row, rows in one.web}

    @cached_property
    def looked_for(self) -> Mapping[str, bool]:
        """The documents by which directories are nodes, and whether other files have their names, too."""
        first = frozenset(row[0] for row in self.nodes)
        return {name: name in one.is_usual for one in formats() for name in one.documents if name in first}

    @property
    def sources(self) -> str:
        """In words, what a source can be that lists nothing."""
        return ", or of ".join(one.web_source for one in formats() if one.web_source)

    async def __call__(self, path: str, documents: Mapping[str, bytes]) -> Outline | None:
        """Return what the documents of the node at *path* say; None if they are none."""
        return await self._worker.work(outline_of, path, tuple(documents), *documents.values())
