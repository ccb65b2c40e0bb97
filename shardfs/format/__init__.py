"""The format: Zarr metadata and shards as values.

Pure and synchronous: no I/O, no `async`, nothing imported from other rooms but `shardfs.errors`.

The flow enters with the bytes of a `zarr.json` (`metadata.parse_document`), goes through `unshard.unshard`, which
answers with an `UnshardedArray` (the document to show and the `ShardGrid` behind it) or raises the reason why there
is none, and leaves with places: `ShardGrid.locate(coords)` names the shard and the entry of an inner chunk, and
`ShardIndex.range(entry)` the bytes.  The way back: an edited document becomes a stored one by `reshard.reshard`, and
`splice.plan_splice` says how a new version of a shard is put together.
"""
