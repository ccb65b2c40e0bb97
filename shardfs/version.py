"""The version of shardfs, which everything that shows it imports from here."""

__version__ = "0.1.0"
