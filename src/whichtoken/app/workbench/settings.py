"""Where the workbench listens, where it stores files, its limits, and the numbers that users may change."""

from __future__ import annotations

import ipaddress
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whichtoken.errors import UsageError

DEFAULT_PORT = 8765
LARGEST_UPLOAD = 20_000_000  # bytes of one request with a file
MOST_UPLOADS = 20  # files kept at a time
MOST_WAITING = 8  # jobs in the queue


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


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An IP address; None for a name."""
    with suppress(ValueError):
        return ipaddress.ip_address(host)
    return None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    address = ip_address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


@dataclass(frozen=True)
class Parameter:
    """A number or a choice that a page lets the user change; the type of its default is its type."""

    name: str
    default: Any
    least: float = 0
    most: float = 0
    choices: tuple[str, ...] = ()
    doc: str = ""
    symbol: str = ""

    @property
    def whole(self) -> bool:
        return isinstance(self.default, int)

    def read(self, text: str | None) -> Any:
        """The value in an address, or the default."""
        if text is None or not text.strip():
            return self.default
        if text in self.choices:
            return text
        with suppress(ValueError):
            value = int(text) if self.whole else float(text)
            if not self.choices and self.least <= value <= self.most:
                return value
        number = f"a {'whole ' if self.whole else ''}number from {self.least:,} to {self.most:,}"
        accepted = f"one of {', '.join(self.choices)}" if self.choices else number
        raise UsageError(f"{{{self.name}}} is not accepted; give {accepted}", **{self.name: text[:40]})
