"""Benchmarks: a shardfs mount beside its peers, in one run."""
