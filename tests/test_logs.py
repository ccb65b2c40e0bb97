"""A log that damage does not flood."""

from __future__ import annotations

import logging

from shardfs.fuse.log import Once, OneLine


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("shardfs", logging.ERROR, __file__, 1, "%s", (text,), None)


def test_a_line_is_said_once_a_minute() -> None:
    now = 0.0
    once = Once(lambda: now)
    assert [once.filter(record("a")), once.filter(record("a")), once.filter(record("b"))] == [True, False, True]
    now = 59.0
    assert not once.filter(record("a"))
    now = 60.0
    assert once.filter(record("a"))


def test_what_is_remembered_is_bounded() -> None:
    once = Once(lambda: 0.0)
    for i in range(5000):
        assert once.filter(record(str(i)))
    assert not once.filter(record("4999"))


def test_a_name_of_a_dataset_cannot_begin_another_line() -> None:
    assert OneLine("%(levelname)s %(message)s").format(record("a\nERROR b\x1b[2J")) == "ERROR a\\nERROR b\\x1b[2J"
