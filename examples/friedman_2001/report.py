"""Tables of targets won and excess errors, beside the results of the paper."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from examples.friedman_2001 import paper
from examples.friedman_2001.experiments import EXPERIMENTS


def outcomes(errors: pd.DataFrame) -> pd.DataFrame:
    """Return by contender: targets won (%), mean error, and mean excess over each target's best contender (%).

    errors : one row per target, one column per contender. Equally good contenders share the win.
    """
    best = errors.min(axis=1)
    wins = errors.eq(best, axis=0)
    wins = wins.div(wins.sum(axis=1), axis=0)
    # An error of zero (possible with few rows to score) has no relative excess.
    excess = errors.div(best.where(best > 0), axis=0) - 1.0
    return pd.DataFrame({"won": 100 * wins.mean(), "excess": 100 * excess.mean(), "error": errors.mean(), "sd": errors.std()})


def markdown(results: dict[str, pd.DataFrame], pictures: dict[str, str]) -> str:
    """Return the whole report."""
    parts = [f"# Friedman (2001), reproduced\n\nTargets per experiment: {max(map(len, results.values()), default=0)}."]
    for name, errors in results.items():
        experiment = EXPERIMENTS[name]
        parts.append(f"## {experiment.title}\n")
        parts.append(_importance(errors) if name == "importance" else _outcomes(name, errors, experiment.unit))
        if name in pictures:
            parts.append(f"\n![{experiment.title}]({pictures[name]})")
    return "\n".join(parts) + "\n"


def _outcomes(name: str, errors: pd.DataFrame, unit: str) -> str:
    rows = []
    for contender, row in outcomes(errors).iterrows():
        won, excess = paper.OUTCOMES[name][str(contender)]
        rows.append(
            (contender, f"{row.won:.0f} %", _percent(won, 0), f"{row.excess:.1f} %", _percent(excess, 1),
             f"{row.error:.3f} ± {row.sd:.3f}")
        )  # fmt: skip
    return table(("", "won", "paper", "excess", "paper", unit), rows)


def _importance(found: pd.DataFrame) -> str:
    rows = [
        (feature, f"{found[feature].mean():.1f} ± {found[feature].std():.1f}", f"{theirs:.1f}", 10.0 * (j + 1))
        for j, (feature, theirs) in enumerate(zip(found.columns, paper.IMPORTANCE, strict=True))
    ]
    return table(("", "importance", "paper", "coefficient, largest = 100"), rows)


def marketing(found: dict[str, Sequence[float]]) -> str:
    """Return the mean absolute error over that of the best constant, by number of leaves."""
    rows = []
    for name, errors in found.items():
        rows.append((name, *(f"{error:.3f}" for error in errors)))
        rows.append(("paper", *(f"{error:.2f}" for error in paper.MARKETING[name])))
    return table(("leaves", *paper.LEAVES), rows)


def table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _percent(value: float | None, digits: int) -> str:
    return "—" if value is None or np.isnan(value) else f"{value:.{digits}f} %"
