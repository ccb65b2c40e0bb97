"""The journal of a source, and what recovers from it."""
