"""The format: Zarr metadata and shards as values.

Pure and synchronous: no I/O, no `async`, no imports from other packages except `shardfs.errors`.

`metadata.parse_document` parses a `zarr.json`, using the value types of `document`. `lens.unsharded.describe` returns
an `UnshardedArray`, the document to show and the `ShardGrid` behind it, or raises the reason why there is none.
`ShardGrid.locate(coords)` returns the shard and the index entry of an inner chunk, and `ShardIndex.range(entry)` its
bytes. `update.plan_write` plans a new version of a shard.

`dtype` knows data types and fill values, `grid` chunk grids and chunk keys, and `codecs` how chunks are encoded. The
modules in `lens` make the views.
"""
