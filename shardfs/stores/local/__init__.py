"""Local directories as a store: links never lead out of the source; changes are durable, or not made."""
