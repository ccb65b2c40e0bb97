"""Lenses: how the documents that are stored are shown in a view, and how an edit of what is shown becomes stored.

Pure.  One direction makes what is shown from what is stored, or raises the reason why nothing is shown.  The other
takes what a program wrote over that, and returns the document to be stored, or raises the reason why it is refused.
What was not edited comes back as it is stored, spelling included.
"""

from typing import Protocol

from shardfs.format.document import Document
from shardfs.format.metadata import ArrayMetadata


class Lens(Protocol):
    """How the documents of arrays are shown.

    `put(stored, get(stored))` is what is stored, and `get(put(stored, shown))` says what *shown* says.
    """

    def get(self, stored: ArrayMetadata) -> Document:
        """Return the document that is shown; `stored.document` itself if the array is shown as it is stored.

        Raises `NotShownError` or `NotUnshardable` with the reason if it is not shown at all.
        """

    def put(self, stored: ArrayMetadata, shown: ArrayMetadata) -> Document:
        """Return the document to be stored of an array that is stored as *stored*, and *shown* after an edit.

        Raises `RefusedError` with the reason if the edit changes what stored bytes mean.
        """
