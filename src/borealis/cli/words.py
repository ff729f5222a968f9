"""Numbers as people read them."""

from __future__ import annotations

from rich.filesize import decimal

from borealis.errors import plural as plural


def span(us: float | None) -> str:
    """A length of time in microseconds.

    >>> span(1_500), span(2_340_000), span(75_000_000), span(None)
    ('2 ms', '2.3 s', '1 min 15 s', '-')
    """
    if us is None:
        return "-"
    if us < 1_000_000:
        return f"{us / 1000:.0f} ms"
    if us < 60_000_000:
        return f"{us / 1e6:.1f} s"
    seconds = round(us / 1e6)
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600:,} h {seconds % 3600 // 60} min"


def size(count: int) -> str:
    """A number of bytes.

    >>> size(624), size(1_530_000)
    ('624 B', '1.5 MB')
    """
    return f"{count} B" if count < 1000 else decimal(count)
