"""What all commands print: printable lines, help with examples, an end without a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardfs.cli import cli
from tests.support.commands import run
from tests.support.corpus import array, sharding
from tests.support.datasets import store

REPORTS = ["info", "map", "verify", "refs"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mout", "a", "b"], "No such command 'mout'. (Did you mean one of: 'mount', 'mounts', 'umount'?)"),
        (["s3://bucket/a", "b"], "A command is missing before 's3://bucket/a'. To mount it, type: shardfs mount"),
        (["/usr", "b"], "A command is missing before '/usr'. To mount it, type: shardfs mount /usr MOUNTPOINT"),
        ([], "Usage: "),
        (["mount", "a"], "Missing argument 'MOUNTPOINT'."),
        (["mount", "--vew", "v2", "a", "b"], "No such option '--vew'. Did you mean '--view'?"),
        (["mount", "--metadata-ttl", "abc", "a", "b"], "'abc' is not a valid number."),
        (["mount", "--metadata-ttl", "nan", "a", "b"], "'nan' is not a valid number."),
        (["mount", "--uid", "root", "a", "b"], "'root' is not a valid integer."),
        (["mount", "--umask", "999", "a", "b"], "'999' is not a umask; write three octal digits, such as 022."),
        (["mount", "--cache-size", "lots", "a", "b"], "'lots' is not a size; write for example 500M or 10G"),
        (["stats", "--timeout", "soon", "a"], "'soon' is not a valid number."),
    ],
    ids=" ".join,
)
def test_a_wrong_command_is_told_what_is_wrong_with_it(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(cli, arguments, prog_name="shardfs")
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


FORGED = [
    "\x1b[2Jcleared",
    "x\n(root)\n  shown          unsharded",
    "bell\x07",
    "\x9b31mred",
    "right\u202eto left",
    "a\rb",
]


def test_no_name_in_a_dataset_can_write_more_than_letters_to_the_terminal(tmp_path: Path) -> None:
    root = tmp_path / "source"
    for number, name in enumerate(FORGED):
        document = array((4, 6), (4, 6), sharding((2, 3)), data_type={"name": name} if number else "int32")
        store(root / f"sound{name}", array((4, 6), (4, 6), sharding((2, 3))))
        store(root / f"damaged{name}", array((4, 6), (4, 6), sharding((2, 3))))
        (root / f"damaged{name}/c/0/0").write_bytes(b"")
        for kind, text in {"odd": json.dumps(document), "broken": json.dumps([name]), "cut": "{"}.items():
            (root / f"{kind}{name}").mkdir()
            (root / f"{kind}{name}/zarr.json").write_text(text)
    codec = {"name": FORGED[0], "configuration": {FORGED[1]: 1}}
    (root / "codec").mkdir()
    (root / "codec/zarr.json").write_text(json.dumps(array((4,), (4,), codec)))
    for report in REPORTS:
        done = run(report, root)
        for text in (done.stdout, done.stderr):
            assert all(line.isprintable() for line in text.split("\n"))
            assert "\n(root)" not in f"\n{text}"
