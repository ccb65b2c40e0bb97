"""Run the benchmarks that are named, or all, and print a table for each."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from . import (
    beside_a_commit,
    bulk,
    clients,
    durable,
    growth,
    listing,
    one_file,
    pack,
    pending,
    picture,
    precomputed,
    random_read,
    s3_commit,
    s3_copy,
    s3_mounts,
    s3_read,
    serve,
    spec_example,
    store,
    update,
    views,
    waits,
    writers,
    zarr_read,
    zarr_write,
)
from .datasets import Dataset, random_chunks, shared_payloads
from .native import versions
from .peers import PEERS, is_installed
from .placement import APART, FREE, TOGETHER, Placement
from .report import machine
from .s3_service import LATENCY, serving


@dataclass(frozen=True)
class Plan:
    """What to measure, on which data, and how often."""

    work: Path
    peers: list[str]
    rounds: int | None
    quick: bool
    one_cpu: bool

    def times(self, rounds: int) -> int:
        """How often to repeat, when nobody says otherwise."""
        return self.rounds or (1 if self.quick else rounds)

    def placed(self, placement: Placement) -> Placement:
        """Where to run, when nobody says otherwise."""
        return TOGETHER if self.one_cpu else placement

    def chunks_of_64_kib(self) -> Dataset:
        """1,024 inner chunks in 8 shards."""
        return random_chunks(self.work, "64-KiB", (256, 256, 1024), (128, 128, 512), (32, 32, 64))

    def chunks_of_1_mib(self) -> Dataset:
        """512 inner chunks in 8 shards, or 64 in one."""
        shape = (256, 512, 512) if self.quick else (512, 1024, 1024)
        name = "1-MiB-quick" if self.quick else "1-MiB"
        return random_chunks(self.work, name, shape, (256, 512, 512), (64, 128, 128))

    def files_of_64_kib(self) -> Dataset:
        """4,096 inner chunks for 8 shards, or 512 for one."""
        shape = (256, 256, 512) if self.quick else (512, 512, 1024)
        name = "64-KiB-many-quick" if self.quick else "64-KiB-many"
        return random_chunks(self.work, name, shape, (256, 256, 512), (32, 32, 64))

    def one_large_shard(self) -> Dataset:
        """1,024 inner chunks of 512 KiB in one shard, or 64."""
        shape = (256, 256, 256) if self.quick else (512, 512, 1024)
        name = "one-shard-quick" if self.quick else "one-shard"
        return random_chunks(self.work, name, shape, shape, (64, 64, 64), "uint16", unsharded=False)

    def a_million_chunks(self) -> Dataset:
        """1,048,576 inner chunks of 64 bytes in 32 shards, or those of one."""
        shape = (128, 128, 128) if self.quick else (512, 256, 512)
        name = "million-quick" if self.quick else "million"
        return shared_payloads(self.work, name, shape, (128, 128, 128), (4, 4, 4))

    def one_shard_of_64_kib(self) -> Dataset:
        """512 inner chunks in one shard."""
        return random_chunks(self.work, "64-KiB-one-shard", (256, 256, 512), (256, 256, 512), (32, 32, 64))

    def one_small_shard(self) -> Dataset:
        """128 inner chunks of 512 KiB in one shard."""
        shape = (256, 256, 512)
        return random_chunks(self.work, "one-small-shard", shape, shape, (64, 64, 64), "uint16", unsharded=False)

    def specification_example(self) -> Dataset:
        """The array of the specification's own example, 16 TB if it were full."""
        return shared_payloads(self.work, "example", (25000, 18000, 6000), (2048,) * 3, (64,) * 3)


def _random_read(plan: Plan) -> None:
    for dataset in (plan.chunks_of_64_kib(), plan.chunks_of_1_mib()):
        random_read.run(dataset, plan.peers, plan.placed(APART), plan.times(9))


def _clients(plan: Plan) -> None:
    for dataset in (plan.chunks_of_64_kib(), plan.chunks_of_1_mib()):
        clients.run(dataset, plan.peers, plan.placed(FREE), plan.times(5))


