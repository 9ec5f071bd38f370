"""The program of the child process that runs a tokenizers file; `tokenizer_process` starts it and says what it does.

It stands alone: only the standard library and `tokenizers` are imported, so that it starts in some hundredths of a second.
"""

from __future__ import annotations

import json
import os
import sys
import time
from array import array
from typing import Any

try:
    import resource
except ImportError:  # not on Windows: there only the parent's clock limits it
    resource = None  # type: ignore[assignment]

TOKENS_PER_CHARACTER = 100  # one character can become 18 others, of four bytes each
MORE_TOKENS = 1000  # of a text, however short


def _main() -> None:
    """Answer requests, one line of JSON each, until there are no more."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    tokenizer = None
    for line in requests:
        request = json.loads(line)
        _limit(request["seconds"], request["bytes"])
        arrays: list[array[int]] = []
        try:
            if tokenizer is None:
                tokenizer = _load(request["tokenizer"])
                answer: dict[str, Any] = {}
            else:
                answer, arrays = _encode(tokenizer, **request["encode"])
        except BaseException as error:  # a panic of the library is not an Exception
            answer = {"error": str(error)[:1000] or type(error).__name__}
        answers.write(json.dumps({**answer, "sizes": [len(part) for part in arrays]}).encode() + b"\n")
        for part in arrays:
            answers.write(part.tobytes())
        answers.flush()


def _limit(seconds: int, memory: int) -> None:
    """Allow so much more processor time, and so much memory, than was used so far."""
    if resource is not None:
        used = int(time.process_time()) + 1
        for kind, most in (("RLIMIT_CPU", used + seconds), ("RLIMIT_DATA", memory), ("RLIMIT_CORE", 0)):
            hard = resource.getrlimit(getattr(resource, kind))[1]
            allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(getattr(resource, kind), (allowed, hard))


def _load(text: str) -> Any:
    """The tokenizer of such a file; it fills nothing up to a length, for a filler is no token of a text."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_padding()
    return tokenizer


def _encode(tokenizer: Any, texts: list[str], places: bool, special: bool) -> tuple[dict[str, Any], list[array[int]]]:
    """Names of the distinct tokens; lengths of the texts, ids of all tokens, and where they start and stop if asked."""
    run = tokenizer.encode_batch if places else tokenizer.encode_batch_fast
    codes = run(texts, add_special_tokens=special)
    lengths, ids = array("q", map(len, codes)), array("q")
    for code in codes:
        ids.extend(code.ids)
    characters = sum(map(len, texts))
    if len(ids) > MORE_TOKENS * len(texts) + TOKENS_PER_CHARACTER * characters:
        raise ValueError(f"it makes {len(ids)} tokens of {characters} characters")
    arrays = [lengths, ids]
    if places:
        arrays += [array("q", (span[side] for code in codes for span in code.offsets)) for side in (0, 1)]
    return {"names": {i: tokenizer.id_to_token(i) or "" for i in set(ids)}}, arrays


if __name__ == "__main__":
    _main()
