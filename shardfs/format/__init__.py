"""The format: Zarr metadata and shards as values.

Pure and synchronous: no I/O, no `async`, nothing imported from other rooms but `shardfs.errors`.

The flow enters with the bytes of a `zarr.json` (`metadata.parse_document`), goes through `unshard.unshard`, which
answers with an `UnshardedArray` (the document to show and the `ShardGrid` behind it) or raises the reason why there
is none, and leaves with places: `ShardGrid.locate(coords)` names the shard and the entry of an inner chunk, and
`ShardIndex.range(entry)` the bytes.  The way back: an edited document becomes a stored one by `reshard.reshard`, and
`splice.plan_splice` says how a new version of a shard is put together.

The views stand on that.  What `unshard.describe` answers becomes the document of plain chunks in `plain`, whose
`accept_plain` is the way back, and `chunk_codec` decodes and encodes them; `npy` lays the array out as one file.  It
becomes documents of Zarr v2 in `v2_documents`, and `v2_edits` is the way back.  Those two put together what the other
`v2_` modules know: `v2_types`, `v2_fill_values` and `v2_attributes` lead both ways, `v2_codecs` leads to v2 and
`v2_new_codecs` to v3; `v2_parsing` says what is a document at all, and `v2_normal_form` when two of them say the same.
"""
