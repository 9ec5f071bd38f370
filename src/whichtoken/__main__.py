"""`python -m whichtoken`, and the command `whichtoken`: signals, streams and the module path, around the command line."""

import errno
import io
import os
import signal
import sys
from contextlib import suppress
from typing import Any


def start() -> None:
    """Run the command line in this process; Ctrl-C ends it without a traceback from the first moment to the last."""
    # a program in the background ignores the signal
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, _stop)
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


def prepare_streams() -> None:
    """Make the standard streams of a program safe to use; call it once, before the program opens a file.

    If a standard stream is closed, the next file that is opened gets its number, and what a library prints goes into it.
    """
    # writing to a closed standard output must be an error
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            # opens with the lowest free number
            os.open(os.devnull, mode)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = _wrap(sys.stdout, 1, _Output)
    sys.stderr = _wrap(sys.stderr, 2, _Stream)


def _wrap(stream: Any, number: int, kind: type[io.TextIOWrapper]) -> Any:
    # Python found it closed
    if stream is None:
        return kind(io.BufferedWriter(io.FileIO(number, "w", closefd=False)), "utf-8", "backslashreplace")
    # a program may have replaced it
    if type(stream) is not io.TextIOWrapper:
        return stream
    settings = (stream.encoding, stream.errors, None, stream.line_buffering)
    return kind(stream.detach(), *settings)


class _Stream(io.TextIOWrapper):
    """A stream that is redirected to the null device after an error, so that Python does not write again at its end."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._fail(error)
        return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


class _Output(_Stream):
    """Standard output: an error is reported, unless the reader (head, less) has closed the pipe."""

    def _fail(self, error: OSError) -> None:
        super()._fail(error)
        if not isinstance(error, BrokenPipeError):
            from whichtoken.errors import UsageError

            reason = "it is closed" if error.errno == errno.EBADF else (error.strerror or str(error)).lower()
            raise UsageError(f"standard output cannot be written: {reason}; choose another place for it") from error


if __name__ == "__main__":
    start()
