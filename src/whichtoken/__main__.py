"""`python -m whichtoken`, and the command `whichtoken`: signals, streams and the module path, around the command line."""

import os
import signal
import sys
from contextlib import suppress


def start() -> None:
    """Run the command line in this process; Ctrl-C ends it without a traceback from the first moment to the last."""
    # a program in the background ignores the signal
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, _stop)
    from whichtoken.app.streams import prepare_streams
    from whichtoken.working_folder import distrust_working_folder

    distrust_working_folder()
    prepare_streams()
    if not sys.warnoptions:  # Python's -W option asks for them
        # an error in a library's destructor says nothing to a user
        sys.unraisablehook = lambda _: None
    from whichtoken.app.cli.main import main

    try:
        if interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        main()
    except KeyboardInterrupt:
        _stop()
    finally:
        if interruptible:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _stop(*_: object) -> None:
    """End at once: no work has begun while modules are loaded."""
    with suppress(OSError):  # standard error may be closed or full
        os.write(2, b"whichtoken: stopped\n")
    os._exit(130)


if __name__ == "__main__":
    start()
