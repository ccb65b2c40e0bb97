"""Work on whole shards, or all of them: verify, compact, repair, shrink."""
