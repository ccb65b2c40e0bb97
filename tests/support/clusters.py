"""Clusters of Dask in processes of this machine."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import dask
from distributed import LocalCluster


@contextmanager
def local_cluster(nworkers: int, nthreads: int) -> Iterator[LocalCluster]:
    """Run workers in processes that are forked from one that has imported Dask, with the environment of this one."""
    how = {"distributed.worker.multiprocessing-method": "forkserver", "distributed.worker.profile.enabled": False}
    with (
        dask.config.set(how),
        LocalCluster(
            n_workers=nworkers, threads_per_worker=nthreads, dashboard_address=None, env=dict(os.environ)
        ) as cluster,
    ):
        yield cluster
