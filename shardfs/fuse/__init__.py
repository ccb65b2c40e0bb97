"""FUSE: the only room that imports pyfuse3.

`operations` has one short method per request and calls `shardfs.vfs.tree`; `errno` is the one table from errors to
numbers; `mount` is the life of a mount: checks before it, the event loop, signals, and its end.
"""
