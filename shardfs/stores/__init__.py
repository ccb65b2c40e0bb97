"""Stores: named bytes, asynchronous; the only room that touches stored data.

May import `shardfs.errors`, and no other room: a store knows neither Zarr nor FUSE.  Keys are paths relative to the
source, separated by "/", "" for the source itself; names that are not UTF-8 are carried as `os.fsdecode` does.

The flow enters with a key (`Store.open`) and leaves with bytes of one version (`Snapshot.read`).  A change enters
with a new version of one object (`ShardWriter.splice`), and leaves through `Syscalls` on local disks.  Errors of the
operating system or of a client library become `ShardfsError` here and nowhere else.
"""
