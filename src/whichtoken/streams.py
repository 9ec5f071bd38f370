"""Standard streams that may be closed, full or gone: output that is lost is an error, a lost note is not."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any

from whichtoken.errors import UsageError


def prepare_streams() -> None:
    """Make the standard streams of a program safe to use; once, before it opens any file.

    A file that is opened while they are closed would take their place, and what a library prints would go into it.
    """
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):  # 1: to write there is an error
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest number that is free
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = _wrapped(sys.stdout, 1, _Output)
    sys.stderr = _wrapped(sys.stderr, 2, _Stream)  # a lost note stops no work


def _wrapped(stream: Any, number: int, kind: type[io.TextIOWrapper]) -> Any:
    if stream is None:  # Python found it closed
        return kind(io.BufferedWriter(io.FileIO(number, "w", closefd=False)), "utf-8", "backslashreplace")
    if type(stream) is not io.TextIOWrapper:  # somebody's own
        return stream
    settings = (stream.encoding, stream.errors, None, stream.line_buffering)
    return kind(stream.detach(), *settings)


class _Stream(io.TextIOWrapper):
    """A stream that leads nowhere once it cannot be written, so that Python does not try again at its end."""

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
    """Standard output: what cannot be written is an error, unless the reader (head, less) has seen enough and left."""

    def _fail(self, error: OSError) -> None:
        super()._fail(error)
        if not isinstance(error, BrokenPipeError):
            reason = "it is closed" if error.errno == errno.EBADF else (error.strerror or str(error)).lower()
            raise UsageError(f"standard output cannot be written: {reason}; choose another place for it") from error
