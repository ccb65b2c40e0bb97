"""Taking over what a killed process left beside its journal: files that are not in a remote store yet."""

import logging
import os
import stat
from contextlib import suppress
from typing import Final

from shardfs.dataset.lock import StateDirectory, sync_directory
from shardfs.errors import SourceError

log = logging.getLogger(__name__)

_ADOPTED: Final = ("plain", "spools", "scratch", "staged", "uploads")  # earlier versions had `plain`


def adopt(left: StateDirectory, own: StateDirectory) -> None:
    """Move to *own* the files that *left* has beside its journal; both are locked.

    Of two files with one name the one that was changed last stays, as if both had been written to one directory.  What
    cannot be moved is where it was, for the next process.
    """
    for name in _ADOPTED:
        source = os.path.join(left.path, name)
        try:
            if os.path.isdir(source):
                _merge(source, os.path.join(own.path, name))
        except (OSError, SourceError) as error:
            log.warning("%s stays where it is, for the next mount: %s", source, error)


def _merge(source: str, target: str) -> None:
    status = os.lstat(source)
    try:
        there = os.lstat(target)
    except FileNotFoundError:
        os.rename(source, target)
        sync_directory(os.path.dirname(target))
        return
    if stat.S_ISDIR(status.st_mode) and stat.S_ISDIR(there.st_mode):
        for name in os.listdir(source):
            _merge(os.path.join(source, name), os.path.join(target, name))
        with suppress(OSError):  # something stayed in it
            os.rmdir(source)
    elif stat.S_ISDIR(status.st_mode) or stat.S_ISDIR(there.st_mode):
        log.warning("%s stays where it is: another mount has both a file and a directory of this name", source)
    elif status.st_mtime_ns > there.st_mtime_ns:
        log.warning("%s was written by two mounts; the later version stays", target)
        os.rename(source, target)
    else:
        log.warning("%s was written by two mounts; the later version stays", target)
        os.unlink(source)
