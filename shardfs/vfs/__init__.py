"""The tree that is shown: names, inodes, attributes, open files.

May import the rooms below (`dataset`, `stores`, `format`); knows no FUSE, so all of it runs in a test without a mount.

The flow of a request enters with an inode number (`Filesystem`), which is a node of the table (`nodes`: directories,
files that pass through, generated documents) or a position in a chunk tree (`chunk_tree`: arithmetic, no table), and
leaves with `Attributes`, a handle to read from, or a listing.

What a node looks like is a `View`'s business (`views`; `v3_view`, `v2_view`, `npy_view`; `make_view` by name): its
documents, the names of its chunks, and whether they are decoded (`decoded`).  The rooms below know encoded chunks only.

A request that changes something enters with the numbers and names that the kernel gives (`Editor`, `OpenFiles`), which
`names.resolve` makes names with a kind, and leaves into the journal (chunks), by a `Publisher` (documents), or into the
store (anything else).
"""
