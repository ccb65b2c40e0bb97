"""The Python interface, and the doors of zarr-python and fsspec that it opens.

`shardfs` itself has the names that users need: `shardfs.open`, `shardfs.mount` and the functions.
"""
