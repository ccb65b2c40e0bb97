"""The mount of a source as an object: `shardfs.mount`."""

import atexit
import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Unpack, cast

from shardfs.api.opened import TreeWords
from shardfs.dataset.source import resolve
from shardfs.errors import FuseUnavailableError, ShardfsError, StoreError, UnfinishedError
from shardfs.fuse.daemon import start_daemon
from shardfs.fuse.flush import flush_mount
from shardfs.fuse.mountpoint import check_fuse, check_mount_point
from shardfs.fuse.options import MountOptions
from shardfs.fuse.unmount import unmount
from shardfs.fuse.versions import check_installed
from shardfs.stores.url import StoreOptions

log = logging.getLogger(__name__)


class _MountWords(TreeWords, total=False):
    """The options of `MountOptions`, as keywords."""

    allow_other: bool
    page_cache: bool
    uid: int | None
    gid: int | None
    umask: int | None
    fuse_options: tuple[str, ...]
    metrics: str | None


class Mount:
    """A mount that lasts until `unmount`, the end of a `with` block, or the end of this process.

    *path* is the mounted directory, which a `with` block yields.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        mountpoint: str | os.PathLike[str] | None = None,
        *,
        store_options: StoreOptions | None = None,
        **options: Unpack[_MountWords],
    ) -> None:
        """Mount *source* at the empty directory *mountpoint*, or at a temporary one; read-only, unless *write* is true.

        *options* are those of `shardfs mount` with the same names. Raises the errors of `shardfs.errors`.
        """
        url, root = resolve(os.fspath(source))
        chosen, store_options = MountOptions(**options), store_options or StoreOptions()
        check_installed()
        check_fuse(allow_other=chosen.allow_other)
        self._temporary = Path(tempfile.mkdtemp(prefix="shardfs-"))
        self._own = self._temporary / "mount" if mountpoint is None else None
        self._pid = os.getpid()
        point, keeps_log = Path(self._own or os.fspath(cast(str, mountpoint))), False
        try:
            if self._own is not None:
                self._own.mkdir()
            self.path = Path(check_mount_point(os.fspath(point), root, store_options.cache))
            arguments = chosen.to_arguments() + store_options.to_arguments()
            start_daemon([url, os.fspath(self.path), *arguments], self._temporary / "log")
        except BaseException as error:
            keeps_log = isinstance(error, FuseUnavailableError)
            self._clean(keeps_log=keeps_log)
            raise
        self._is_mounted = True
        atexit.register(self._unmount_at_exit)

    def __repr__(self) -> str:
        return f"<shardfs mount at {self.path}{'' if self._is_mounted else ', unmounted'}>"

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.unmount()

    def flush(self) -> None:
        """Commit everything that was written; raises `StoreError` if that is not possible."""
        flush_mount(os.fspath(self.path))

    def unmount(self) -> None:
        """Commit everything, and unmount; once it is unmounted, do nothing.

        Raises `MountPointError` if the mount is in use, and stays; `StoreError` if it is unmounted and something could
        not be committed.
        """
        if not self._is_mounted:
            return
        try:
            unmount(os.fspath(self.path))
        except (StoreError, UnfinishedError):
            self._ended(keeps_log=True)  # which says why
            raise
        self._ended(keeps_log=False)

    def _unmount_at_exit(self) -> None:
        if os.getpid() == self._pid:
            try:
                self.unmount()
            except ShardfsError as error:
                log.error("%s", error)  # noqa: TRY400 - it says all

    def _ended(self, *, keeps_log: bool) -> None:
        self._is_mounted = False
        atexit.unregister(self._unmount_at_exit)
        self._clean(keeps_log=keeps_log)

    def _clean(self, *, keeps_log: bool) -> None:
        """Remove what was made for the mount; never recursively, as it may be mounted still."""
        with suppress(OSError):
            if not keeps_log:
                (self._temporary / "log").unlink(missing_ok=True)
            if self._own is not None:
                self._own.rmdir()
            self._temporary.rmdir()
