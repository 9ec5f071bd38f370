"""Where the workbench listens, where it keeps things, and how much it takes in."""

from __future__ import annotations

import ipaddress
import secrets
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_PORT = 8765
LARGEST_UPLOAD = 20_000_000  # bytes of one request with a file
LARGEST_FORM = 200_000  # bytes of any other
MOST_UPLOADS = 20  # files kept at a time
MOST_WAITING = 8  # jobs that may stand in the queue
BODY_SECONDS = 20.0  # a client that sends nothing for so long has gone


@dataclass(frozen=True)
class ServerSettings:
    """One workbench.

    Attributes
    ----------
    out : Path
        Folder of the ledger, as given to `reproduce`; jobs and models are kept in `workbench/` in it.
    host, port : str, int
        Where it listens.
    token : str
        What a browser has to show where other machines can reach the server; empty on this machine alone.
    """

    out: Path
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    token: str = field(default="", repr=False)

    @classmethod
    def at(cls, out: Path, host: str, port: int) -> ServerSettings:
        """The settings for an address; one that other machines can reach gets a token."""
        return cls(out, host, port, "" if is_loopback(host) else secrets.token_urlsafe(32))

    @property
    def home(self) -> Path:
        return self.out / "workbench"

    @property
    def link(self) -> str:
        """What to open in a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/" + (f"?token={self.token}" if self.token else "")


def is_loopback(host: str) -> bool:
    """Whether an address belongs to this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
