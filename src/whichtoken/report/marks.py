"""Colours of contributions on the terminal: blue speaks for the predicted label, orange against it, as in the pages."""

from __future__ import annotations

FOR, AGAINST = (30, 90, 210), (200, 95, 10)
FAINT, STRONG = 0.05, 0.3  # shares of the strongest contribution


def terminal_style(support: float, strongest: float) -> str:
    """The stronger the brighter; no colour for what hardly counts."""
    share = abs(support) / strongest
    if share < FAINT:
        return ""
    red, green, blue = (int(share * part) for part in (FOR if support > 0 else AGAINST))
    return f"{'bold white ' if share > STRONG else ''}on rgb({red},{green},{blue})"
