"""README and docs: their links lead somewhere, the options they name exist, and what they tell you to type works."""

import ast
import errno
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from shardfs.cli import every_command
from tests.support.commands import run as run_command
from tests.support.mounting import Mounter, environment
from tests.support.prepared import for_shells
from tests.support.s3_server import Bucket

TOP = Path(__file__).parent.parent
README = TOP / "README.md"
PAGES = [README, *sorted((TOP / "docs").rglob("*.md"))]
OTHERS = {"--bind", "--cap-add", "--checksum", "--device", "--fusemount", "--hostname", "--security-opt", "--size-only"}
OTHERS |= {"--one-cpu", "--stop-timeout", "--user"}
"""Options of other programs, and of scripts/bench, that the text names by themselves."""

_BEGIN = 'set -e; mkdir -p mnt; trap "! mountpoint -q mnt || shardfs umount mnt" EXIT\n'


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> list[str]:
    found = re.findall(r"^```(\S*)[^\n]*\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)
    return [block for language, block in found if language in languages]


def typed() -> Iterator[str]:
    """Every command line of shardfs in a block, without what is explained behind it."""
    for page in PAGES:
        for block in blocks(page, "", "console"):
            for line in block.splitlines():
                if (found := re.match(r"(?:\$ )?(shardfs [a-z].*?)(?: {2,}.*| [|>] .*)?$", line)) is not None:
                    yield found[1]


def run(script: str, cwd: Path, **variables: str) -> None:
    env = environment() | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    env = for_shells(env) | variables
    done = subprocess.run(["bash", "-c", script], cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the `data.zarr` that the README makes, and its chunks as files."""
    directory = tmp_path_factory.mktemp("made")
    (directory / "make.py").write_text(blocks(README, "python")[0])
    run("python3 make.py && shardfs unpack data.zarr chunks.zarr", directory)
    return directory


@pytest.fixture
def dataset(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(made, tmp_path, dirs_exist_ok=True)


@cache
def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.slow
def test_the_pages_are_built_without_a_warning(tmp_path: Path) -> None:
    site = ["-n", "-W", "--keep-going", "-q", "-d", tmp_path / "trees", TOP / "docs", tmp_path / "site"]
    done = subprocess.run([sys.executable, "-m", "sphinx", *site], env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "read_chunk" in (tmp_path / "site/python.html").read_text(encoding="utf-8")


def test_links_lead_to_pages_and_headings_on_github_too() -> None:
    for page in [*PAGES, TOP / "CHANGELOG.md"]:
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text_of(page)):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


def test_command_lines_are_understood() -> None:
    examples = [line for each in every_command().values() for line in getattr(each, "examples", "").splitlines()]
    lines = [*typed(), *(line.strip().split(" > ")[0].split(" | ")[0] for line in examples if line.strip())]
    assert len(lines) > 60
    for line in lines:
        name, *words = shlex.split(line, comments=True)[1:]
        command = every_command()[name]
        try:
            command.make_context(name, words, resilient_parsing=False)
        except click.ClickException as error:
            pytest.fail(f"{line}: {error.format_message()}")


def test_options_that_are_named_exist() -> None:
    of = {name: {opt for option in each.params for opt in option.opts} for name, each in every_command().items()}
    of_all = {"--help", "--version"}.union(*of.values())
    for page in PAGES:
        for code in re.findall(r"`([^`]+)`", prose(page)):
            words = code.split()
            if words[0].startswith("--"):
                known = of_all | OTHERS
            elif words[0] == "shardfs" and words[1:]:
                known = of.get(words[1], of_all) | {"--help"}
            else:
                continue
            named = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert named <= known, f"{page.name}: {code}"


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")], ids=lambda page: page.stem)
def test_what_is_typed_in_a_console_works(page: Path, dataset: Path) -> None:
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    assert all(line.startswith("$ ") for line in lines)
    run(_BEGIN + "\n".join(line.removeprefix("$ ") for line in lines if line != "$ mkdir mnt"), dataset)


def messages() -> set[str]:
    """All texts in the code, with … for values."""
    texts = set()
    for path in (TOP / "shardfs").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts.add("".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts))
    return texts


@pytest.mark.slow
def test_messages_that_are_explained_are_those_of_shardfs_or_the_system() -> None:
    texts = messages().union(map(os.strerror, errno.errorcode))
    rows = re.findall(r"^\| (.*?) \|", text_of(TOP / "docs/troubleshoot.md"), re.MULTILINE)
    quoted = [quote for row in rows for quote in re.findall(r"`([^`]+)`", row) if " " in quote]
    assert len(quoted) > 30
    for quote in quoted:
        parts = [part for part in quote.split("…") if part.strip()]
        assert any(all(part.strip() in text for part in parts) for text in texts), quote


def keys_in(value: object) -> set[str]:
    """The keys of all objects in a JSON value."""
    if isinstance(value, list):
        return set().union(*map(keys_in, value))
    return set(value).union(*map(keys_in, value.values())) if isinstance(value, dict) else set()


@pytest.mark.slow
def test_the_keys_of_json_that_are_written_down_are_printed(dataset: Path, mount: Mounter) -> None:
    mounted = mount(dataset / "chunks.zarr").path
    (dataset / "data.zarr/image/c/0/0/0").write_bytes(bytes(1000))
    arguments = {name: ["data.zarr"] for name in ("info", "info --tools", "map", "compact", "recover")}
    arguments |= {"verify": ["."], "pack": ["chunks.zarr", "shards.zarr"], "stats": [str(mounted)]}
    rows = re.findall(r"^\| `([^|]*)` \| (.*) \|$", text_of(TOP / "docs/json.md"), re.MULTILINE)
    assert len(rows) > 9
    for command, keys in rows:
        name = command.partition("`")[0]
        done = run_command(*name.split(), "--json", *arguments.get(name, []), cwd=dataset)
        found = keys_in(json.loads(done.stdout))
        assert set(re.findall(r"`(\w+)`", keys)) - {"null"} <= found, name


@pytest.mark.slow
def test_every_mount_that_is_written_down_can_be_made(dataset: Path) -> None:
    lines = sorted({line for line in typed() if re.match(r"shardfs mount (?!.*s3:).*data\.zarr /mnt/x$", line)})
    assert len(lines) > 9
    for line in lines:
        run(_BEGIN + line.replace("/mnt/x", "mnt") + "\nls mnt\nshardfs umount mnt", dataset)


@pytest.mark.slow
def test_python_that_is_written_down_runs(dataset: Path, s3_bucket: Bucket) -> None:
    s3_bucket.upload(dataset / "data.zarr", "data.zarr")
    every = [code for page in PAGES for code in blocks(page, "python")[page == README :]]
    codes = [code for code in every if "__main__" not in code]
    assert len(codes) > 3
    for number, code in enumerate(codes):
        (dataset / f"code{number}.py").write_text(code.replace("s3://bucket", s3_bucket.url()))
    each = "import runpy, sys; [runpy.run_path(path) for path in sys.argv[1:]]"
    run(f"python3 -c '{each}' code*.py", dataset, **s3_bucket.environment)


def programs() -> list[str]:
    """The blocks that are programs of their own, as they start processes."""
    return [code for page in PAGES for code in blocks(page, "python") if "__main__" in code]


@pytest.mark.slow
@pytest.mark.parametrize("code", programs(), ids=lambda code: re.findall(r"mkdir\(.(\w+)", code)[0])
def test_programs_that_are_written_down_run(code: str, tmp_path: Path) -> None:
    names = [name.partition(".")[0] for name in re.findall(r"^(?:import|from) ([\w.]+)", code, re.MULTILINE)]
    if missing := [name for name in names if find_spec(name) is None]:
        pytest.skip(f"{missing[0]} is not installed")
    (tmp_path / "program.py").write_text(code)
    run("python3 -W ignore program.py", tmp_path)
