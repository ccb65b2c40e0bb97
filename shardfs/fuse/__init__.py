"""FUSE: the only room that imports pyfuse3.

A mount begins with `options` and `mountpoint` (can it be mounted here?) and goes to `daemon`, which starts a fresh
process, and there to `serve`: the event loop, signals, and the end.  `log` writes what happens, and `notify` tells
systemd.  Requests come in through `waiting` to
`operations`, where each is a short method, and where an error becomes an errno.  `control` is how commands talk to a
mount, and `unmount` waits for its end.
"""
