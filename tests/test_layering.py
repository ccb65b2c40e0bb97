"""The packages keep to themselves: what may import what, read from the source."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeGuard

import pytest

import shardfs
from shardfs.formats import documents, formats
from tests.support.documents import GROUP, write
from tests.support.mounting import Mounter, environment

SOURCE = Path(shardfs.__file__).parent
HEIGHTS = {
    "errors": 0,
    "version": 0,
    "format": 1,
    "stores": 1,
    "formats": 2,
    "dataset": 3,
    "vfs": 4,
    "service": 4,
    "fuse": 5,
    "bulk": 5,
    "serve": 6,
}
TOP = 7
"""The height of the command line, and of everything else beside the packages."""
IMPURE = {"trio", "asyncio", "os", "io", "pathlib", "socket", "subprocess", "threading", "time", "logging"}
CLIENTS = {"obstore", "pycurl", "boto3", "botocore", "urllib3", "s3transfer", "aiobotocore", "s3fs", "google", "azure"}
DOORS = {"zarr": {"zarr_store.py", "icechunk.py"}, "fsspec": {"fsspec_filesystem.py"}, "icechunk": {"icechunk.py"}}
"""Libraries that need not be installed, each with the modules that may import it."""
KNOW_CLIENTS = {
    f"stores/{name}.py" for name in ("clouds/azure", "clouds/google", "objects/http", "s3/failures", "s3/session")
}
NEED_CLIENTS = (
    *(f"shardfs.stores.objects.{name}" for name in ("client", "http", "service", "store")),
    *("shardfs.stores.s3.", "shardfs.stores.clouds."),
)


TELL_NOTHING = {"said", "made", "told", "found", "each"}


@cache
def trees() -> dict[Path, ast.Module]:
    """All modules, as they are written."""
    return {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


def room_of(module: Path) -> str:
    return module.relative_to(SOURCE).with_suffix("").parts[0]


def imported(module: Path) -> Iterator[str]:
    """Dotted names of all that *module* imports, wherever in it the statement stands."""
    package = ["shardfs", *module.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(trees()[module]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def test_nothing_imports_upward_or_sideways() -> None:
    for module in trees():
        room = room_of(module)
        others = {name.split(".")[1] for name in imported(module) if name.startswith("shardfs.")} - {room}
        if room in HEIGHTS:
            assert all(HEIGHTS.get(other, TOP) < HEIGHTS[room] for other in others), (module, others)


def test_no_two_public_classes_have_the_same_name() -> None:
    """A reader, and a search, should find one class by its name."""
    found: dict[str, list[str]] = {}
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(module.relative_to(SOURCE)))
    assert len(found) > 400
    assert {name: modules for name, modules in found.items() if len(modules) > 1} == {}


def module_names() -> dict[str, Path]:
    """All modules, by their dotted names."""
    names = (path.relative_to(SOURCE.parent).with_suffix("") for path in trees())
    return dict(zip((".".join(name.parts).removesuffix(".__init__") for name in names), trees(), strict=True))


@pytest.mark.slow
def test_no_module_needs_itself() -> None:
    """Imports for types alone are imports, too."""
    modules = module_names()
    needed = {}
    for name, path in modules.items():
        others = {wanted if wanted in modules else wanted.rpartition(".")[0] for wanted in imported(path)}
        needed[name] = (others & set(modules)) - {name}
    assert any(needed.values())
    while free := {name for name, others in needed.items() if not others}:
        needed = {name: others - free for name, others in needed.items() if name not in free}
    assert not needed, "these import each other"


def attributes_of(tree: ast.Module) -> set[str]:
    """The attributes of the classes in a module: declared in them unless they are frozen, or set through `self`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and not is_frozen(node):
            found |= {item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and is_name(item.target)}
            plain = [item for item in node.body if isinstance(item, ast.Assign)]
            found |= {target.id for item in plain for target in item.targets if is_name(target)}
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            found.add(node.attr)
    return found


def is_name(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name)


def is_frozen(node: ast.ClassDef) -> bool:
    return any("frozen=True" in ast.unparse(decorator) for decorator in node.decorator_list)


def is_self(node: ast.expr) -> bool:
    return is_name(node) and node.id == "self"


