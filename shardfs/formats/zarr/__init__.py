"""Zarr itself, in the table for what it has in common with other formats: its documents where nothing is listed."""
