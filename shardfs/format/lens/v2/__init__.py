"""Zarr v2 documents of nodes that are stored as Zarr v3, and back.

`nodes` has both ways for arrays and groups.  It puts together what the other modules know: `documents` says what a v2
document is, and when two of them say the same; `codecs` leads from v3 codecs to filters and compressor, and back;
`attributes` is for `.zattrs`, and `missing` for the fill value that is a missing value.
"""