@pytest.mark.slow
@pytest.mark.parametrize("room", [*sorted(HEIGHTS.keys() - {"errors", "version"}), "cli", "api"])
def test_only_the_module_of_a_class_sets_attributes_of_its_objects(room: str) -> None:
    """Told by the names of the attributes. Everybody counts in `Statistics`, and in `Counts` of remote stores."""
    height = HEIGHTS.get(room, TOP)
    within_reach = {
        module: tree
        for module, tree in trees().items()
        if room_of(module) == room or HEIGHTS.get(room_of(module), TOP) < height
    }
    counted = attributes_of(trees()[SOURCE / "dataset/statistics.py"])
    counted |= attributes_of(trees()[SOURCE / "stores/objects/requests.py"])
    owned = {name for tree in within_reach.values() for name in attributes_of(tree)} - counted
    for module, tree in trees().items():
        if room_of(module) == room:
            foreign = {
                node.attr
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and not is_self(node.value)
            } - attributes_of(tree)
            assert not foreign & owned, module


@pytest.mark.parametrize("room", ["dataset", "vfs", "fuse"])
def test_values_are_called_what_they_are(room: str) -> None:
    for module, tree in trees().items():
        if room_of(module) == room:
            names = {node.id for node in ast.walk(tree) if is_name(node) and isinstance(node.ctx, ast.Store)}
            names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)} | attributes_of(tree)
            assert not names & TELL_NOTHING, module


def test_the_format_is_pure() -> None:
    for module, tree in trees().items():
        if room_of(module) == "format":
            for node in ast.walk(tree):
                assert not isinstance(node, (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)), module
                assert not (isinstance(node, ast.Name) and node.id == "open"), module
            assert not {name.split(".")[0] for name in imported(module)} & IMPURE, module


PROGRAM_OF_A_FORMAT = SOURCE / "formats/hdf5/library"
"""A program by itself, beside shardfs, of which it imports nothing."""


def test_a_program_beside_shardfs_imports_nothing_of_it() -> None:
    modules = [module for module in trees() if PROGRAM_OF_A_FORMAT in module.parents]
    assert modules
    inside = PROGRAM_OF_A_FORMAT.relative_to(SOURCE.parent).as_posix().replace("/", ".")
    for module in modules:
        assert all(name.startswith(inside) or not name.startswith("shardfs") for name in imported(module)), module


def test_what_a_format_parses_is_pure() -> None:
    """Its `FORMAT` and its stores read files; all else of it takes bytes, and imports nothing of stores."""
    for module, tree in trees().items():
        names = set(imported(module))
        is_store = any(name.startswith(("shardfs.stores", "shardfs.formats.virtual", "trio")) for name in names)
        is_program = PROGRAM_OF_A_FORMAT in module.parents
        if room_of(module) == "formats" and module.name != "__init__.py" and not is_store and not is_program:
            assert not any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in ast.walk(tree)), module
            assert not {name.split(".")[0] for name in names} & (IMPURE - {"os"}), module


OF_FORMATS = {"b2nd", "blosc2", "wkw", "webknossos", "precomputed", "uint64_sharded", "kerchunk", "icechunk"}
"""Words by which formats are called, beside the names and the documents that they have in the table."""
COMMON_WORDS = {"zarr2", "zarr3", "n5", "references"}
"""Names in the table that Zarr and its programs have, too."""
WRITES_REFERENCES = {"bulk/icechunk.py", "bulk/parquet.py", "bulk/refs.py", "cli/refs.py", "api/functions.py"}
"""What `shardfs refs` writes is named in these."""
PROGRAMS = {
    "cli/clients.py": {"tensorstore, driver neuroglancer_precomputed", "File > Import > HDF5/N5/Zarr/OME-NGFF, /mnt/x"}
}
"""Programs that are called after a format."""


def test_nobody_else_names_a_format() -> None:
    """Not in an import, and not in a string; so in no `isinstance` either. A format is one folder and one line."""
    modules = module_names()
    words = OF_FORMATS | ({each.name for each in formats()} - COMMON_WORDS)
    documents_of_formats = documents() - {"zarr.json"}
    for module, tree in trees().items():
        if room_of(module) == "formats":
            continue
        within = {name for name in imported(module) if name.startswith("shardfs.formats.") and name in modules}
        assert not within, f"{module} imports {within}: import from shardfs.formats"
        path = module.relative_to(SOURCE).as_posix()
        for text in strings_of(tree) - PROGRAMS.get(path, set()):
            is_command = text == "info" and room_of(module) in ("cli", "__init__")
            assert is_command or text not in documents_of_formats, f"{module} names the document {text} of a format"
            named = {word for word in words if re.search(rf"\b{word}\b", text, re.IGNORECASE)}
            assert not named or path in WRITES_REFERENCES, f"{module} names {named}: {text}"


