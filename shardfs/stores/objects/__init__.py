"""Objects: named bytes, read by ranges and never changed in place, as S3, other clouds and web servers have them.

A read enters with a key, asks what that key is (`heads`), passes the ranges that were fetched (`versions`, and the
cache on the local disk), and leaves by a `client.Client`, which repeats what a `service.Service` sends once. Adapters
are subclasses of `Service`: `stores.s3` and those in `stores.clouds`. Only S3 has changes as well.

- the part of a store that is the same wherever there are only objects: `reader`, and `store` on a client
- names: `heads`, the one cache of what keys are
- bytes: `versions`, `ranges` (pure), and `disk_cache`
- requests: `client` repeats them, `service` says what they are, `http` sends one by libcurl; how long it waits: `pace`
- replies: `replies` has them as values; what a failure means, for all services: `failures`
- values: `requests`, `location`, `options`
"""
