"""The programs that mount(8) and umount(8) run for file systems of type `shardfs`, for fstab and `systemd.mount` units.

mount(8) runs `/sbin/mount.TYPE SOURCE MOUNTPOINT [-sfnv] [-t TYPE] [-o WORDS]`. The words are the options of `shardfs
mount` without their dashes, and those of every file system. A mount is listed as `fuse.shardfs`, whatever type fstab
gives it, so umount(8) looks for `umount.fuse.shardfs`.
"""

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final

import click

from shardfs.cli.mount import mount
from shardfs.cli.mounts import umount
from shardfs.cli.options import command, mounted_argument, mountpoint_argument, source_argument
from shardfs.cli.output import begin
from shardfs.errors import UsageError
from shardfs.fuse.mountpoint import mounted_path, run_fusermount
from shardfs.fuse.options import NO_REMOUNT

_LINKS: Final = {
    "mount.shardfs": "mount.shardfs",
    "mount.fuse.shardfs": "mount.shardfs",
    "umount.fuse.shardfs": "umount.shardfs",
}
_SBIN: Final = Path("/sbin")  # where mount(8) looks, whatever PATH is

_FOR_OTHERS: Final = re.compile(
    "rw|defaults|nofail|_netdev|suid|dev|exec|async|silent|loud|default_permissions"
    "|(no)?(auto|user|users|owner|group|atime|diratime|relatime|strictatime|lazytime|iversion)"
    "|(x-|X-|comment=|user=).*"
)
"""Words for mount(8) and systemd, and words that are always true. `rw` is always passed, and does not mean `write`."""
_FOR_FUSE: Final = {"ro", "nosuid", "nodev", "noexec", "sync", "dirsync"}
_NOT_HERE: Final = {"foreground", "ready_fd"}
_FAILURE: Final = 32
"""Exit status of mount(8) for a failed mount; an unknown word is wrong usage, 2."""


def _as_called(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options with which both helpers are called."""
    for letter, name in (("-n", "--no-mtab"), ("-v", "--verbose")):
        function = click.option(letter, name, is_flag=True)(function)
    return click.option("-t", "--types")(function)


@command(
    examples="""
    mount.shardfs /data/image.zarr /mnt/image -o rw,view=v2,allow_other
    """
)
@source_argument
@mountpoint_argument
@_as_called
@click.option("-s", "--sloppy", is_flag=True, help="Ignore words that are not understood.")
@click.option("-f", "--fake", is_flag=True, help="Do nothing.")
@click.option("-o", "words", multiple=True, metavar="WORDS", help="Options of `shardfs mount`, and for all mounts.")
def mount_main(
    source: str,
    mountpoint: str,
    words: tuple[str, ...],
    sloppy: bool,
    fake: bool,
    verbose: bool,
    **_: object,
) -> None:
    """Mount SOURCE at MOUNTPOINT, for mount(8)."""
    begin()
    arguments = _arguments(",".join(words), is_sloppy=sloppy)
    if not fake:
        with open(os.devnull, "w") as nothing, redirect_stdout(sys.stdout if verbose else nothing):
            _run(mount, *arguments, "--", source, mountpoint)
        if os.geteuid() == 0:
            # To umount(8) run by root, all FUSE mounts are alike, unless its own table has an entry for one.
            noted = "x-shardfs,_netdev" if "_netdev" in ",".join(words).split(",") else "x-shardfs"
            note = ["mount", "--internal-only", "--fake", "--types", "fuse.shardfs", "--options", noted]
            subprocess.run([*note, source, mountpoint], check=False)  # noqa: S603


@command(
    examples="""
    umount.shardfs /mnt/image
    """
)
@mounted_argument
@_as_called
@click.option("-l", "--lazy", is_flag=True, help="Detach it at once, and wait for nothing.")
@click.option("-f", "--force", is_flag=True, help="Changes nothing.")
@click.option("-r", "--read-only", is_flag=True, help="Changes nothing.")
def umount_main(mountpoint: str, lazy: bool, **_: object) -> None:
    """Unmount MOUNTPOINT, for umount(8), and return when everything is in the shards."""
    begin()
    if lazy:
        run_fusermount("-u", "-z", mounted_path(mountpoint))
    else:
        _run(umount, "--", mountpoint)


@command(
    examples="""
    shardfs install-helper
    """
)
def install_helper() -> None:
    """Let mount(8), /etc/fstab and umount(8) use this shardfs.

    Run it as root. It links /sbin/mount.shardfs, /sbin/mount.fuse.shardfs and /sbin/umount.fuse.shardfs to this
    installation.
    """
    for name, script in _LINKS.items():
        link, target = _SBIN / name, _script(script)
        try:
            if link.is_symlink() and os.path.basename(os.readlink(link)) == script:
                link.unlink()
            link.symlink_to(target)
        except FileExistsError:
            raise UsageError(f"{link} exists already, and is not a link to a {script}: remove it first") from None
        except PermissionError:
            raise UsageError(f"{link} cannot be created: run this as root") from None
        click.echo(f"{link} -> {target}")


def _script(name: str) -> Path:
    """Return the path of a program that was installed with this one."""
    for directory in (Path(sys.argv[0]).absolute().parent, Path(sysconfig.get_path("scripts"))):
        if os.access(directory / name, os.X_OK):
            return directory / name
    raise UsageError(f"{name} is missing beside this shardfs; install shardfs again with pip")


def _run(program: click.Command, *arguments: str) -> None:
    """Run a command of shardfs; its failure is one of mount(8)."""
    try:
        program.main(arguments, prog_name=f"shardfs {program.name}", standalone_mode=False)
    except SystemExit as end:
        sys.exit(_FAILURE if end.code else 0)


def _arguments(words: str, *, is_sloppy: bool) -> list[str]:
    """Return the words of `-o` as arguments of `shardfs mount`; raises `UsageError` for an unknown one."""
    known = {
        name: option
        for option in mount.params
        if isinstance(option, click.Option) and option.name not in _NOT_HERE
        for name in option.opts
    }
    arguments = []
    for word in re.findall(r'(?:[^,"]|"[^"]*")+', words):  # a value that contains commas is quoted
        name, equals, value = word.replace('"', "").partition("=")
        name = f"--{name.replace('_', '-')}"
        option = known.get(name)
        if word == "remount":
            raise UsageError(NO_REMOUNT)
        if word in _FOR_FUSE:
            arguments.append(f"-o{word}")
        elif option is not None and option.is_flag != bool(equals):
            arguments.append(f"{name}{equals}{value}")
        elif not (is_sloppy or _FOR_OTHERS.fullmatch(word)):
            raise UsageError(
                f"-o {word}: there is no such option; see `shardfs mount --help`; "
                'a value with commas is quoted, as in shards="8,8,8"'
            )
    return arguments
