"""Fill values: the `fill_value` member of a document, and the element that it stands for.

Source: Zarr core specification 3.1, "Fill value", and the specifications of data types.
"""

from shardfs.format.data_type import DataType
from shardfs.format.metadata import Json


def fill_element(data_type: DataType, fill_value: Json) -> bytes:
    """Return the bytes of an element that was never written, little-endian; raises `MetadataError`."""
    raise NotImplementedError
