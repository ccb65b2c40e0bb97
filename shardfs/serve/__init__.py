"""HTTP: a source for browsers and everything else that speaks HTTP, in all views at once.

`run` opens the source, listens, and ends on a signal. `server` has the connections, and `exchange` is one request with
its reply: all that is known of h11 and of sockets. `guard` says who may ask. `site` finds what a target stands for, and
answers: files and listings by `files`, changes by `changes`, as `conditions` of the request say; `metrics` are what is
counted. It knows nothing of inodes, shards or journals: what it needs of the tree is in `shardfs.vfs.paths` and
`shardfs.vfs.all_views`.
"""
