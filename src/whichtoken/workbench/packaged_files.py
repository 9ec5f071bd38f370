"""Style sheets and scripts: files of the package, those that every page of the report has too, nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.responses import Response
from starlette.staticfiles import StaticFiles

import whichtoken

FOLDERS = ("workbench", "static"), ("display", "assets")


class PackagedFiles(StaticFiles):
    """Files of the package, which a browser keeps and asks about."""

    def __init__(self) -> None:
        package = Path(whichtoken.__file__).parent
        super().__init__(directory=package.joinpath(*FOLDERS[0]), follow_symlink=False)
        self.all_directories = [package.joinpath(*folder) for folder in FOLDERS]

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        answer = super().file_response(*arguments, **options)
        answer.headers["cache-control"] = "no-cache"
        return answer
