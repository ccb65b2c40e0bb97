"""The tree that is shown: names, inodes, attributes, open files.

May import the rooms below (`dataset`, `stores`, `format`); knows no FUSE, so all of it runs in a test without a mount.

A request enters with an inode number, or a number and a name.  `Filesystem` makes an *entry* of it (`entries`: chunk,
directory of chunks, document, what passes through), which knows how to look itself up, to be read and listed.  Numbers
of chunks are arithmetic, all others are rows (both in `inodes`).

What a node looks like is a `View`'s business (`views`): its
documents, the names of its chunks, and whether they are decoded (`chunk_cache`).  The rooms below know encoded chunks
only.

A request that changes something enters in `Changes`, and is an entry's business too: to make, replace, move or remove
itself.  What is written to a chunk or a document is a `WriteBuffer` until it is published.
"""
