"""The life of a mount: what is checked before it, the event loop, signals, and the end."""

import errno
import logging
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyfuse3
import trio

from shardfs.dataset.hierarchy import Hierarchy
from shardfs.dataset.shards import Shards
from shardfs.dataset.statistics import Statistics
from shardfs.errors import FuseUnavailableError, MountPointError
from shardfs.fuse.operations import Operations
from shardfs.stores.local import LocalStore
from shardfs.vfs.tree import Tree
from shardfs.vfs.views import UnshardedV3

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MountOptions:
    """How to mount.  *metadata_ttl* is in seconds; *fuse_options* are passed to libfuse as they are."""

    metadata_ttl: float = 1.0
    allow_other: bool = False
    page_cache: bool = False
    fuse_options: Sequence[str] = ()


def check_mount_point(mountpoint: str, store: LocalStore) -> str:
    """Return the absolute path of a directory that can be mounted on; detach a dead mount that is there.

    Raises `MountPointError` with the way out.
    """
    try:
        path = os.path.realpath(mountpoint)
        status = os.stat(path)
    except FileNotFoundError:
        raise MountPointError(f"{mountpoint} does not exist; create it with: mkdir -p {mountpoint}") from None
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise MountPointError(f"{mountpoint} cannot be used: {error.strerror}") from None
        detach(mountpoint)
        status = os.stat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise MountPointError(f"{mountpoint} is not a directory")
    if os.path.ismount(path):
        raise MountPointError(f"{mountpoint} is mounted already; unmount it with: shardfs umount {mountpoint}")
    if Path(path).is_relative_to(store.root) or Path(store.root).is_relative_to(path):
        raise MountPointError(
            f"{mountpoint} and the source {store.root} lie one inside the other; choose another place"
        )
    try:
        if os.listdir(path):
            raise MountPointError(f"{mountpoint} is not empty, and what is in it would be hidden; choose another place")
    except PermissionError:
        raise MountPointError(f"{mountpoint} cannot be read: permission denied") from None
    return path


def check_fuse() -> None:
    """Raise `FuseUnavailableError`, with the way out, if this machine cannot mount."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        raise FuseUnavailableError(
            "/dev/fuse does not exist; load the module with `modprobe fuse`, or give the container --device /dev/fuse"
        ) from None
    except OSError as error:
        raise FuseUnavailableError(f"/dev/fuse cannot be opened: {error.strerror}") from None
    fusermount()


def fusermount() -> str:
    """Return the path of `fusermount3`."""
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        candidate = os.path.join(directory, "fusermount3")
        if os.access(candidate, os.X_OK):
            return candidate
    raise FuseUnavailableError("fusermount3 is not installed; on Debian and Ubuntu: apt-get install fuse3")


def detach(mountpoint: str) -> None:
    """Take away a mount whose daemon is dead."""
    subprocess.run([fusermount(), "-u", "-z", mountpoint], check=False, capture_output=True)  # noqa: S603


def serve(store: LocalStore, path: str, options: MountOptions, ready: Callable[[], None]) -> None:
    """Mount *store* at *path* and answer requests until it is unmounted, or a signal comes.

    *ready* is called when the mount answers.
    """
    statistics = Statistics()
    shards = Shards(store, ttl=options.metadata_ttl, statistics=statistics)
    hierarchy = Hierarchy(store, shards, ttl=options.metadata_ttl)
    tree = Tree(store, hierarchy, UnshardedV3(), ttl=options.metadata_ttl)
    operations = Operations(tree, statistics, page_cache=options.page_cache)
    fuse_options = {
        "default_permissions",
        "ro",
        f"fsname=shardfs:{store.url}",
        "subtype=shardfs",
        *options.fuse_options,
    }
    if options.allow_other:
        fuse_options.add("allow_other")
    try:
        pyfuse3.init(operations, path, fuse_options)
    except RuntimeError as error:
        raise FuseUnavailableError(f"{path} could not be mounted: {error}; the lines above say why") from None
    clean = False
    try:
        trio.run(_serve, tree, ready)
        clean = True
    finally:
        # A mount whose daemon failed is left to answer ENOTCONN: an empty directory would look like deleted data.
        pyfuse3.close(unmount=clean)


async def _serve(tree: Tree, ready: Callable[[], None]) -> None:
    await tree.start()
    async with trio.open_nursery() as nursery:
        await nursery.start(_end_on_signal)
        nursery.start_soon(_announce, ready)
        await pyfuse3.main()
        nursery.cancel_scope.cancel()


async def _announce(ready: Callable[[], None]) -> None:
    ready()


async def _end_on_signal(task_status: "trio.TaskStatus[None]") -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            log.info("unmounting on %s", signal.Signals(number).name)
            pyfuse3.terminate()
            return
