"""What a process that writes keeps beside a source: its directory, the lock, and the slots of remote sources.

`directory` is `.shardfs` and what is in it, `lock` who may write, and `slots` where `.shardfs` is if not in the source.
"""
