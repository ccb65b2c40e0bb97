"""FUSE: the only package that imports pyfuse3.

A mount begins with `options` and `mountpoint` (is it possible here?). `daemon` starts a fresh process, in which `serve`
runs the event loop, handles signals, and ends the mount. `metrics` informs systemd and Prometheus. Requests come
through `waiting` to `operations`, one short method each, where errors become errnos. Commands talk to a mount through
`control`; `unmount` waits for its end.
"""
