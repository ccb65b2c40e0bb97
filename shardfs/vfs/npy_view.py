"""The npy view: every array is one file NAME.npy, attributes are NAME.json, and groups are folders."""

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Final
from weakref import WeakKeyDictionary

from shardfs.dataset.hierarchy import DOCUMENT, Node
from shardfs.format.document import encode_json
from shardfs.format.lens.v2_attributes import v2_attributes
from shardfs.format.metadata import ArrayMetadata, GroupMetadata
from shardfs.vfs.npy_file import NpyArray
from shardfs.vfs.npy_nodes import NpyDirectory
from shardfs.vfs.views import Appearance, Appearances

log = logging.getLogger(__name__)

_NO_NAMES: Final[frozenset[str]] = frozenset()


class NpyView:
    """Arrays as .npy files; what belongs to the source at *url* itself is named by the last part of that.

    *nopened* counts how many times the file of each array was opened, by the path of the array.
    """

    directory = NpyDirectory
    document_names = _NO_NAMES
    translates = True
    looks_above = False

    def __init__(self, url: str) -> None:
        self.source_name = url.rstrip("/").rpartition("/")[2] or "root"
        self._arrays: WeakKeyDictionary[Node, NpyArray] = WeakKeyDictionary()
        self._attributes: WeakKeyDictionary[Node, bytes] = WeakKeyDictionary()
        self._appearances = Appearances(self._appear, "npy")
        self._told: set[str] = set()
        self.nopened: Counter[str] = Counter()

    def documents(self, node: Node) -> Mapping[str, bytes]:
        """Return none: files of this view have names of their own."""
        return {}

    def chunk_view(self, node: Node) -> None:
        """Return None: chunks are not shown."""

    def left_out(self, node: Node) -> str | None:
        """Return the reason why an array has no .npy form."""
        return self._appearances.of(node).reason

    def hides(self, node: Node, name: str) -> bool:
        """Whether *name* is a document of Zarr v3, which would say what is not there."""
        return name == DOCUMENT and node.metadata is not None

    def array(self, node: Node) -> NpyArray | None:
        """Return the array of *node* as it is shown; None if it is none, or has no .npy form."""
        return self._arrays.get(node) if self.left_out(node) is None else None

    def attributes(self, node: Node) -> bytes:
        """Return the attributes of *node* as JSON text: an empty object if it has none, or is not shown."""
        self._appearances.of(node)
        return self._attributes.get(node, b"{}\n")

    def tell_once(self, message: str) -> None:
        """Say something in the log, if it was not said before."""
        if message not in self._told:
            self._told.add(message)
            log.warning("%s", message)

    def _appear(self, node: Node) -> Appearance:
        shown = NpyArray.of(node)
        if shown is not None:
            self._arrays[node] = shown
        metadata = node.metadata
        if isinstance(metadata, ArrayMetadata | GroupMetadata):
            stored = metadata.document.get("attributes", {})
            # Of arrays with the names of axes, and a missing value that is a number, as those of v2 have them.
            attributes = (
                {**stored, **v2_attributes(metadata.document)} if isinstance(metadata, ArrayMetadata) else stored
            )
            if attributes:
                self._attributes[node] = encode_json(attributes)
        return Appearance()
