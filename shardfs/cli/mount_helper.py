"""What mount(8) and umount(8) run for file systems of type `shardfs`, for fstab and `systemd.mount` units.

mount(8) runs `/sbin/mount.TYPE SOURCE MOUNTPOINT [-sfnv] [-N NAMESPACE] [-t TYPE] [-o WORDS]`.  The words are the
options of `shardfs mount` without their dashes, beside those of every file system.  A mount is listed as
`fuse.shardfs`, whatever type fstab gives it; so umount(8) looks for `umount.fuse.shardfs`.
"""

import getopt
import os
import re
import sys
import sysconfig
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final, NoReturn

import click

from shardfs.cli.mount import mount
from shardfs.cli.mounted import umount
from shardfs.cli.options import begin, command, complain
from shardfs.errors import ShardfsError, UsageError
from shardfs.fuse.mountpoint import mounted_path, run_fusermount

_LINKS: Final = {
    "mount.shardfs": "mount.shardfs",
    "mount.fuse.shardfs": "mount.shardfs",
    "umount.fuse.shardfs": "umount.shardfs",
}
_SBIN: Final = Path("/sbin")  # where mount(8) looks, whatever PATH says

_FOR_OTHERS: Final = re.compile(
    "rw|defaults|nofail|_netdev|suid|dev|exec|async|silent|loud|default_permissions"
    "|(no)?(auto|user|users|owner|group|atime|diratime|relatime|strictatime|lazytime|iversion)"
    "|(x-|X-|comment=|user=).*"
)
"""What is meant for mount(8) and systemd, or is so anyway.  `rw` is always there, and does not mean `write`."""
_FOR_FUSE: Final = {"ro", "nosuid", "nodev", "noexec", "sync", "dirsync"}
_NOT_HERE: Final = {"foreground", "ready_fd"}
_INVOCATION, _WORD, _FAILURE = 1, 2, 32
"""Exit statuses: as mount(8) documents them, but 2 for a word that is not understood."""


def mount_main() -> None:
    """Run `mount.shardfs`."""
    begin()
    options, (source, mountpoint) = _parse("SOURCE MOUNTPOINT [-sfnv] [-o WORDS]", "sfnvN:t:o:", 2)
    try:
        arguments = _arguments(options.get("-o", ""), is_sloppy="-s" in options)
    except UsageError as error:
        _fail(error, _WORD)
    if "-f" in options:
        return
    try:
        with open(os.devnull, "w") as nothing, redirect_stdout(sys.stdout if "-v" in options else nothing):
            mount.main([*arguments, "--", source, mountpoint], prog_name="mount.shardfs", standalone_mode=False)
    except click.ClickException as error:
        _fail(error.format_message(), _WORD)
    except SystemExit as end:
        sys.exit(_FAILURE if end.code else 0)


def umount_main() -> None:
    """Run `umount.shardfs`, which returns when everything is in the shards, unless it is to be lazy."""
    begin()
    options, (mountpoint,) = _parse("MOUNTPOINT [-flnrv]", "flnrvN:t:", 1)
    try:
        if "-l" in options:
            run_fusermount("-u", "-z", mounted_path(mountpoint))
        else:
            umount.main(["--", mountpoint], prog_name="umount.shardfs", standalone_mode=False)
    except ShardfsError as error:
        _fail(error, _FAILURE)
    except SystemExit as end:
        sys.exit(_FAILURE if end.code else 0)


@command(
    examples="""
    shardfs install-helper
    """
)
def install_helper() -> None:
    """Let `mount -t shardfs` and lines of /etc/fstab mount with this shardfs, and umount wait for what was written.

    Links /sbin/mount.shardfs, /sbin/mount.fuse.shardfs and /sbin/umount.fuse.shardfs to it, as root.
    """
    for name, script in _LINKS.items():
        link, target = _SBIN / name, _script(script)
        try:
            if link.is_symlink():
                link.unlink()
            link.symlink_to(target)
        except FileExistsError:
            raise UsageError(f"{link} is there already, and is no link of ours: remove it first") from None
        except PermissionError:
            raise UsageError(f"{link} cannot be made: run this as root") from None
        click.echo(f"{link} -> {target}")


def _script(name: str) -> Path:
    """Return the path of a program that was installed with this one."""
    for directory in (Path(sys.argv[0]).absolute().parent, Path(sysconfig.get_path("scripts"))):
        if os.access(directory / name, os.X_OK):
            return directory / name
    raise UsageError(f"there is no {name} beside this shardfs: install it again, with pip")


def _parse(usage: str, letters: str, nplaces: int) -> tuple[dict[str, str], list[str]]:
    """Return options and arguments of this process, in the mount namespace that they name."""
    name = os.path.basename(sys.argv[0])
    try:
        options, places = getopt.gnu_getopt(sys.argv[1:], letters)
    except getopt.GetoptError as error:
        _fail(f"{error}; usage: {name} {usage}", _INVOCATION)
    if len(places) != nplaces:
        _fail(f"usage: {name} {usage}", _INVOCATION)
    namespace = dict(options).get("-N")
    if namespace is not None:
        rest = [word for pair in options if pair[0] != "-N" for word in pair if word]
        os.execvp("nsenter", ["nsenter", f"--mount={namespace}", "--", sys.argv[0], *rest, "--", *places])  # noqa: S606, S607
    words = ",".join(value for option, value in options if option == "-o")
    return dict(options) | {"-o": words}, places


def _arguments(words: str, *, is_sloppy: bool) -> list[str]:
    """Return the words of `-o` as arguments of `shardfs mount`; raises `UsageError` for one that it does not have."""
    known = {
        name: option
        for option in mount.params
        if isinstance(option, click.Option) and option.name not in _NOT_HERE
        for name in option.opts
    }
    arguments = []
    for word in re.findall(r'(?:[^,"]|"[^"]*")+', words):  # a value with commas is quoted
        name, equals, value = word.replace('"', "").partition("=")
        name = f"--{name.replace('_', '-')}"
        option = known.get(name)
        if word in _FOR_FUSE:
            arguments.append(f"-o{word}")
        elif option is not None and option.is_flag != bool(equals):
            arguments.append(f"{name}{equals}{value}")
        elif not (is_sloppy or _FOR_OTHERS.fullmatch(word)):
            raise UsageError(f"-o {word}: there is no such option, with or without a value: see `shardfs mount --help`")
    return arguments


def _fail(message: object, status: int) -> NoReturn:
    complain(str(message))
    sys.exit(status)
