"""The rooms keep to themselves: what may import what, read from the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import shardfs
from tests.support.mounting import environment
from tests.support.parametrize import each

SOURCE = Path(shardfs.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
PURE = sorted((SOURCE / "format").rglob("*.py"))
HEIGHTS = {"errors": 0, "format": 1, "stores": 1, "dataset": 2, "vfs": 3, "fuse": 4, "bulk": 4}
TOP = 5
"""The height of the command line, and of everything else beside the rooms."""
S3_CLIENTS = {"obstore", "boto3", "botocore", "urllib3", "s3transfer", "aiobotocore", "s3fs", "fsspec"}
KNOW_S3_CLIENTS = {f"stores/s3/{name}.py" for name in ("errors", "session")}

every_module = each("module", MODULES, lambda path: str(path.relative_to(SOURCE)).replace("/", "-"))


def room_of(module: Path) -> str:
    return module.relative_to(SOURCE).with_suffix("").parts[0]


def imported(module: Path) -> Iterator[str]:
    """Dotted names of all that *module* imports, wherever in it the statement stands."""
    package = ["shardfs", *module.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def imported_rooms(module: Path) -> set[str]:
    return {name.split(".")[1] for name in imported(module) if name.startswith("shardfs.")} - {"__version__"}


@every_module
def test_nothing_imports_upward_or_sideways(module: Path) -> None:
    room = room_of(module)
    for other in imported_rooms(module) - {room}:
        if room in HEIGHTS:
            assert HEIGHTS.get(other, TOP) < HEIGHTS[room], f"{room} imports {other}"


@each("module", PURE, lambda path: str(path.relative_to(SOURCE)).replace("/", "-"))
def test_the_format_is_pure(module: Path) -> None:
    asynchronous = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
    nodes = list(ast.walk(ast.parse(module.read_text())))
    assert not any(isinstance(node, asynchronous) for node in nodes)
    roots = {name.split(".")[0] for name in imported(module)}
    assert not roots & {
        "trio",
        "asyncio",
        "os",
        "io",
        "pathlib",
        "socket",
        "subprocess",
        "threading",
        "time",
        "logging",
    }
    assert not any(isinstance(node, ast.Name) and node.id == "open" for node in nodes)


@every_module
def test_vendors_stay_in_their_rooms(module: Path) -> None:
    roots = {name.split(".")[0] for name in imported(module)}
    place = module.relative_to(SOURCE).as_posix()
    if not place.startswith("fuse/"):
        assert "pyfuse3" not in roots
    assert bool(roots & S3_CLIENTS) == (place in KNOW_S3_CLIENTS)


def test_s3_clients_need_not_be_installed() -> None:
    names = [path.relative_to(SOURCE.parent).with_suffix("").as_posix().replace("/", ".") for path in MODULES]
    wanted = [name for name in names if not name.startswith("shardfs.stores.s3.") and not name.endswith("__main__")]
    code = (
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({sorted(S3_CLIENTS)}))\n"
        "for name in sys.argv[1:]: importlib.import_module(name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *wanted], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, str(done)


@every_module
def test_every_module_says_what_it_is_and_is_short(module: Path) -> None:
    text = module.read_text()
    assert ast.get_docstring(ast.parse(text))
    assert len(text.splitlines()) <= 700
