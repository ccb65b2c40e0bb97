"""Tests, package by package; `support` is what they share.

Property tests try the same examples at every run, and are not failed for being slow on a busy machine.
"""

from hypothesis import settings

settings.register_profile("shardfs", deadline=None, derandomize=True)
settings.load_profile("shardfs")
