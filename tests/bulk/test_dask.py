"""`--dask`: the same report from a cluster, whichever worker dies, and none from workers that are not fit for it."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
from distributed import Client, LocalCluster

import shardfs
from shardfs.bulk.cluster import connected
from shardfs.bulk.engine import run_tasks as run_engine
from shardfs.errors import StoreError
from shardfs.stores.url import StoreOptions
from tests.bulk.tasks import Corrupt, Deadly, Task, Waiting
from tests.bulk.test_engine import run as run_tasks
from tests.support.commands import FAILED, WRONG_USAGE, one_line_of, run
from tests.support.corpus import LITTLE, ZSTD
from tests.support.damage import SHARD, document, edit, entry, flip
from tests.support.datasets import files_below, store
from tests.support.mounting import PATIENCE, environment
from tests.support.processes import tied

OVER = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


class Cluster:
    """A scheduler, and the workers that were started for it; files of both are below *directory*."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[str]] = []
        scheduler = self._start("from distributed.cli.dask_scheduler import main", "--port", "0", "--host", "127.0.0.1")
        assert scheduler.stderr is not None
        found = next(found for line in scheduler.stderr if (found := re.search(r"Scheduler at: +(tcp://\S+)", line)))
        self.address = found[1]

    def start_workers(self, count: int, *, code: str = "", prefix: tuple[str | Path, ...] = ()) -> None:
        """Start workers of one thread each, which run *code* first, and wait until all are there."""
        for _ in range(count):
            arguments = (self.address, "--no-nanny", "--nthreads", "1", "--local-directory", self._directory)
            self._start(f"{code}\nfrom distributed.cli.dask_worker import main", *arguments, prefix=prefix)
        with Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(len(self._processes) - 1, timeout=PATIENCE)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def _start(self, code: str, *arguments: str | Path, prefix: tuple[str | Path, ...] = ()) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            tied(*prefix, sys.executable, "-c", f"{code}\nmain()", *arguments, "--no-dashboard", end=signal.SIGKILL),
            env=environment(),
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        return process


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    started = Cluster(tmp_path_factory.mktemp("dask"))
    try:
        yield started
    finally:
        started.end()


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A source of 20 arrays, one of which has a damaged chunk."""
    source = tmp_path / "source"
    for n in range(20):
        store(source / str(n), document(LITTLE, ZSTD))
    path = source / "7" / SHARD
    edit(path, flip(entry(path.read_bytes(), 1)[0] + 2))
    return source


@pytest.mark.slow
def test_a_cluster_does_what_this_machine_does_and_a_worker_that_dies_costs_nothing(
    cluster: Cluster, damaged: Path, tmp_path: Path
) -> None:
    cluster.start_workers(2)
    expected = run("verify", "--data", "--json", damaged)
    assert (expected.returncode, len(json.loads(expected.stdout)["problems"])) == (FAILED, 1)
    done = run("verify", "--data", "--json", "--dask", cluster.address, damaged)
    assert (done.returncode, done.stdout, done.stderr) == (FAILED, expected.stdout, "")
    assert run("compact", "--dask", cluster.address, damaged).stdout.startswith("0 shards compacted")
    where = {"here": (), "there": ("--dask", cluster.address)}
    packed = [run("pack", "--shards", "2", *how, damaged, tmp_path / name) for name, how in where.items()]
    assert packed[0].stdout == packed[1].stdout
    assert files_below(tmp_path / "here") == files_below(tmp_path / "there")
    (tmp_path / "deaths").mkdir()
    tasks = [Task((str(n),)) for n in range(200)]
    tasks[50], tasks[100] = Deadly(("x",), where=tmp_path / "deaths", times=1), Corrupt(("y",))
    with connected(cluster.address, StoreOptions(), []) as executor:
        results = run_tasks(tasks, executor=executor)
    assert sorted(result.name for result in results) == sorted(name for task in tasks for name in task.items)
    assert len({result.pid for result in results} - {0}) == 2
    assert {result.name: str(result.error) for result in results if result.error} == {"y": "y is damaged"}
    assert len(list((tmp_path / "deaths").iterdir())) == 1


def test_what_ends_early_waits_for_what_workers_are_doing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or they would write when the locks are released."""
    said = ""
    lock = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)

    async def tasks() -> AsyncIterator[Task]:
        nonlocal said
        yield Waiting(("long",), where=tmp_path)
        while "begun long" not in said:
            await trio.sleep(0.01)
            said += capfd.readouterr().out
        raise KeyboardInterrupt

    def unlock(message: str, *arguments: object) -> None:
        assert "waiting for tasks that workers have" in message
        fcntl.flock(lock, fcntl.LOCK_UN)

    monkeypatch.setattr("shardfs.bulk.engine.log.warning", unlock)
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None) as cluster,
        cluster.get_client() as client,
    ):
        try:
            with pytest.raises(KeyboardInterrupt):
                trio.run(partial(run_engine, tasks(), lambda results: None, executor=client.get_executor(pure=False)))
            assert "done long" in said + capfd.readouterr().out
        finally:
            os.close(lock)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "import shardfs.version; shardfs.version.__version__ = '0.0.1'",
            f"has shardfs 0.0.1, and this is {shardfs.__version__}",
        ),
        ("import sys; sys.modules['shardfs'] = None", "ModuleNotFoundError"),  # it would end of what it cannot unpickle
    ],
    ids=["another", "none"],
)
def test_a_worker_with_another_version_is_refused(cluster: Cluster, damaged: Path, code: str, reason: str) -> None:
    said = one_line_of(run("verify", "--dask", cluster.address, damaged), FAILED)
    assert said == f"the Dask cluster at {cluster.address} has no workers"
    said = one_line_of(run("verify", "--dask", cluster.address, "--jobs", "2", damaged), WRONG_USAGE)
    assert "--jobs is for this machine" in said
    cluster.start_workers(1, code=code)
    assert reason in one_line_of(run("verify", "--dask", cluster.address, damaged), FAILED)


@pytest.mark.slow
def test_a_worker_that_does_not_find_the_same_files_is_refused(cluster: Cluster, damaged: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    prefix = ("unshare", "--mount", "--propagation", "private", "sh", "-c", OVER, "sh")
    if subprocess.run([*prefix, other, damaged, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace can be made here")
    cluster.start_workers(1, prefix=(*prefix, other, damaged))
    said = one_line_of(run("verify", "--dask", cluster.address, damaged), FAILED)
    assert f" finds other files at {damaged} than this machine" in said
    for array in damaged.iterdir():
        array.rename(tmp_path / array.name)
    destination = connected(cluster.address, StoreOptions(), [], str(damaged))  # as empty as what the worker finds
    with pytest.raises(StoreError, match="finds other files"), destination:
        pass
