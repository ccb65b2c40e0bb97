"""The command `shardfs`, also as `python -m shardfs`."""

import gc
import os
import signal


def main() -> None:
    """Run the command line; until that is loaded, Ctrl-C ends the process without a word."""
    ctrl_c = signal.getsignal(signal.SIGINT)
    if ctrl_c is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy would start threads for matrices, which we have not
    gc.disable()  # to look for garbage among what is imported takes a seventh of the time; `Command` enables it
    from shardfs import cli

    signal.signal(signal.SIGINT, ctrl_c)
    cli.main()


if __name__ == "__main__":
    main()
