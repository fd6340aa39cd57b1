"""Diagram of one tree: the root on the left, one line for every leaf on the right.

Rows that satisfy the condition of a split go up. A leaf shows its value, as a number and as a bar from zero, and its number of
training rows; so a tree of thirty leaves stays legible.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dboost.errors import ParameterError
from dboost.inspection.plots import canvas
from dboost.inspection.plots.canvas import BLUE, FAINT, GREY, INK, VERMILION
from dboost.model.ensemble import Ensemble, Tree
from dboost.schema import Feature


def plot_tree(ensemble: Ensemble, i: int, ax: Any) -> Any:
    """Plot tree i of a model; `Booster.plot_tree` documents it."""
    ensemble = ensemble.expanded()
    n = len(ensemble.trees)
    if isinstance(i, bool) or not isinstance(i, int | np.integer) or not -n <= i < n:
        raise ParameterError(f"there is no tree {i!r}: the model has {n} trees")
    iteration, output = divmod(int(i) % n, ensemble.trees_per_iteration)
    class_text = f", {ensemble.outputs.axis} {ensemble.outputs.names[output]}" if ensemble.n_outputs > 1 else ""
    return _draw(ensemble.trees[int(i)], ensemble.features, f"Tree of iteration {iteration + 1}{class_text}", ax)


def _draw(tree: Tree, features: tuple[Feature, ...], title: str, ax: Any) -> Any:
    depth = tree.depths
    height = _heights(tree)
    deepest = max(1, int(depth.max()))
    with canvas.style():
        ax = canvas.axes_for(ax, width=max(canvas.WIDTH, 2.0 + 1.45 * deepest), height=0.7 + 0.27 * max(3, tree.n_leaves))
        for node in np.flatnonzero(tree.feature >= 0):
            for child in (tree.left[node], tree.right[node]):
                x = [depth[node], depth[node], deepest if tree.feature[child] < 0 else depth[child]]
                y = [height[node], height[child], height[child]]
                ax.plot(x, y, color=FAINT if tree.feature[child] < 0 else GREY, linewidth=1.0, zorder=1)
            ax.plot(depth[node], height[node], "o", color=BLUE, markersize=3.5, zorder=3)
            box = canvas.box(ax)
            canvas.note(ax, _condition(tree, int(node), features), (depth[node], height[node]), (5, 0), fontsize=7.5, bbox=box)
        leaves = np.flatnonzero(tree.feature < 0)
        largest = max(float(np.abs(tree.value[leaves]).max()), 1e-300)
        texts = canvas.numbers(tree.value[leaves].tolist())
        for leaf, text in zip(leaves, texts, strict=True):
            value = float(tree.value[leaf])
            start = deepest + 0.55
            reach, colour = 0.4 * value / largest, BLUE if value >= 0 else VERMILION
            ax.plot([start, start + reach], [height[leaf]] * 2, color=colour, linewidth=5, solid_capstyle="butt")
            n_rows = f"  ({int(tree.count[leaf]):,} rows)" if tree.count[0] else ""
            canvas.note(ax, f"{text}{n_rows}", (deepest + 1.0, height[leaf]), (4, 0), fontsize=7.5)
        ax.plot([deepest + 0.55] * 2, [-0.45, tree.n_leaves - 0.55], color=INK, linewidth=0.6)
        canvas.title(ax, canvas.plain(title))
        legend = "yes: up, no: down; bars: what the leaf adds to the raw score"
        canvas.note(ax, legend, (0, 0), (0, -4), xycoords="axes fraction", va="top", fontsize=7.5, color=GREY)
        ax.set(xlim=(-0.15, deepest + 2.1), ylim=(-0.7, max(3, tree.n_leaves) - 0.3))
        ax.set_axis_off()
    return ax


def _condition(tree: Tree, node: int, features: tuple[Feature, ...]) -> str:
    """The condition of a split as a question."""
    feature = features[tree.feature[node]]
    or_missing = "missing or " if tree.missing_left[node] else ""
    codes = tree.categories[node]
    name = canvas.short(feature.name, 16)
    if codes is None or feature.categories is None:
        threshold = float(tree.threshold[node])
        return (
            f"{name} present?"
            if np.isposinf(threshold) and not or_missing
            else f"{name} {or_missing}≤ {canvas.value(threshold)}?"
        )
    levels = [canvas.short(feature.categories[code], 10) for code in codes]
    first = ", ".join(levels[:2]) + (f" +{len(levels) - 2}" if len(levels) > 2 else "")
    return f"{name} {or_missing}in {first}?" if levels else f"{name} missing?"


def _heights(tree: Tree) -> np.ndarray:
    """Leaves one above the other, the leftmost on top; splits in the middle of their children."""
    heights = np.zeros(tree.n_nodes)
    is_leaf = tree.feature < 0
    heights[is_leaf] = tree.n_leaves - 1 - np.arange(tree.n_leaves)
    for node in np.flatnonzero(~is_leaf)[::-1]:  # children come after their parents
        heights[node] = (heights[tree.left[node]] + heights[tree.right[node]]) / 2
    return heights
