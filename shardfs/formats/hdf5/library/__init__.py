"""The process beside shardfs in which h5py and libhdf5 read one version of a file, of which they may know nothing else.

libhdf5 is written in C, and a hostile file may crash it, or take its memory. So it runs here, with limits: it opens no
file, takes so much memory and time and no more, and loads no plugins. It gets its bytes from the process that started
it, on standard input, and answers on standard output; `process` has the other end, and trusts nothing that comes.

It is a program by itself, and imports nothing of shardfs, so that it starts fast: `main` is where it begins. What is
said on the way is in `channel`; what a file is, in `file` and `superblock`; types and values, in `elements`;
dimensions, in `scales`.
"""
