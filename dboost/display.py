"""How people read numbers: in the terminal, in reports and plots, on the dashboard, and in warnings."""

from __future__ import annotations


def counted(n: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless it is 1: "1 worker", "20,000 rows"."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
