"""Processes end with the blocks for which they run, and a test that hangs fails."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import running
from tests.support.users import TOP


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize(
    "leave", [lambda: None, lambda: pytest.skip("a program is missing"), lambda: pytest.fail("it failed")]
)
def test_a_program_that_waits_for_ever_ends_with_its_block(end: signal.Signals, leave) -> None:
    try:
        with running(["cat"], end=end, stdin=subprocess.PIPE) as process:
            leave()
    except (pytest.skip.Exception, pytest.fail.Exception):
        pass
    assert process.returncode == -end


@pytest.mark.slow
def test_a_test_that_hangs_fails_with_its_stack_and_the_next_one_runs(tmp_path: Path) -> None:
    (tmp_path / "test_hang.py").write_text(
        "import threading\n\n"
        "def test_that_hangs():\n    threading.Event().wait()\n\n"
        "def test_that_passes():\n    pass\n"
    )
    line = [sys.executable, "-m", "pytest", "-c", TOP / "pyproject.toml", "--rootdir", tmp_path, "-n", "1"]
    line += ["-p", "no:cacheprovider", "-o", "faulthandler_timeout=0.5", tmp_path / "test_hang.py"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout
    assert "test_hang.py::test_that_hangs" in done.stdout
    assert "line 4 in test_that_hangs" in done.stderr
