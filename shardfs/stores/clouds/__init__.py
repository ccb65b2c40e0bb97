"""Sources on web servers, in Google Cloud Storage and in Azure Blob Storage, to be read.

They differ from S3 in requests, and not in what readers of objects share: `objects.heads` is what keys are,
`objects.versions` the bytes of versions, in memory and in the cache on disk. What is here:

- requests, which are repeated: `client`; what their failures mean: `errors`
- single ones: `attempts`, to web servers by `http.client` (`web`), to buckets by obstore (`buckets`)
- the store: `store`. A web server lists nothing, so its names are those that documents tell of
  (`outline`): the first document of the source tells its format, and that of all nodes below.
"""
