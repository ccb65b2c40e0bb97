"""The write-ahead log of a source, and what recovers from it."""
