"""Where the workbench listens, where it stores files, and its limits."""

from __future__ import annotations

import ipaddress
import secrets
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_PORT = 8765
LARGEST_UPLOAD = 20_000_000  # bytes of one request with a file
LARGEST_FORM = 200_000  # bytes of any other
MOST_UPLOADS = 20  # files kept at a time
MOST_WAITING = 8  # jobs in the queue
BODY_SECONDS = 20.0  # without a byte, after which a request is given up


@dataclass(frozen=True)
class ServerSettings:
    """The settings of one workbench.

    Attributes
    ----------
    out : Path
        Folder of the ledger, as given to `reproduce`; jobs and models are kept in `workbench/` in it.
    host, port : str, int
        Where it listens.
    token : str
        What a browser must send if other machines can reach the server; empty if only this machine can.
    """

    out: Path
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    token: str = field(default="", repr=False)

    @classmethod
    def at(cls, out: Path, host: str, port: int) -> ServerSettings:
        """The settings for an address; an address that other machines can reach gets a token."""
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
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
