"""The IMDB reviews from their publisher, for machines that are online."""

from __future__ import annotations

import hashlib
import os
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from whichtoken.errors import UsageError

URL = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
MD5 = "7c2ac02c03563afcf9b574c7e56c153a"  # of the archive published in 2011 (80.2 MB)
BLOCK = 1 << 18


def download_imdb(folder: Path, *, url: str = URL, checksum: str = MD5, timeout: float = 30.0) -> Path:
    """Fetch the archive into a folder, unless it is there, and return its path; `read_imdb` takes it as it is.

    Parameters
    ----------
    folder : Path
        Created if needed.
    url : str, optional
        Where the archive is.
    checksum : str, default="7c2ac02c03563afcf9b574c7e56c153a"
        Md5 (32 digits) or sha256 (64 digits) of the file. A file with another checksum is not kept.
    timeout : float, default=30.0
        Seconds of silence after which the download ends.

    Returns
    -------
    Path
        The archive.

    Raises
    ------
    UsageError
        If the download fails or its checksum is another one.

    Examples
    --------
    >>> from pathlib import Path
    >>> from whichtoken.data import download_imdb
    >>> download_imdb(Path("data"))  # doctest: +SKIP
    """
    target = Path(folder) / url.rsplit("/", 1)[-1]
    if target.is_file() and file_checksum(target, checksum) == checksum:
        return target
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _fetch(url, part, timeout)
        found = file_checksum(part, checksum)
        if found != checksum:
            raise UsageError(f"{url} arrived with checksum {found} instead of {checksum}; nothing was kept, try again")
        part.replace(target)
    except HTTPError as error:
        error.close()
        raise UsageError(f"{url} cannot be reached ({error.reason}); nothing was written") from None
    except URLError as error:
        raise UsageError(f"{url} cannot be reached ({error.reason}); nothing was written") from error
    except (OSError, HTTPException) as error:
        said = " ".join(str(error).split())
        raise UsageError(f"{url} cannot be fetched to {target} ({said}); nothing was kept") from error
    finally:
        part.unlink(missing_ok=True)
    return target


def file_checksum(path: Path, like: str) -> str:
    """md5 or sha256 of a file, whichever has as many digits as `like`."""
    names = {32: "md5", 64: "sha256"}
    if len(like) not in names:
        raise ValueError(f"checksum={like!r} must have 32 (md5) or 64 (sha256) hexadecimal digits")
    with path.open("rb") as file:
        return hashlib.file_digest(file, names[len(like)]).hexdigest()


def _fetch(url: str, part: Path, timeout: float) -> None:
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with urlopen(url, timeout=timeout) as response, part.open("wb") as file, Progress(*columns, transient=True) as bar:
        size = int(response.headers.get("Content-Length", 0))
        task = bar.add_task("", total=size or None)
        received = 0
        while block := response.read(BLOCK):
            file.write(block)
            received += len(block)
            bar.update(task, advance=len(block))
    if size and received < size:
        raise OSError(f"the connection ended after {received} of {size} bytes")
