"""FUSE: the only room that imports pyfuse3.

The flow of a mount enters with `options` and `mountpoint` (can it be mounted here?), goes to `daemon`, which starts a
fresh process, and there to `mount`: the event loop, signals, and the end.  Requests come in through `waiting` to
`operations`, one short method each, which calls `shardfs.vfs.filesystem`; `errno` is the one table from errors to
numbers.
`control` names the attributes through which commands talk to a mount.
"""
