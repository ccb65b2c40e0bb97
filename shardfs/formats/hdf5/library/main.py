"""Where the process begins: `run`."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from .channel import MAX_MEMORY, Json, LibraryChannel, PipedFile


def run() -> None:
    """Answer requests from standard input on standard output, until that ends; and then end, with nothing in between.

    What is registered for the end of Python, and libhdf5's own end, has nothing to do with the file any more, and a
    hostile one may have changed it.
    """
    status = 1
    try:
        _serve()
        status = 0
    finally:
        os._exit(status)


def _serve() -> None:
    requests, replies = os.fdopen(0, "rb", closefd=False), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    channel = LibraryChannel(requests, replies)
    # Everything that Python imports when it is first used, as it cannot when no file can be opened.
    import encodings.ascii
    import encodings.latin_1
    import encodings.utf_8  # noqa: F401

    try:
        import h5py

        from .file import Hdf5File
    except Exception as error:  # whatever is wrong with libraries
        channel.receive()
        channel.send({"error": "unusable", "text": str(error)})
        return
    _limit()
    file: Hdf5File | None = None

    def begin(size: int) -> Json:
        nonlocal file
        file = Hdf5File(PipedFile(channel, size))
        return h5py.version.hdf5_version

    while True:
        request, _ = channel.receive()
        _allow(request["seconds"])
        name, arguments = request["ask"], request["with"]
        if "path" in arguments:
            arguments["path"] = [step.encode("utf-8", "surrogateescape") for step in arguments["path"]]
        _answer(channel, begin if name == "begin" else getattr(file, name), arguments)


def _answer(channel: LibraryChannel, ask: Callable[..., Any], arguments: dict[str, Json]) -> None:
    """Answer one request with what *ask* returns, or yields."""
    from .elements import ERRORS, AbsentName, brief

    try:
        result = ask(**arguments)
        if isinstance(result, Iterator):
            for part in result:
                channel.send(*({"part": None}, part) if isinstance(part, bytes) else ({"part": part},))
            result = None
        channel.send(*({"done": None}, result) if isinstance(result, bytes | memoryview) else ({"done": result},))
    except AbsentName as error:
        channel.send({"error": "absent", "text": str(error)})
    except MemoryError:
        channel.send({"error": "memory"})
    except ERRORS as error:
        channel.send({"error": "damaged", "text": brief(error)})


def _limit() -> None:
    """Keep this process, and what a file makes of it, from files, from other processes, and from taking all memory."""
    with contextlib.suppress(ImportError):  # Windows has no such limits
        import resource

        for what, most in (
            (resource.RLIMIT_DATA, MAX_MEMORY),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_FSIZE, 0),
            (resource.RLIMIT_NOFILE, 0),
            (resource.RLIMIT_NPROC, 0),
        ):
            most = _lower(most, resource.getrlimit(what)[1])
            resource.setrlimit(what, (most, most))


def _allow(seconds: int) -> None:
    """Let the next request take so much time of the processor, and no more."""
    with contextlib.suppress(ImportError):
        import resource

        usage = resource.getrusage(resource.RUSAGE_SELF)
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (_lower(int(usage.ru_utime + usage.ru_stime) + seconds, hard), hard))


def _lower(limit: int, hard: int) -> int:
    """Return *limit*, or the *hard* one of this process if that is lower, above which none can be set."""
    return limit if hard < 0 else min(limit, hard)
