"""An S3 bucket, or a part of one, as a store.

Two client libraries stay at the bottom (`session`, `errors`): obstore, which reads fast, and boto3, which can do all
that changes an object.  Everything above speaks of objects, ranges, parts and conditions (`requests`).

A read enters with a key (`reader.S3Reader.open`), passes what was seen a while ago (`names`, `seen`) and the ranges
that were fetched (`fetching`, and the cache on the local disk), and leaves through `client.S3Client`.  A change enters
with a new version of one object (`edit.S3Edit.splice`), is cut into parts (`parts`, pure), and is made on the condition
that nobody else was faster.  Files that pass through are on the local disk (`spools`) while they are being written.

- the store: `store` on `reading_store`, with `moves` for names; `shown` are the versions that writers must replace
- names: `names` from `seen` and `listing`; `directories` are those that only this mount knows
- reading objects: `reader`, `snapshot`, `fetching`, `segments`; `succession` carries open files over our own changes
- changing shards: `edit`, `parts`, `bodies`, `uploads`, `transactions`; `probe` says which conditions hold at all
- files that pass through: `files`, written to `spools`; what goes whatever it is: `whole_objects`
- requests: `client`, `session`, `errors`; values: `requests`, `location`
"""
