"""shardfs shows the inner chunks of sharded Zarr arrays as ordinary files."""

__version__ = "0.1.0"
