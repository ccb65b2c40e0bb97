"""Fixtures for tests on real mounts and on real S3 servers.

Property tests try the same examples at every run, and are not failed for being slow on a busy machine.
"""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.corpus import CASES, write_case
from tests.support.datasets import Corpus
from tests.support.mounting import Mounter, mounter
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket, S3Server, credentials, ministack, moto

settings.register_profile("shardfs", deadline=None, derandomize=True)
settings.load_profile("shardfs")


def pytest_configure() -> None:
    """Let other users read what tests make, and signals end what tests start: some tests are about them.

    A shell ignores interrupts, and `nohup` hangups, for what it starts in the background, and so does all that is
    started from there.
    """
    os.umask(0o022)
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, lambda *_: None)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run all tests, as scripts/test does, though none is named")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Let `pytest` alone be quick: without what is slow or needs programs of others, and in two processes."""
    option = config.option
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        return
    if option.all:
        config.args = [str(config.rootpath / "tests")]
        return
    option.markexpr = option.markexpr or "not slow and not client"
    is_worker = hasattr(config, "workerinput")
    if not is_worker and option.numprocesses is None and not option.usepdb:
        option.numprocesses, option.dist = 2, "worksteal"


_BARE = {"format", "formats", "stores", "dataset", "vfs", "bulk", "serve", "support", "crash", "torture"}
"""Directories of tests that need nothing but Python packages, apart from those marked otherwise."""
_WITH_CLIENTS = {"interop"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs FUSE or programs of others."""
    for item in items:
        directory = item.path.parent.relative_to(item.config.rootpath / "tests").parts[:1]
        if directory and directory[0] in _WITH_CLIENTS:
            item.add_marker("client")
        elif not directory or directory[0] not in _BARE or {"mount", "module_mount"} & set(item.fixturenames):  # type: ignore[attr-defined]
            item.add_marker("mount")


def pytest_collection_finish() -> None:
    """Let the garbage collector leave alone what all tests share.

    It is on while that is imported: Dask remembers then whether it is, and leaves it so.
    """
    gc.collect()
    gc.freeze()
    gc.collect()  # counts what is left; else files that tests leave open wait for a quarter of what is frozen


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what shardfs remembers of sources and destinations from the user's own, and from earlier runs of tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mounter]:
    """`mount(source, **options)` mounts for the length of one test."""
    with mounter(tmp_path) as mount:
        yield mount


@pytest.fixture(scope="module")
def module_mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounter]:
    """The same for the length of a module."""
    with mounter(tmp_path_factory.mktemp("mounts")) as mount:
        yield mount


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corpus]:
    """Every array of the corpus in one directory, mounted once."""
    source = tmp_path_factory.mktemp("corpus")
    encoded = {case.name: write_case(case, source / case.name) for case in CASES}
    with mounter(tmp_path_factory.mktemp("mounts")) as mount:
        yield Corpus(mount(source), encoded)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A server that honours conditions."""
    with ministack() as server:
        bucket = server.make_bucket()
        bucket.put("first", b"")  # it imports what it needs for the first ones
        bucket.get("first")
        yield server


@pytest.fixture(scope="session")
def unconditional_server() -> Iterator[S3Server]:
    """A server that ignores conditions of copies and of completed uploads."""
    with moto() as server:
        yield server


@pytest.fixture
def aws_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user's AWS configuration, and credentials that are right at any server for tests."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in credentials().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def s3_bucket(s3_server: S3Server, aws_environment: None) -> Bucket:
    """A bucket that is empty, on a server that honours conditions."""
    return s3_server.make_bucket()


@pytest.fixture
def unconditional_bucket(unconditional_server: S3Server, aws_environment: None) -> Bucket:
    """A bucket that is empty, on a server that ignores conditions."""
    return unconditional_server.make_bucket()


@pytest.fixture
def s3_proxy(s3_server: S3Server) -> Iterator[S3Proxy]:
    """A proxy without faults before the server; `s3_bucket.through(s3_proxy.url)` is the bucket behind it."""
    with S3Proxy(s3_server.endpoint_url) as proxy:
        yield proxy
        assert not proxy.unused()  # a fault that no request met proves nothing
