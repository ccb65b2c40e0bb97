"""Tables in plain text, the arithmetic of noisy rounds, and the machine in words."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from statistics import median


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print one table: the first column to the left, because it names things, the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = (
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join([first, *others]).rstrip()

    print(f"\n{title}\n")
    print(line(header))
    print("  ".join("-" * width for width in widths))
    for row in rows:
        print(line(row), flush=True)


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float | None:
    """The median over the rounds of the ratio within a round: what the machine does meanwhile cancels out."""
    pairs = list(zip(numerators, denominators, strict=False))
    return median(a / b for a, b in pairs) if pairs else None


def number(value: float | None, form: str) -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None else format(value, form)


def size(count: int) -> str:
    """A number of bytes in the largest unit that divides it."""
    for unit, factor in (("MiB", 2**20), ("KiB", 2**10)):
        if count % factor == 0:
            return f"{count // factor} {unit}"
    return f"{count} bytes"


def verdict(*met: bool) -> str:
    """Whether all of a target was met; nothing where there is no target."""
    return ("yes" if all(met) else "NO") if met else ""


def machine(work: Path) -> str:
    """What the numbers were measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores ({_processor()}), {memory:.0f} GiB of memory, "
        f"Linux {platform.release()}, Python {platform.python_version()}, work directory on {_filesystem(work)}"
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _filesystem(path: Path) -> str:
    """The type of the filesystem that holds a path."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0]
    return "an unknown filesystem"
