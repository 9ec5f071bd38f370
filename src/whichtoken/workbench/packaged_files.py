"""Style sheets and scripts: files of the package, and nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.responses import Response
from starlette.staticfiles import StaticFiles

FOLDER = Path(__file__).parent / "static"


class PackagedFiles(StaticFiles):
    """Files of the package, which a browser keeps and asks about."""

    def __init__(self, folder: Path = FOLDER) -> None:
        super().__init__(directory=folder, follow_symlink=False)

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        answer = super().file_response(*arguments, **options)
        answer.headers["cache-control"] = "no-cache"
        return answer
