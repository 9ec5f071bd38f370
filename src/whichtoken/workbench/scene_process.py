"""The process of one scene: `python -m whichtoken.workbench.scene_process SCENE JSON`, a line of JSON for each piece of news."""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

from whichtoken.errors import in_one_line
from whichtoken.extras import needed_by


def tell(kind: str, data: dict[str, Any]) -> None:
    """One line for the server."""
    print(json.dumps([kind, data], allow_nan=False), flush=True)


def play(id: str, knobs: dict[str, Any]) -> None:
    """Play the scene to its end; what goes wrong is told as well."""
    try:
        from whichtoken.workbench.scenes import SCENES

        with warnings.catch_warnings(record=True) as noticed, needed_by("this training"):
            warnings.simplefilter("always")
            SCENES[id].play(knobs, tell)
        notes = [str(one.message) for one in noticed if type(one.message).__module__.startswith("whichtoken")]
        tell("end", {"notes": notes})
    except BrokenPipeError:  # nobody watches any more
        os._exit(0)
    except Exception as error:
        tell("fault", {"error": in_one_line(error)})


if __name__ == "__main__":
    play(sys.argv[1], json.loads(sys.argv[2]))
