"""Diagram of one tree: the root on the left, one line for every leaf on the right.

A split has the name of its feature, and its two branches have the values that follow them. A leaf shows its value, as a bar
from zero and as a number, and its number of training rows; so a tree of thirty leaves stays legible.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dboost.errors import ParameterError
from dboost.inspection.plots import canvas
from dboost.inspection.plots.canvas import BLUE, FAINT, GREY, VERMILION
from dboost.model.ensemble import Ensemble, Tree
from dboost.schema import Feature
from dboost.session.reference_sample import summary_of

#: Inches of a level of splits and of a leaf; font size of the texts, and their width beside a level in points.
_LEVEL, _LEAF, _TEXT, _ROOM = 1.6, 0.3, 7.5, 100.0
#: Least room for the name of a category that is cut.
_LEAST = 40.0


def plot_tree(ensemble: Ensemble, i: int, ax: Any) -> Any:
    """Plot tree i of a model; `Booster.plot_tree` documents it."""
    may_miss = _with_missing(ensemble)
    ensemble = ensemble.expanded()
    n = len(ensemble.trees)
    if isinstance(i, bool) or not isinstance(i, int | np.integer) or not -n <= i < n:
        raise ParameterError(f"there is no tree {i!r}: the model has {n} trees")
    iteration, output = divmod(int(i) % n, ensemble.trees_per_iteration)
    class_text = f", {ensemble.outputs.axis} {ensemble.outputs.names[output]}" if ensemble.n_outputs > 1 else ""
    return _draw(ensemble.trees[int(i)], ensemble.features, may_miss, f"Tree of iteration {iteration + 1}{class_text}", ax)


def _with_missing(ensemble: Ensemble) -> list[bool]:
    """Return for each feature whether training rows missed it, as far as the summaries of its data tell."""
    summaries = [summary_of(ensemble, source) for source in range(len(ensemble.sources))]
    if not summaries or None in summaries:
        return [True] * len(ensemble.features)
    by_feature = zip(*(summary.features for summary in summaries if summary is not None), strict=False)
    known = [any(distribution.missing for distribution in distributions) for distributions in by_feature]
    return known + [True] * (len(ensemble.features) - len(known))


def _draw(tree: Tree, features: tuple[Feature, ...], may_miss: list[bool], title: str, ax: Any) -> Any:
    depth, height = tree.depths, _heights(tree)
    deepest = max(1, int(depth.max()))
    with canvas.style():
        ax = canvas.axes_for(ax, width=2.9 + _LEVEL * deepest, height=0.7 + _LEAF * max(3, tree.n_leaves))
        for node in np.flatnonzero(tree.feature >= 0).tolist():
            feature = features[tree.feature[node]]
            answers = _answers(tree, node, feature, may_miss[tree.feature[node]])
            for child, answer, side in zip((tree.left[node], tree.right[node]), answers, (1, -1), strict=True):
                is_leaf = tree.feature[child] < 0
                x = [depth[node], depth[node], deepest + 0.05 if is_leaf else depth[child]]
                y = [height[node], height[child], height[child]]
                ax.plot(x, y, color=FAINT if is_leaf else GREY, linewidth=1.0, zorder=1)
                style = {"fontsize": _TEXT, "color": GREY, "va": "bottom" if side > 0 else "top"}
                canvas.note(ax, canvas.plain(answer), (depth[node], height[child]), (4, 1.2 * side), **style)
            ax.plot(depth[node], height[node], "o", color=BLUE, markersize=3.5, zorder=3)
            name = canvas.fitting(feature.name, _ROOM, _TEXT, "bold")
            canvas.note(ax, name, (depth[node], height[node]), (5, 0), fontsize=_TEXT, weight="bold")
        leaves = np.flatnonzero(tree.feature < 0)
        largest = max(float(np.abs(tree.value[leaves]).max()), 1e-300)
        zero = deepest + 0.55
        texts = canvas.numbers(tree.value[leaves].tolist())
        for leaf, text in zip(leaves, texts, strict=True):
            value = float(tree.value[leaf])
            reach, colour = 0.42 * value / largest, VERMILION if value >= 0 else BLUE
            ax.plot([zero, zero + reach], [height[leaf]] * 2, color=colour, linewidth=5, solid_capstyle="butt")
            canvas.note(ax, text, (deepest + 1.42, height[leaf]), (0, 0), fontsize=_TEXT, ha="right")
            if tree.count[0]:
                n_rows = f"{int(tree.count[leaf]):,} rows"
                canvas.note(ax, n_rows, (deepest + 1.95, height[leaf]), (0, 0), fontsize=_TEXT, ha="right", color=GREY)
        ax.plot([zero] * 2, [-0.45, tree.n_leaves - 0.55], color=canvas.ink(ax), linewidth=0.6)
        canvas.title(ax, canvas.plain(title))
        legend = "bars: what the leaf adds to the raw score"
        canvas.note(ax, legend, (1, 0), (0, -4), xycoords="axes fraction", ha="right", va="top", fontsize=_TEXT, color=GREY)
        ax.set(xlim=(-0.1, deepest + 2.0), ylim=(-0.7, max(3, tree.n_leaves) - 0.3))
        ax.set_axis_off()
    return ax


def _answers(tree: Tree, node: int, feature: Feature, may_miss: bool) -> tuple[str, str]:
    """Return the values that go up and those that go down. may_miss : whether the feature was missing in training rows."""
    goes_up, codes = bool(tree.missing_left[node]), tree.categories[node]
    if codes is None or feature.categories is None:
        threshold = float(tree.threshold[node])
        if np.isposinf(threshold):
            return ("any value", "") if goes_up else ("present", "missing")
        up, down = f"≤ {canvas.value(threshold)}", f"> {canvas.value(threshold)}"
    elif not len(codes):
        return "missing", "present"
    else:
        others = np.setdiff1d(np.arange(len(feature.categories)), codes)
        names_down = len(others) <= 2 or len(others) < len(codes)
        names_up = not names_down or len(codes) <= 2
        up = _levels(feature, codes, with_missing=may_miss and goes_up) if names_up else "others"
        down = _levels(feature, others, with_missing=may_miss and not goes_up) if names_down else "others"
    if not may_miss:
        return up, down
    return (f"{up}{_MISSING}", down) if goes_up else (up, f"{down}{_MISSING}")


_MISSING = " or missing"


def _levels(feature: Feature, codes: np.ndarray, *, with_missing: bool) -> str:
    """Return the names of one or two categories, cut to the room beside a level; of more the first one and the number of the
    others.

    with_missing : whether missing values are named after them.
    """
    names = [str(feature.categories[code]) for code in codes.tolist()] if feature.categories else []
    n = len(names) if len(names) <= 2 else 1
    rest = f" and {len(names) - 1} more" if n < len(names) else ""
    room = _ROOM - canvas.text_width(rest + (_MISSING if with_missing else ""), _TEXT)
    if n < len(names) and canvas.text_width(names[0], _TEXT) > room and room < _LEAST:
        return f"{len(names)} categories"
    if canvas.text_width(", ".join(names[:n]), _TEXT) > room:
        room = (room - 4.0 * (n - 1)) / n  # of each name, beside a comma
        names = [canvas.unescaped(canvas.fitting(name, room, _TEXT)) for name in names[:n]]
    return ", ".join(names[:n]) + rest


def _heights(tree: Tree) -> np.ndarray:
    """Leaves one above the other, the leftmost on top; splits in the middle of their children."""
    heights = np.zeros(tree.n_nodes)
    is_leaf = tree.feature < 0
    heights[is_leaf] = tree.n_leaves - 1 - np.arange(tree.n_leaves)
    for node in np.flatnonzero(~is_leaf)[::-1]:  # children come after their parents
        heights[node] = (heights[tree.left[node]] + heights[tree.right[node]]) / 2
    return heights
