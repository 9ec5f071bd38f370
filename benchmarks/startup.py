"""How long a user waits for an answer that needs no computing."""

import os
import subprocess
import sys
from collections.abc import Iterator
from statistics import median

from whichtoken.lab.benchmark import Measure, seconds

PART = "The program itself"
QUESTION = "How long does an answer take that needs no computing?"


def measure() -> Iterator[Measure]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for arguments, target in ((["--help"], 0.4), (["list"], 0.7)):

        def run(arguments: list[str] = arguments) -> None:
            command = [sys.executable, "-m", "whichtoken", *arguments]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)

        run()
        times = [seconds(run) for _ in range(7)]
        yield Measure(f"whichtoken {arguments[0]}", "s, warm", median(times), target, at_least=False)
