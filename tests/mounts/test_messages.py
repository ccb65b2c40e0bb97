"""What a mount prints and logs: whole lines, whatever bytes are in the names that they mention."""

import os
import subprocess
from pathlib import Path

from tests.support.corpus import array, sharding
from tests.support.datasets import store
from tests.support.mounting import PATIENCE, command, environment

STRICT = {"PYTHONIOENCODING": "utf-8:strict"}  # as in most locales of desktops


def test_odd_names_are_named_on_the_terminal_and_in_the_log(tmp_path: Path) -> None:
    name = os.fsdecode(b"latin-\xe9-\n\xc2\xb5")
    source = tmp_path / name
    chunks = store(source / "sound", array((8, 12), (4, 6), sharding((2, 3))))
    store(source / name, array((8, 12), (4, 6), sharding((2, 3))))
    (source / name / "zarr.json").write_text("{")
    (tmp_path / "place").mkdir()
    variables = environment() | STRICT | {"XDG_STATE_HOME": str(tmp_path / "state")}

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            command(*arguments), env=variables, cwd=tmp_path, capture_output=True, check=False, timeout=PATIENCE
        )

    try:
        done = run("mount", "--log-file", "log", source, "place")
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.count(b"\n") == 1
        assert sorted(os.listdir(tmp_path / "place" / name)) == ["c", "zarr.json"]
        assert (tmp_path / "place/sound/c/0/0").read_bytes() == chunks["c/0/0"]
    finally:
        ended = run("umount", "place")
    assert (ended.returncode, ended.stderr) == (0, b"")
    logged = (tmp_path / "log").read_text(encoding="utf-8", errors="replace")
    assert "Traceback" not in logged
    assert "is shown as stored: the document is not valid JSON" in logged
