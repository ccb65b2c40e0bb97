"""Steps of the interpreter, counted where time would depend on the machine."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any


@contextmanager
def counted_steps(*modules: ModuleType) -> Iterator[list[int]]:
    """Count the steps of the interpreter in *modules* during the block."""
    count, before = [0], sys.gettrace()
    files = {module.__file__ for module in modules}

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        count[0] += event == "opcode"
        return trace

    sys._getframe().f_trace_opcodes = True  # without one that wants opcodes, Python 3.12 counts none of those to come
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)
