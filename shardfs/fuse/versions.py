"""Whether pyfuse3 and libfuse are installed, and which; without loading pyfuse3, and trio with it, which takes long."""

import ctypes
import shlex
import sys
from importlib.util import find_spec
from typing import Final

from shardfs.errors import FuseUnavailableError

BUILD_PACKAGES: Final = "fuse3 libfuse3-dev pkg-config gcc python3-dev"
"""Packages of Debian and Ubuntu needed to build pyfuse3."""


def check_installed() -> None:
    """Raise `FuseUnavailableError`, with the way out, if shardfs was installed without what a mount takes."""
    if find_spec("pyfuse3") is None:
        from shardfs.stores.url import how_to_install  # imported only here, as it loads all stores

        raise FuseUnavailableError(
            f"pyfuse3 is not installed, without which nothing can be mounted; install it with: {how_to_install('fuse')}"
            "; every other command, and shardfs.open in Python, work without it"
        )


def fuse_versions() -> str:
    """Return the versions of pyfuse3 and of its libfuse; raises `FuseUnavailableError` if it cannot be loaded."""
    from importlib.metadata import PackageNotFoundError, version  # imported only here, as it takes long

    check_installed()
    spec = find_spec("pyfuse3")
    try:
        # Names of the libraries that it loads are found in it, too.
        library = ctypes.CDLL(spec.origin if spec is not None else None)
        library.fuse_pkgversion.restype = ctypes.c_char_p
        return f"pyfuse3 {version('pyfuse3')}, libfuse {library.fuse_pkgversion().decode()}"
    except (PackageNotFoundError, OSError, AttributeError) as error:
        raise FuseUnavailableError(
            f"pyfuse3 cannot be used: {error}; build it again, on Debian and Ubuntu with: apt-get install "
            f"{BUILD_PACKAGES} && {shlex.quote(sys.executable)} -m pip install --force-reinstall --no-cache-dir pyfuse3"
        ) from None
