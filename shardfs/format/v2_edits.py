"""Zarr v2 documents that a program wrote, as edits of the Zarr v3 documents that they stand for."""

from shardfs.format.metadata import ArrayMetadata, GroupMetadata, Json


def edit_array(shown: ArrayMetadata, name: str, written: bytes | None, separator: str) -> ArrayMetadata:
    """Return *shown*, an unsharded v3 document, with what a program changed in its document *name*.

    Shape, fill value and attributes may change, and `_ARRAY_DIMENSIONS`, which become dimension names.  Without
    *written*, a `.zattrs` was removed.  Raises `RefusedError` for anything else, and `MetadataError` for what is no such
    document.
    """
    raise NotImplementedError


def edit_group(shown: GroupMetadata, name: str, written: bytes | None) -> GroupMetadata:
    """Return *shown* with what a program changed in its `.zgroup` or `.zattrs`, on the terms of `edit_array`.

    Of `.zmetadata` only the removal is an edit here; see `parse_consolidated`.
    """
    raise NotImplementedError


def parse_consolidated(written: bytes) -> dict[str, dict[str, Json]]:
    """Return the copies of documents in a `.zmetadata`, by path relative to the group ("" is itself) and name.

    Raises `MetadataError` for what is none, or has names and paths that are none.
    """
    raise NotImplementedError


def new_array(zarray: bytes, zattrs: bytes | None, separator: str) -> ArrayMetadata:
    """Return the unsharded v3 document of an array that a program wrote as v2, so that chunks keep their bytes.

    Raises `NotUnshardable` with the reason why there is none, `RefusedError` for another dimension separator than
    *separator*, and `MetadataError` for what is no such document.
    """
    raise NotImplementedError


def new_group(zgroup: bytes, zattrs: bytes | None) -> GroupMetadata:
    """Return the v3 document of a group that a program wrote as v2; raises `MetadataError`."""
    raise NotImplementedError


def check_document(name: str, written: bytes) -> None:
    """Raise `MetadataError` if *written* is no v2 document of this name, which is stored as it is written."""
    raise NotImplementedError