def _zarr_read(plan: Plan) -> None:
    for dataset in (plan.chunks_of_64_kib(), plan.chunks_of_1_mib()):
        for version in versions().values():
            zarr_read.run(dataset, plan.peers, plan.placed(FREE), plan.times(7), version)


def _listing(plan: Plan) -> None:
    listing.run(plan.a_million_chunks(), plan.peers, plan.placed(APART), plan.times(3))


def _spec_example(plan: Plan) -> None:
    part = "c/0" if plan.quick else "c"
    spec_example.run(plan.specification_example(), plan.peers, plan.placed(APART), plan.times(5), part)


def _update(plan: Plan) -> None:
    update.run(plan.one_large_shard(), plan.peers, plan.placed(FREE), plan.times(5))


def _zarr_write(plan: Plan) -> None:
    shards = [(128, 256, 256)] if plan.quick else [(256, 256, 256), (256, 512, 512)]
    for shard in shards:
        for version in versions().values():
            zarr_write.run(plan.work, plan.peers, shard, plan.placed(FREE), plan.times(3), version)


def _pending(plan: Plan) -> None:
    pending.run(plan.work, plan.peers, 256 if plan.quick else 1536, plan.placed(FREE), plan.times(1))


def _beside_a_commit(plan: Plan) -> None:
    beside_a_commit.run(plan.work, plan.peers, 512 if plan.quick else 4096, plan.placed(FREE), plan.times(9))


def _pack(plan: Plan) -> None:
    for dataset in (plan.files_of_64_kib(), plan.chunks_of_1_mib()):
        pack.run(dataset, plan.peers, plan.placed(APART), plan.times(7))


def _durable(plan: Plan) -> None:
    for dataset in (plan.files_of_64_kib(), plan.chunks_of_1_mib()):
        durable.run(dataset, plan.placed(FREE), plan.times(7))


def _bulk(plan: Plan) -> None:
    for count, nbytes in ((4096, 64 * 2**10), (64 if plan.quick else 512, 2**20)):
        bulk.run(plan.work, count, nbytes, plan.times(5))


def _s3_copy(plan: Plan) -> None:
    with serving(LATENCY) as service:
        s3_copy.run(service, plan.one_shard_of_64_kib(), plan.peers, plan.placed(FREE), plan.times(5))


def _s3_mounts(plan: Plan) -> None:
    with serving(LATENCY) as service:
        s3_mounts.run(service, plan.chunks_of_64_kib(), plan.placed(FREE), plan.times(3))


def _s3_read(plan: Plan) -> None:
    with serving(LATENCY) as service:
        s3_read.run_random(service, plan.chunks_of_64_kib(), plan.peers, plan.placed(FREE), plan.times(5))
        s3_read.run_shards(service, plan.chunks_of_1_mib(), plan.peers, plan.placed(FREE), plan.times(5))
        s3_read.run_listing(service, plan.a_million_chunks(), plan.peers, plan.placed(FREE), plan.times(3))


def _s3_bulk(plan: Plan) -> None:
    with serving(LATENCY) as service:
        bulk.run_s3(service, plan.files_of_64_kib(), plan.times(3))


def _s3_commit(plan: Plan) -> None:
    with serving(LATENCY) as service:
        for dataset in [plan.one_small_shard()] if plan.quick else [plan.one_small_shard(), plan.one_large_shard()]:
            s3_commit.run(service, dataset, plan.peers, plan.placed(FREE), plan.times(3))


def _store(plan: Plan) -> None:
    if "shardfs" not in plan.peers:
        return
    placement = plan.placed(FREE)
    datasets = plan.chunks_of_64_kib(), plan.chunks_of_1_mib()
    for version in versions().values():
        for dataset in datasets:
            store.run_read(dataset, placement, plan.times(7), version)
        store.run_write(plan.work, plan.one_large_shard(), placement, plan.times(5), version)
        with serving(LATENCY) as service:
            for dataset in datasets:
                store.run_read(dataset, placement, plan.times(5), version, service)


def _precomputed(plan: Plan) -> None:
    count = 4 if plan.quick else 8
    precomputed.run(precomputed.make(plan.work, count), count, plan.placed(FREE), plan.times(5))
    precomputed.run_large(precomputed.make_large(plan.work), plan.placed(FREE), plan.times(5))


