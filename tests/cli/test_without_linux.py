"""Systems without the calls that only Linux has: everything is read, and nothing is written.

One without those of Unix, as Windows is, reads what is in S3.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import shardfs
from tests.support.commands import SOURCE
from tests.support.commands import run as run_here
from tests.support.damage import document
from tests.support.datasets import files_below, store
from tests.support.mounting import PATIENCE, environment
from tests.support.s3_server import Bucket

WITHOUT = """
import builtins, ctypes, fcntl, io, os, runpy, sys
import click, numcodecs, numpy, trio  # which know their systems
for name in ("O_PATH", "O_DIRECT", "RWF_NOWAIT", "sched_getaffinity", "getxattr", "listxattr", "setxattr",
             "removexattr", "memfd_create", "pidfd_open", "posix_fadvise", "copy_file_range"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("F_OFD_SETLK", "F_OFD_GETLK", "F_OFD_SETLKW"):
    if hasattr(fcntl, name):
        delattr(fcntl, name)

class Library:
    def __getattr__(self, name):
        raise AttributeError(name)

ctypes.CDLL = lambda *_, **__: Library()
opened, os_open = io.open, os.open

def refuse(path):
    if isinstance(path, (str, bytes)) and os.fsdecode(path).startswith("/proc"):
        raise FileNotFoundError(2, "No such file or directory", path)

def portable(path, *args, **options):
    refuse(path)
    return opened(path, *args, **options)

def portable_os(path, *args, **options):
    refuse(path)
    return os_open(path, *args, **options)

builtins.open = io.open = portable
os.open = portable_os
"""
WITHOUT_UNIX = """
import botocore.session, boto3, ctypes, importlib, os, sys
import click, numcodecs, numpy, trio  # which know their systems
for name in ("fcntl", "pwd", "grp", "resource", "termios"):
    sys.modules[name] = None
for name in ("O_PATH", "O_DIRECT", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "RWF_NOWAIT",
             "getuid", "geteuid", "getgid", "getegid", "preadv", "pread", "pwritev", "statvfs", "fork",
             "sched_getaffinity", "getxattr", "listxattr", "setxattr", "removexattr", "memfd_create", "fchmod"):
    if hasattr(os, name):
        delattr(os, name)
os.supports_dir_fd = set()

def library(name, *_, **__):
    if name is None:
        raise TypeError("bad argument type for built-in operation")
    raise OSError(name)

ctypes.CDLL = library

def without_directories(function):
    def portable(*args, **options):
        if any(options.get(name) is not None for name in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
            raise NotImplementedError("dir_fd unavailable on this platform")
        return function(*args, **options)
    return portable

for name in ("open", "stat", "unlink", "mkdir", "rmdir", "rename", "readlink", "link", "symlink"):
    setattr(os, name, without_directories(getattr(os, name)))
"""
RUN = WITHOUT + "runpy.run_module('shardfs', run_name='__main__', alter_sys=True)"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    store(tmp_path / "data.zarr/image", document())
    (tmp_path / "data.zarr/zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    (tmp_path / "data.zarr/link").symlink_to("image")
    return tmp_path / "data.zarr"


def run(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-P", "-c", code, *arguments]
    return subprocess.run(line, env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE)


@pytest.mark.parametrize("words", [["info"], ["map"], ["refs"], ["verify", "--data"]])
def test_commands_that_read_say_what_they_say_on_linux(source: Path, words: list[str]) -> None:
    done = run(RUN, *words, source)
    usual = run_here(*words, source)
    assert (done.returncode, done.stdout) == (0, usual.stdout), done.stderr


def test_python_reads_chunks_and_files_through_links_too(source: Path) -> None:
    code = """
import shardfs
from shardfs.vfs.paths import Paths
with shardfs.open(sys.argv[1]) as dataset:
    print(dataset["image"].read_chunk((0, 0)) == dataset.loop.call(Paths.read, "link/c/0/0"), list(dataset))
    print(dataset["image"].read_chunk((0, 0)).hex())
"""
    done = run(WITHOUT + code, source)
    chunk = shardfs.open(source)["image"].read_chunk((0, 0))
    assert chunk is not None
    assert done.stdout == f"True ['', 'image']\n{chunk.hex()}\n", done.stderr


def test_no_link_leads_out_of_the_source(source: Path) -> None:
    (source / "out").symlink_to("..")
    (source.parent / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    done = run(WITHOUT + "import shardfs; print(list(shardfs.open(sys.argv[1])['out']))", source)
    assert "leads out of the" in done.stderr


def test_without_the_calls_of_unix_a_bucket_is_read_and_a_directory_is_refused(
    source: Path, s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "link").unlink()
    s3_bucket.upload(source, "data.zarr")
    for name, value in s3_bucket.environment.items():
        monkeypatch.setenv(name, value)
    code = """
import shardfs, zarr
with shardfs.open(sys.argv[1]) as dataset:
    print(dataset["image"].read_chunk((0, 0)).hex(), list(dataset))
    print(zarr.open_group(dataset.store(), mode="r")["image"][...].tobytes().hex())
print(shardfs.info(sys.argv[1])["arrays"][0]["path"], shardfs.verify(sys.argv[1], jobs=1)["sound"])
"""
    url = s3_bucket.url("data.zarr")
    done, usual = run(WITHOUT_UNIX + code, url), run("import sys\n" + code, url)
    assert (done.returncode, done.stdout) == (0, usual.stdout), done.stderr
    assert usual.stdout.endswith("image True\n")
    done = run(WITHOUT_UNIX + "import shardfs; shardfs.open(sys.argv[1])", source)
    assert done.stderr.endswith(
        f"SourceError: {source} cannot be read here: on this system only s3:// sources are read\n"
    )


@pytest.mark.parametrize("words", [["compact"], ["recover", "--apply"], ["unpack"]])
def test_writing_is_refused_with_one_clear_sentence(source: Path, tmp_path: Path, words: list[str]) -> None:
    before = files_below(source)
    done = run(RUN, *words, source, *([tmp_path / "made"] if words == ["unpack"] else []))
    assert done.returncode == SOURCE, done.stderr
    assert done.stderr.endswith("cannot be written here: shardfs writes on Linux only, and reads on this system too\n")
    done = run(WITHOUT + "import shardfs; shardfs.open(sys.argv[1], write=True)", source)
    assert "SourceError" in done.stderr.splitlines()[-1]
    assert files_below(source) == before
