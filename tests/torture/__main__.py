"""See `scripts/torture`."""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from itertools import count
from pathlib import Path

from tests.torture.disks import FILE_SYSTEMS, disk_of
from tests.torture.history import WrongError
from tests.torture.lives import Life
from tests.torture.soak import soak

_MAX_LINE = 500


def main() -> int:
    parser = argparse.ArgumentParser(
        "torture",
        description="Let processes write through a mount that is killed, or whose disk loses its power, again and "
        "again, and compare what is there with what was promised. Exit status 1 if something is wrong.",
    )
    parser.add_argument("--minutes", type=float, default=2, help="how long  [default: 2]")
    parser.add_argument("--seed", type=int, help="begin with the source of this seed, which a failure names")
    parser.add_argument("--soak", action="store_true", help="kill nothing, and print what grows in the daemon")
    parser.add_argument("--lives", type=int, help="end after so many sources")
    parser.add_argument("--rounds", type=int, default=16, help="how often each is mounted  [default: %(default)s]")
    parser.add_argument(
        "--on",
        action="append",
        choices=["directory", *FILE_SYSTEMS, "nfs", "s3"],
        help="where sources are; file systems and hosts that share one need root. May be given several times  "
        "[default: directory]",
    )
    parser.add_argument(
        "--sessions", type=int, default=1, help="how many write to one source, the second half by stores  [default: 1]"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    began, counts, failures = time.monotonic(), Counter[str](), list[str]()
    until = began + 60 * options.minutes
    first = options.seed if options.seed is not None else random.SystemRandom().randrange(10**9)
    kinds = options.on or ["directory"]
    try:
        for seed in count(first):
            if seed > first and (time.monotonic() > until or (options.lives and seed >= first + options.lives)):
                break
            _torture(seed, kinds[seed % len(kinds)], options, until, counts, failures)
    finally:  # what is left of a long log is its end
        minutes = (time.monotonic() - began) / 60
        parts = ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))
        for failure in failures:
            print(failure)
        print(
            f"torture: {minutes:.1f} min from seed {first} on {', '.join(kinds)}: {parts}; {len(failures)} failed",
            flush=True,
        )
    return 1 if failures else 0


def _torture(
    seed: int, kind: str, options: argparse.Namespace, until: float, counts: Counter[str], failures: list[str]
) -> None:
    """Let the source of a seed live, and add to *counts* and, if something is wrong, the first line to *failures*."""
    directory = Path(tempfile.mkdtemp(prefix="torture-"))
    sessions = f" --sessions {options.sessions}" if options.sessions > 1 else ""
    try:
        with disk_of(kind, directory, options.sessions) as disk:
            life = Life(directory, disk, random.Random(seed), counts)
            try:
                if options.soak:
                    print(f"soak: {soak(life, options.minutes)}")
                else:
                    life.live(options.rounds, until)
            except Exception as error:
                text = str(error) if isinstance(error, WrongError) else repr(error)
                failed = f"FAILED: --seed {seed} --on {kind}{sessions}, mounted with {' '.join(life.arguments)}"
                failures.append(f"{failed}: {text.splitlines()[0][:_MAX_LINE]}")
                kept = Path(tempfile.mkdtemp(prefix="torture-failed-"))
                shutil.copytree(disk.stored(directory / "stored"), kept / "source", symlinks=True)
                for log in directory.glob("log-*"):
                    shutil.copy(log, kept)
                print(f"{failed}; the source is in {kept}\n{text}", flush=True)
                if not isinstance(error, (WrongError, AssertionError)):
                    raise
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    sys.exit(main())
