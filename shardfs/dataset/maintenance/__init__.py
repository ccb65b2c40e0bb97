"""What looks at whole shards, or at all of them: verify, compact, repair, shrink."""
