"""The dataset: what the stored names mean.

May import `shardfs.format`, `shardfs.stores` and `shardfs.errors`; knows nothing of files, inodes or views.

The flow of a read enters with a path (`Hierarchy.node`), which answers with a `Node`: an array that is sharded, or
anything else with the reason why it is shown as stored.  `Array.extent(coords)` then finds the shard (`ShardCache`,
which keeps open shards and their indexes) and leaves with an `Extent`, the bytes of one version of one inner chunk.

The flow of a write enters with an array, coordinates and content (`Writer.put`), is in the `WriteAheadLog` and
pending from then on, and leaves by a commit (`GroupCommit`) through `Store.edit`.
"""
