"""The tree that is shown: names, inodes, attributes, open files.

It may import the packages below (`dataset`, `stores`, `format`). It knows nothing of FUSE, so all of it can be tested
without a mount.

A request names an inode, or a directory and a name in it. `Filesystem` turns that into an *entry* (`entries`: chunk,
directory of chunks, document, passthrough), which does the work. Inode numbers of stored chunks are computed; all
others, and those of chunks that were published on this mount, are rows of a table (both in `inodes`). A `View`
(`views`) decides how a node looks: its documents, the names of its chunks, and whether they are decoded
(`chunk_cache`). The packages below know encoded chunks only.

A source that may be changed is shown by a `WritableFilesystem` (`writable`), which is a `Filesystem` with requests that
change something; entries carry these out, too. Entries know the tree as a `Tree` (`entries.base`), and ask
`Tree.writable` for what only a writable one has. What one program writes to a chunk or a document is in its
`WriteBuffer` until it is published.
"""
