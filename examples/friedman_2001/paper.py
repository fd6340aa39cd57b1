"""Results of the paper, for comparison in the tables."""

from __future__ import annotations

#: Targets won and mean excess over the best contender, in percent; None where the paper reports no value.
OUTCOMES: dict[str, dict[str, tuple[float | None, float | None]]] = {
    "normal": {"LS": (73, 0.2), "LAD": (None, 7.4), "M": (27, 0.9)},
    "slash": {"LS": (None, 364.6), "LAD": (32, 4.1), "M": (68, 1.0)},
    "classes": {"LK_TreeBoost": (78, 0.6), "LogitBoost": (21, 3.5)},
    "classes-shrunk": {"LK_TreeBoost": (None, 2.3), "LogitBoost": (None, 0.5)},
    "leaves": {"2": (8, 23.2), "3": (2, 16.4), "6": (30, 2.4), "11": (31, 2.2), "21": (29, 3.7)},
}

#: Relative importance of x1 … x10 for the linear target (Table 2).
IMPORTANCE = (13.0, 22.2, 31.3, 40.3, 51.7, 62.1, 69.8, 80.0, 90.3, 100.0)

#: Demographic data: average absolute error over that of the best constant, by leaves.
LEAVES = (2, 3, 4, 6, 11, 21)
MARKETING = {
    "LS": (0.60, 0.60, 0.59, 0.59, 0.59, 0.59),
    "LAD": (0.63, 0.62, 0.59, 0.58, 0.57, 0.58),
    "M": (0.61, 0.59, 0.59, 0.59, 0.58, 0.58),
}
