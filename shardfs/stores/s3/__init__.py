"""An S3 bucket, or a part of one, as a store.

It is an adapter of `stores.objects`, which reads, with a story of its own: changes. The library boto3 makes the
requests that change an object (`session`); everything above speaks of objects, ranges, parts and conditions.

A change enters with a new version of one object (`change.Change.splice`), is cut into parts (`parts`, pure), which are
brought to the server (`uploads`), and is made on the condition that nobody else was faster: `change` tells that story.
Files that pass through are on the local disk while they are being written (`files`).

- the store: `store`, and `routed`, which has reserved names on this machine instead; `opening` makes both
- whether it can be read, and which conditions hold: `probe`
- changing objects: `change`; how bytes get to the server, also those of new objects of bulk work: `uploads`, `parts`
- ordinary files: `files`
- requests that read: `service`, `signature`; those that change: `client`, `session`, `replies`; `failures` of both
"""
