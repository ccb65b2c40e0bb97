"""Programs that cannot share an environment with shardfs, each in one of its own, and tools of the system.

A program of Python is run in a process that is forked from one that has imported its libraries.
"""

import atexit
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

import numpy as np
import pytest
import tensorstore

from tests.support.mounting import PATIENCE

SETUP = "run scripts/test, which sets up what the tests need"


@dataclass(frozen=True)
class Client:
    """A Python program in an environment of its own, which `scripts/test` makes in `clients/` of this one."""

    name: str
    modules: tuple[str, ...]
    impossible: str | None = None
    """Why a machine may have no way to run it; it is skipped there."""

    @property
    def python(self) -> Path:
        path = Path(sys.prefix, "clients", self.name, "bin", "python") if self.name else Path(sys.executable)
        if not path.exists():
            if self.impossible:
                pytest.skip(f"no {self.name} at {path}: {self.impossible}")
            pytest.fail(f"no {self.name} at {path}: {SETUP}")
        return path

    def run(self, program: str, *arguments: str | Path) -> None:
        """Run *program*, whose `sys.argv[1:]` are *arguments*; it must succeed."""
        connection = _forking(self)
        wanted = [program, [str(argument) for argument in arguments], dict(os.environ)]
        with open(os.devnull, "rb") as nothing, _output() as output:
            socket.send_fds(connection, [json.dumps(wanted).encode()], [f.fileno() for f in (nothing, output, output)])
            status = int(connection.recv(16))
            output.seek(0)
            assert status == 0, output.read()

    def arrays(self, program: str, directory: Path, *arguments: str | Path) -> dict[str, np.ndarray]:
        """Run *program*, which saves arrays in the file that `sys.argv[1]` names; returns them by their names."""
        found = directory / f"{self.name}.npz"
        self.run(program, found, *arguments)
        with np.load(found, allow_pickle=True) as arrays:
            return dict(arrays)


_FORKING = """
import importlib, json, os, socket, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
connection = socket.socket(fileno=os.dup(0))
while True:
    message, fds, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    if not message:
        os._exit(0)
    pid = os.fork()
    if not pid:
        break
    for fd in fds:
        os.close(fd)
    connection.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
connection.close()
for number, fd in enumerate(fds):
    os.dup2(fd, number)
    os.close(fd)
program, sys.argv[1:], env = json.loads(message)
os.environ.clear()
os.environ.update(env)
exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
"""


@cache
def _forking(client: Client) -> socket.socket:
    """Start the process from which those of *client* are forked; it ends when its end of the connection is alone."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [client.python, "-P", "-W", "ignore", "-c", _FORKING, *client.modules],
            stdin=theirs,
            stdout=subprocess.PIPE,  # Python remembers whether it can seek there
        )

    def end() -> None:
        ours.close()
        process.communicate()

    atexit.register(end)
    ours.settimeout(4 * PATIENCE)
    return ours


def _output() -> IO[str]:
    return os.fdopen(os.memfd_create("output", os.MFD_CLOEXEC), "w+")


MAIN = Client("", ("zarr", "xarray"))
"""What the tests themselves run in, with the xarray and the zarr-python of today."""
ZARR2 = Client("zarr2", ("zarr", "xarray", "xarray.backends.zarr", "dask.array", "fsspec", "trio", "boto3"))
"""zarr-python 2.18, xarray and dask that go with it, s3fs, and what shardfs needs to read without FUSE."""
ZARR34 = Client("zarr34", ("zarr",), "it takes Python 3.12 or later")
"""zarr-python 3.4, with what shardfs needs to read and write without FUSE."""
KERCHUNK = Client("kerchunk", ("xarray",))
"""kerchunk, and xarray with the engine that it brings."""
NETCDF4 = Client("netcdf4", ("netCDF4",))
"""netCDF4-python, whose wheel has a newer netCDF-C than the system."""
OME_ZARR = Client("omezarr", ("ome_zarr.io", "ome_zarr.reader"))
"""ome-zarr-py 0.9, which knows OME-Zarr 0.4."""
CLOUD_VOLUME = Client("cloudvolume", ("cloudvolume",))
REDBOT = Client("redbot", ("httplint",))
"""REDbot, which judges how a server speaks HTTP."""
RASTERIO = Client("rasterio", ("rasterio",), "it takes Python 3.12 or later")
"""With a GDAL that reads Zarr v3."""


def output_of(*arguments: str | Path) -> str:
    """What a tool of the system prints; it must succeed."""
    if shutil.which(arguments[0]) is None:
        pytest.fail(f"{arguments[0]} is not installed: {SETUP}")
    done = subprocess.run(
        arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=4 * PATIENCE
    )
    assert done.returncode == 0, str(done)
    return done.stdout


def read_zarr2(root: Path, names: Iterable[str], directory: Path) -> dict[str, np.ndarray]:
    """Read arrays below *root* with zarr-python 2.18, each opened by itself."""
    return ZARR2.arrays(_READ_ZARR2, directory, root, *names)


_READ_ZARR2 = """
import sys, numpy, zarr
found, root, *names = sys.argv[1:]
numpy.savez(found, **{name: zarr.open_array(f"{root}/{name}", mode="r")[...] for name in names})
"""


def open_tensorstore_v2(path: Path) -> tensorstore.TensorStore:
    """Open an array with tensorstore's driver for Zarr v2, to read and to write."""
    kvstore = {"driver": "file", "path": f"{path}/"}
    return tensorstore.open({"driver": "zarr", "kvstore": kvstore}, read=True, write=True).result()


def read_gdal(root: Path, name: str) -> np.ndarray:
    """Read an array of a group with the multidimensional interface of GDAL."""
    told = json.loads(output_of("gdalmdiminfo", "-detailed", "-array", f"/{name}", root))
    dtype = {"Byte": "u1"}.get(told["datatype"]) or told["datatype"].lower()
    return np.array(told["values"], dtype).reshape(told["dimension_size"])


def netcdf_url(root: Path) -> str:
    return f"file://{root}#mode=zarr,file"


_CDL_TYPES = {"byte": "i1", "ubyte": "u1", "short": "i2", "ushort": "u2", "int": "i4", "float": "f4", "double": "f8"}
_CDL_TYPES["int64"] = "i8"


def read_netcdf(dataset: str | Path, *names: str) -> dict[str, np.ndarray]:
    """Read variables, all if none is named, with ncdump, without a shape; with a digit more than a float needs."""
    chosen = ["-v", ",".join(names)] if names else []
    head, data = output_of("ncdump", "-p", "9,17", *chosen, str(dataset)).split("\ndata:\n")
    types = {name: _CDL_TYPES[cdl] for cdl, name in re.findall(r"^\t(\w+) (\w+)\(", head, re.MULTILINE)}
    missing = dict(re.findall(r"^\t\t(\w+):_FillValue = (\S+?)[a-z]* ;", head, re.MULTILINE))
    values = dict(re.findall(r"^ (\w+) =\s([^;]*);", data, re.MULTILINE))
    found = {}
    for name in names or types:
        words = [missing[name] if word == "_" else word for word in values[name].replace(",", " ").split()]
        found[name] = np.array(words, types[name])
    return found
