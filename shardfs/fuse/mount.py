"""A mount inside its daemon: the event loop, signals, and the end."""

import logging
import resource
import signal
from collections.abc import Callable
from typing import Final

import pyfuse3
import trio

from shardfs.dataset.source import Source
from shardfs.errors import FuseUnavailableError
from shardfs.fuse.operations import Operations
from shardfs.fuse.options import MountOptions
from shardfs.fuse.waiting import look_before_sleeping
from shardfs.stores.base import Store
from shardfs.vfs.tree import Tree
from shardfs.vfs.views import UnshardedV3

log = logging.getLogger(__name__)

_OPEN_FILES: Final = 16384
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve(store: Store, path: str, options: MountOptions, ready: Callable[[], None]) -> None:
    """Mount *store* at *path* and answer requests until it is unmounted, or a signal comes.

    *ready* is called when the mount answers.
    """
    source = Source.of(store, ttl=options.metadata_ttl, max_open=_raise_file_limit() // 4)
    tree = Tree(store, source.hierarchy, UnshardedV3(), ttl=options.metadata_ttl)
    operations = Operations(tree, source.statistics, page_cache=options.page_cache)
    fuse_options = {
        "default_permissions",
        "ro",
        f"fsname=shardfs:{_option_value(store.url)}",
        "subtype=shardfs",
        *options.fuse_options,
    }
    if options.allow_other:
        fuse_options.add("allow_other")
    look_before_sleeping(lambda: operations.pending == 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until there is somebody to unmount on them
    try:
        pyfuse3.init(operations, path, fuse_options)
    except RuntimeError as error:
        raise FuseUnavailableError(f"{path} could not be mounted: {error}") from None
    clean = False
    try:
        trio.run(_serve, tree, ready)
        clean = True
    finally:
        # A mount whose daemon failed is left to answer ENOTCONN: an empty directory would look like deleted data.
        pyfuse3.close(unmount=clean)


def _option_value(text: str) -> str:
    """Return *text* as libfuse takes it in an option: escaped, and in ASCII, which is all that pyfuse3 passes on."""
    shown = text.encode("ascii", errors="backslashreplace").decode()
    return shown.replace("\\", "\\\\").replace(",", "\\,")


async def _serve(tree: Tree, ready: Callable[[], None]) -> None:
    await tree.start()
    async with trio.open_nursery() as nursery:
        await nursery.start(_end_on_signal)
        nursery.start_soon(_announce, ready)
        await pyfuse3.main()
        nursery.cancel_scope.cancel()


async def _announce(ready: Callable[[], None]) -> None:
    try:
        ready()
    except OSError:
        log.warning("nobody waits for the mount any more; unmounting")
        pyfuse3.terminate()


async def _end_on_signal(task_status: "trio.TaskStatus[None]") -> None:
    hangup_is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # as under nohup
    ends = [number for number in _SIGNALS if not (number == signal.SIGHUP and hangup_is_ignored)]
    with trio.open_signal_receiver(*ends) as signals:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        task_status.started()
        async for number in signals:
            log.info("unmounting on %s", signal.Signals(number).name)
            pyfuse3.terminate()
            return


def _raise_file_limit() -> int:
    """Allow as many open files as the system lets us, within reason; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return wanted if soft == resource.RLIM_INFINITY else soft