def _one_file(name: str, plan: Plan) -> None:
    if "shardfs" in plan.peers:
        kind, count = one_file.KINDS[name], 64 if plan.quick else 1024
        one_file.run(kind, one_file.make(kind, plan.work, count), count, plan.placed(FREE), plan.times(7))


def _serve(plan: Plan) -> None:
    for dataset in (plan.chunks_of_64_kib(), plan.chunks_of_1_mib()):
        serve.run(dataset, plan.placed(FREE), plan.times(7))


def _picture(plan: Plan) -> None:
    with serving(LATENCY) as service:
        picture.run(picture.make(plan.work), service, plan.placed(FREE), plan.times(7))


def _views(plan: Plan) -> None:
    name, shape = ("views-quick", (256, 256, 128)) if plan.quick else ("views", (512, 512, 256))
    for version in versions().values():
        views.run(views.compressed(plan.work, name, shape), plan.peers, plan.placed(FREE), plan.times(5), version)


def _growth(plan: Plan) -> None:
    growth.run(plan.work, 1 if plan.quick else 4, plan.placed(FREE))


def _waits(plan: Plan) -> None:
    source = waits.make(plan.work, 1_500 if plan.quick else 15_000)
    waits.run(source, plan.placed(FREE), plan.times(3))


def _writers(plan: Plan) -> None:
    if "shardfs" in plan.peers:
        writers.run(plan.work, plan.placed(FREE), plan.times(9), quick=plan.quick)


BENCHMARKS: dict[str, Callable[[Plan], None]] = {
    "random-read": _random_read,
    "clients": _clients,
    "zarr-read": _zarr_read,
    "listing": _listing,
    "spec-example": _spec_example,
    "update": _update,
    "pack": _pack,
    "durable": _durable,
    "bulk": _bulk,
    "zarr-write": _zarr_write,
    "store": _store,
    "serve": _serve,
    "picture": _picture,
    "precomputed": _precomputed,
    "hdf5": partial(_one_file, "hdf5"),
    "zip": partial(_one_file, "zip"),
    "pending": _pending,
    "beside-a-commit": _beside_a_commit,
    "views": _views,
    "waits": _waits,
    "growth": _growth,
    "writers": _writers,
    "s3-copy": _s3_copy,
    "s3-read": _s3_read,
    "s3-mounts": _s3_mounts,
    "s3-commit": _s3_commit,
    "s3-bulk": _s3_bulk,
}


def main() -> None:
    """Read the command line, say what the machine is, and measure."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("benchmarks", nargs="*", metavar="BENCHMARK", help=", ".join(BENCHMARKS))
    parser.add_argument("--peers", default=",".join(PEERS), help="separated by commas (default: %(default)s)")
    parser.add_argument("--workdir", type=Path, help="keeps the data for another run (default: none is kept)")
    parser.add_argument("--rounds", type=int, help="how often to repeat each measurement")
    parser.add_argument("--quick", action="store_true", help="a smoke run in less than a minute")
    parser.add_argument(
        "--one-cpu",
        action="store_true",
        help="let servers and clients share a CPU: no waiting for another CPU to wake, only the work itself",
    )
    arguments = parser.parse_args()
    for name in arguments.benchmarks:
        if name not in BENCHMARKS:
            parser.error(f"there is no benchmark {name!r}")
    peers = arguments.peers.split(",")
    for peer in peers:
        if peer not in PEERS:
            parser.error(f"there is no peer {peer!r}")
    missing = [peer for peer in peers if not is_installed(peer)]
    if missing:
        print(f"not installed, hence skipped: {', '.join(missing)}", file=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # unmount first
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # installed programs are compiled once, and not at each start
    with tempfile.TemporaryDirectory(prefix="shardfs-bench-") as temporary:
        work = (arguments.workdir or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        print(machine(work))
        installed = [peer for peer in peers if peer not in missing]
        plan = Plan(work, installed, arguments.rounds, arguments.quick, arguments.one_cpu)
        for name in arguments.benchmarks or BENCHMARKS:
            BENCHMARKS[name](plan)


if __name__ == "__main__":
    main()
