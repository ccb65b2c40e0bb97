"""How the kernel says that a mount has ended."""

import errno

import pyfuse3
import pytest
import trio

from shardfs.fuse.serve import answer_requests


@pytest.mark.parametrize("number", [errno.ECONNABORTED, errno.EIO], ids=["ECONNABORTED", "EIO"])
def test_a_mount_that_ends_while_a_request_is_handed_over_has_ended_as_any_other(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The kernel says so in a moment that nobody can choose, so pyfuse3's error is made up here."""

    async def main(**_: int) -> None:
        async with trio.open_nursery():
            raise OSError(number, "fuse_session_receive_buf failed")

    monkeypatch.setattr(pyfuse3, "main", main)
    if number == errno.ECONNABORTED:
        trio.run(answer_requests)
    else:
        with pytest.raises(ExceptionGroup):
            trio.run(answer_requests)
