"""The figures of the first page, read from the tables of measurements: no figure is written twice.

`headlines` returns them by name, for `myst_substitutions`. A row or column that is missing raises an error, so that a change
of the tables does not leave the first page behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def tables(page: Path) -> Iterator[list[list[str]]]:
    """Yield the tables of a page: rows of cells, the header first."""
    rows: list[list[str]] = []
    for line in [*page.read_text(encoding="utf-8").splitlines(), ""]:
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not set("".join(cells)) <= set("-: "):
                rows.append(cells)
        elif rows:
            yield rows
            rows = []


def cell(page: Path, row: str, column: str) -> str:
    """Return the first word of the cell of the first row and column with these beginnings, in the same table.

    Raises
    ------
    LookupError
        If no table of the page has both.
    """
    for header, *rows in tables(page):
        found = [number for number, title in enumerate(header) if title.startswith(column)]
        for cells in rows:
            if found and cells[0].startswith(row) and cells[found[0]]:
                return cells[found[0]].split()[0]
    raise LookupError(f"{page.name} has no table with a row {row!r} and a column {column!r}, which the first page shows")


def headlines(docs: Path) -> dict[str, str]:
    """Return the figures of the first page by name."""
    benchmarks, large = docs / "benchmarks.md", docs / "out_of_core.md"
    return {
        "training_lightgbm": cell(benchmarks, "W1a: 1M × 28", "× LightGBM"),
        "training_xgboost": cell(benchmarks, "W1a: 1M × 28", "× XGBoost"),
        "training_seconds": cell(benchmarks, "W1a: 1M × 28", "seconds"),
        "cluster_lightgbm": cell(benchmarks, "lightgbm.dask", "× dboost"),
        "cluster_xgboost": cell(benchmarks, "xgboost.dask", "× dboost"),
        "memory": cell(large, "4 GiB", "memory added"),
        "memory_xgboost": cell(large, "4 GiB, XGBoost", "memory added"),
    }
