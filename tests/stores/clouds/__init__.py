"""Sources on web servers, and in buckets of other clouds than AWS."""
