"""Run a tokenizers file in a process of its own, with limits of time and memory.

Such a file is a small program: replacements that double a text, regular expressions that never end and ids beyond all bounds
can be written in it, and the library aborts or panics on some of them. Here that ends the child, and gives a sentence.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.errors import UsageError
from whichtoken.machine import available_memory
from whichtoken.processes import python_environment, python_file_command
from whichtoken.reading import reason

PROGRAM = Path(__file__).with_name("tokenizer_child.py")
SECONDS, BYTES_PER_SECOND = 10, 100_000  # of processor time: tokenizers read millions of bytes in a second
MEMORY, MEMORY_PER_BYTE = 1 << 30, 256  # bytes: what the library keeps of a byte of text or of a file
PATIENCE = 10  # seconds on the clock for each of processor time: others may need the processors too

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Encoded:
    """Some texts as tokens."""

    lengths: Ints  # (texts,)
    ids: Ints  # (all tokens,)
    names: dict[int, str]  # of the ids that occur
    starts: Ints  # (all tokens,), characters of their texts; empty unless asked for
    stops: Ints


def encode_texts(
    tokenizer: str, chunks: Iterable[Sequence[str]], *, places: bool = False, special: bool = False
) -> Iterator[Encoded]:
    """Encode chunks of texts one after the other.

    Parameters
    ----------
    tokenizer : str
        What a tokenizers file holds.
    chunks : iterable of sequences of str
    places : bool
        Ask also where the tokens stand.
    special : bool
        Let the tokenizer add its special tokens.

    Raises
    ------
    UsageError
        If the tokenizer cannot be loaded, fails, or needs more time or memory than its texts can explain.
    """
    with _start_process() as process:
        size = len(tokenizer)
        _ask(process, {"tokenizer": tokenizer}, size)
        for texts in chunks:
            given = {"texts": list(map(str, texts)), "places": places, "special": special}
            answer, arrays = _ask(process, {"encode": given}, size + sum(map(len, texts)))
            lengths, ids, *spans = arrays
            starts, stops = spans or [np.empty(0, np.int64)] * 2
            yield Encoded(lengths, ids, {int(i): name for i, name in answer["names"].items()}, starts, stops)


@contextmanager
def _start_process() -> Iterator[subprocess.Popen[bytes]]:
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            python_file_command(str(PROGRAM)),
            env=python_environment(),
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        raise UsageError(f"no process can be started for the tokenizer: {reason(error)}") from error
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with suppress(OSError):  # what was not yet written has no reader any more
                stream.close()


def _ask(process: subprocess.Popen[bytes], request: dict[str, Any], size: int) -> tuple[dict[str, Any], list[Ints]]:
    """One request and its answer, within the limits for so many bytes."""
    seconds = SECONDS + size // BYTES_PER_SECOND
    memory = min(MEMORY + MEMORY_PER_BYTE * size, available_memory())
    assert process.stdin is not None
    assert process.stdout is not None
    clock = Timer(PATIENCE * seconds, process.kill)
    clock.start()
    try:
        process.stdin.write(json.dumps({**request, "seconds": seconds, "bytes": memory}).encode() + b"\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        arrays = [_array(process.stdout, length) for length in answer["sizes"]]
    except (OSError, ValueError) as error:  # it is gone
        clock.cancel()
        process.kill()
        slow = -process.wait() in (signal.SIGXCPU, signal.SIGKILL) if hasattr(signal, "SIGXCPU") else False
        what = f"more than {seconds} s of computing" if slow else f"more than {memory / 1e9:.2g} GB of memory"
        raise UsageError(
            f"the tokenizer fails: it needs {what} for {size} characters of its file and the texts"
        ) from error
    finally:
        clock.cancel()
    if "error" in answer:
        raise UsageError(f"the tokenizer fails: {reason(ValueError(answer['error']))}")
    return answer, arrays


def _array(source: IO[bytes], length: int) -> Ints:
    content = source.read(8 * length)
    if len(content) < 8 * length:
        raise EOFError("the tokenizer's process ended in the middle of an answer")
    return np.frombuffer(content, np.int64)
