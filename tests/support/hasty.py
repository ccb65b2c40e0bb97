"""Processes that hardly wait before they try again, and give a silent S3 server up when the test says."""


def hasty(*, silence: float = 60.0, pause: float = 0.01, first: float = 15.0) -> dict[str, str]:
    """Variables for processes that give a silent server up after *silence* seconds, and hardly wait to try again.

    A server on a busy machine is silent, too: few seconds are for tests in which it hangs.
    A source that says nothing to begin with is given up after *first* seconds.
    """
    return {"TEST_HASTE": f"{silence} {pause} {first}"}
