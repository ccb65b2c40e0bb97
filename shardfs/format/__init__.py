"""The format: Zarr metadata and shards as values.

Pure and synchronous: no I/O, no `async`, nothing imported from other rooms but `shardfs.errors`.

The bytes of a `zarr.json` are parsed by `metadata.parse_document`, with the values that `document` knows.
`lens.unsharded.describe` answers with an `UnshardedArray`, the document to show and the `ShardGrid` behind it, or
raises the reason why there is none.
`ShardGrid.locate(coords)` names the shard and the entry of an inner chunk, and `ShardIndex.range(entry)` its bytes.
`update.plan_write` plans a new version of a shard.

Beside these, `dtype` knows data types and fill values, `grid` chunk grids and chunk keys, `codecs` how chunks are
encoded, and `normal_form` when two documents say the same.  `index_search` finds the last whole index of a torn shard.
The views are made by the modules in `lens`.
"""