def strings_of(tree: ast.Module) -> set[str]:
    """The strings of a module, but for those that stand by themselves, which say something to its reader."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docs)
    return {node.value for node in constants if isinstance(node.value, str)}


@pytest.mark.slow
def test_vendors_stay_in_their_rooms() -> None:
    for module in trees():
        roots = {name.split(".")[0] for name in imported(module)}
        assert "pyfuse3" not in roots or room_of(module) == "fuse", module
        assert roots & set(DOORS) <= {name for name, doors in DOORS.items() if module.name in doors}, module
        assert bool(roots & CLIENTS) == (module.relative_to(SOURCE).as_posix() in KNOW_CLIENTS), module


@pytest.mark.slow
def test_s3_clients_need_not_be_installed() -> None:
    names = [path.relative_to(SOURCE.parent).with_suffix("").as_posix().replace("/", ".") for path in trees()]
    wanted = [name for name in names if not name.startswith(NEED_CLIENTS) and not name.endswith("__main__")]
    code = (
        f"import importlib, sys; sys.modules.update(dict.fromkeys({sorted(CLIENTS)}))\n"
        "for name in sys.argv[1:]: importlib.import_module(name)"
    )
    line = [sys.executable, "-c", code, *wanted]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, str(done)


def test_every_module_says_what_it_is_and_is_short() -> None:
    for module, tree in trees().items():
        assert ast.get_docstring(tree), module
        assert len(module.read_text().splitlines()) <= 700, module


def test_what_becomes_of_a_write_buffer_is_in_one_table() -> None:
    """Its state is set when it begins, and by the table of transitions; nobody else sets it."""
    tree = trees()[SOURCE / "vfs/write_buffer.py"]
    setters = [
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr == "state"
    ]
    assert setters == ["__init__", "happened"]


OTHER_FORMATS = {f"shardfs.formats.{name}" for name in ("b2nd", "precomputed", "references", "wkw", "zarr")}
HEAVY = {"trio", "numpy", "numcodecs", "asyncio", "pyfuse3", "pythonjsonlogger", "isal", "difflib", *CLIENTS}
UNUSED = {
    "--version": HEAVY | {"shardfs.dataset", "shardfs.stores", "shardfs.bulk", "shardfs.vfs"},
    "mounts": HEAVY - {"trio", "numpy"} | {"shardfs.dataset.state", "shardfs.vfs.session"},
    "info": HEAVY - {"trio", "numpy", "numcodecs", "asyncio", "isal"}
    | {"shardfs.serve", "shardfs.vfs.session"}
    | OTHER_FORMATS,
}
"""What a command imports nothing of, though others do: to import takes most of its time."""


@pytest.mark.parametrize(("name", "unused"), UNUSED.items(), ids=UNUSED)
def test_a_command_imports_nothing_that_it_does_not_use(name: str, unused: set[str], tmp_path: Path) -> None:
    (tmp_path / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    words = [sys.executable, "-X", "importtime", "-m", "shardfs", name, *([str(tmp_path)] if name == "info" else [])]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment())
    assert_imported(done.stderr, "shardfs.cli", unused)


def assert_imported(report: str, name: str, unused: set[str]) -> None:
    modules = {line.rpartition("|")[2].strip() for line in report.splitlines()}
    assert name in modules
    assert not {module for module in modules for heavy in unused if f"{module}.".startswith(f"{heavy}.")}


def test_a_mount_of_plain_zarr_imports_no_other_format(mount: Mounter, tmp_path: Path) -> None:
    write(tmp_path / "source", GROUP)
    mounted = mount(tmp_path / "source", env={"PYTHONPROFILEIMPORTTIME": "1"})
    mounted.unmount()
    assert_imported(mounted.log, "shardfs.fuse.serve", OTHER_FORMATS)
