"""The dataset: what the stored names mean.

It may import `shardfs.format`, `shardfs.stores` and `shardfs.errors`; it knows nothing of files, inodes or views.

A read begins with a path: `Hierarchy.node` returns a `Node`, which has an `Array`, or the reason why it is shown as
stored. `Array.extent(coords)` finds the shard in the `ShardCache`, which keeps open shards and their indexes, and
returns an `Extent`: the bytes of one version of one inner chunk. A write begins with an array, coordinates and content
(`ChunkWriter.put`), is then pending and in the `Journal`, and ends with a commit (`GroupCommit`) through `Store.edit`.
"""
