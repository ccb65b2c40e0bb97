"""Lenses: how stored documents are shown in a view, and how edits of what is shown are stored. Pure.

One direction makes the shown document from the stored one, or raises the reason why nothing is shown. The other takes
an edited document, and returns the document to be stored, or raises the reason why the edit is refused. Whatever was
not edited stays as it is stored, spelling included.
"""

from typing import Protocol

from shardfs.format.document import Document
from shardfs.format.metadata import ArrayMetadata


class Lens(Protocol):
    """How the documents of arrays are shown.

    `put(stored, get(stored))` is the stored document, and `get(put(stored, shown))` means the same as *shown*.
    """

    def get(self, stored: ArrayMetadata) -> Document:
        """Return the document that is shown; `stored.document` itself if the array is shown as stored.

        Raises `NotShownError` or `NotUnshardable` with the reason if it is not shown at all.
        """

    def put(self, stored: ArrayMetadata, shown: ArrayMetadata) -> Document:
        """Return the document to be stored for the array *stored* after an edit to *shown*.

        Raises `RefusedError` with the reason if the edit changes what stored bytes mean.
        """
