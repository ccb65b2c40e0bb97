"""Objects: named bytes, read by ranges and never changed in place, as S3, other clouds and web servers have them.

A read enters with a key, asks what that key is (`heads`), passes the ranges that were fetched (`versions`, and the
cache on the local disk), and leaves by whatever makes `Requests`.

- the part of a store that is the same wherever there are only objects: `reader`
- names: `heads`, the one cache of what keys are
- bytes: `versions`, `ranges` (pure), and `disk_cache`
- values: `requests`, `location`, `options`
"""
