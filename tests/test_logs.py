"""A log that damage does not flood."""

from __future__ import annotations

import logging

from shardfs.fuse.log import OneLine


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("shardfs", logging.ERROR, __file__, 1, "%s", (text,), None)


def test_a_name_of_a_dataset_cannot_begin_another_line() -> None:
    assert OneLine("%(levelname)s %(message)s").format(record("a\nERROR b\x1b[2J")) == "ERROR a\\nERROR b\\x1b[2J"
