"""Stores: named bytes, asynchronous; the only package that touches stored data.

It may import `shardfs.errors`, and no other package: a store knows neither Zarr nor FUSE.

Keys are paths relative to the source, separated by "/"; "" is the source itself. Names that are not UTF-8 are decoded
as by `os.fsdecode`. A read begins with a key (`Reader.open`) and returns bytes of one version (`Snapshot.read`). A
change is a new version of one object (`ObjectEdit.splice`), written through `Syscalls` on local disks. Errors of the
operating system or of a client library become `ShardfsError` here, and nowhere else.
"""
