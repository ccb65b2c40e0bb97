"""Sources on web servers, in Google Cloud Storage and in Azure Blob Storage, to be read.

They are adapters of `stores.objects`, which makes their requests and shares what was read. What is here:

- what each service is asked, and how its failures are called: `web`, `google`, `azure`
- the store: `store`. A web server lists nothing, so its names are those that documents name
  (`outline`): the first document of the source tells its format, and that of all nodes below.
"""
