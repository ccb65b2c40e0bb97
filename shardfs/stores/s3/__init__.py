"""An S3 bucket, or a part of one, as a store.

Two client libraries stay at the bottom (`session`, `errors`): obstore, which reads fast, and boto3, which can do all
that changes an object. Everything above speaks of objects, ranges, parts and conditions (`requests`).

A read enters with a key (`store.S3Store.open`), asks what that key is (`heads`), passes the ranges that were fetched
(`objects`, and the cache on the local disk), and leaves through `client.S3Client`. A change enters with a new version
of one object (`change.Change.splice`), is cut into parts (`parts`, pure), which are brought to the server (`uploads`),
and is made on the condition that nobody else was faster: `change` tells that story. Files that pass through are on the
local disk while they are being written (`files`).

- the store: `store`, and `routed`, which has reserved names on this machine instead
- whether it can be read, and which conditions hold: `probe`
- names: `heads`, the one cache of what keys are
- bytes: `objects`, which also carries open files over our own changes
- changing objects: `change`; how bytes get to the server, also those of new objects of bulk work: `uploads`, `parts`
- ordinary files: `files`
- requests: `client`, `session`, `errors`; values: `requests`
"""
