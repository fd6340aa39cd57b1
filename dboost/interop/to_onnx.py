"""An ONNX graph: one float32 input [rows, features]; the last output is the prediction, or the probabilities.

The rows are cast to float64 and evaluated by one TreeEnsembleRegressor with float64 thresholds and leaves (ai.onnx.ml 3), so
that sums equal those of the `Booster` before the rounding to float32 at the end; then follows the inverse link. Thresholds are
rounded as in `dboost.interop.export`: a float32 row represents the float64 row that it was rounded from. Classifiers have two
outputs, ``label`` and ``probabilities`` [rows, classes], regressors one, ``prediction`` [rows].

**Sets of categories** have no node type in that operator, so a categorical split becomes a chain of numeric nodes over the runs
of consecutive numbers on the side without missing values: "equal?" for a run of one number, "below its start?" and then "up to
its end?" for others. Each true branch leads to one of the two children, the last false branch to the child of missing values,
which thus also receives unknown numbers; every test of a missing value is false. The nodes of a chain share the children, as
in converters of other libraries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from dboost.errors import MissingExtraError, ParameterError
from dboost.interop.export import away_from_missing, nearest_float32, response_of
from dboost.losses import BaseLoss
from dboost.model.ensemble import Ensemble, Tree
from dboost.schema import Feature
from dboost.version import __version__

if TYPE_CHECKING:
    import onnx


def to_onnx(ensemble: Ensemble, loss: BaseLoss) -> onnx.ModelProto:
    """Return the model as an ONNX model.

    Raises
    ------
    DBoostError
        If onnx is not installed.
    ParameterError
        If the loss has a link that the format does not have.
    """
    try:
        from onnx import TensorProto, checker, helper
    except ImportError as error:
        raise MissingExtraError("onnx is not installed; it comes with the extra: pip install 'dboost[export]'") from error
    response, factor = response_of(loss, ensemble.n_outputs, "ONNX")
    ensemble = ensemble.summed().expanded()
    nodes = [helper.make_node("Cast", ["features"], ["rows"], to=TensorProto.DOUBLE), _trees(helper, ensemble)]
    constants = []
    score = "sums"
    if factor != 1.0:
        constants.append(helper.make_tensor("factor", TensorProto.FLOAT, [1], [factor]))
        nodes.append(helper.make_node("Mul", ["sums", "factor"], ["scaled"]))
        score = "scaled"
    if ensemble.classes is not None:
        label_type = _add_classes(helper, nodes, constants, ensemble, response, score)
        outputs = [
            helper.make_tensor_value_info("label", label_type, ["rows"]),
            helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["rows", len(ensemble.classes)]),
        ]
    else:
        columns = _add_numbers(helper, nodes, constants, ensemble, response, score)
        outputs = [helper.make_tensor_value_info("prediction", TensorProto.FLOAT, ["rows", *columns])]
    inputs = [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", len(ensemble.features)])]
    model = helper.make_model(
        helper.make_graph(nodes, "dboost", inputs, outputs, constants),
        producer_name="dboost",
        producer_version=__version__,
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)],
        ir_version=8,
    )
    checker.check_model(model)
    return model


def _trees(helper: Any, ensemble: Ensemble) -> Any:
    """Return the node that adds up the values of the trees and the baseline."""
    tables = _Tables(helper)
    for i, tree in enumerate(ensemble.trees):
        tables.add(tree, i, ensemble.outputs_of(i).start, ensemble.features)
    for i in range(len(ensemble.trees), ensemble.n_outputs):  # without trees: one leaf of value 0 per output
        tables.add_leaf(i, i)
    return helper.make_node(
        "TreeEnsembleRegressor",
        ["rows"],
        ["sums"],
        domain="ai.onnx.ml",
        n_targets=ensemble.n_outputs,
        post_transform="NONE",
        aggregate_function="SUM",
        base_values_as_tensor=_doubles(helper, ensemble.baseline),
        **tables.attributes(),
    )


def _add_numbers(
    helper: Any, nodes: list[Any], constants: list[Any], ensemble: Ensemble, response: str, score: str
) -> list[int]:
    """Add nodes from scores to predictions; return the number of their columns, nothing if they have none."""
    from onnx import TensorProto

    if response != "identity":
        nodes.append(helper.make_node({"exp": "Exp", "sigmoid": "Sigmoid"}[response], [score], ["linked"]))
        score = "linked"
    columns = [ensemble.n_outputs] if ensemble.n_outputs > 1 else []
    shape = [-1, *columns]
    constants.append(helper.make_tensor("flat", TensorProto.INT64, [len(shape)], shape))
    nodes.append(helper.make_node("Reshape", [score, "flat"], ["prediction"]))
    return columns


def _add_classes(helper: Any, nodes: list[Any], constants: list[Any], ensemble: Ensemble, response: str, score: str) -> int:
    """Add nodes from scores to probabilities and labels; return the type of the labels."""
    from onnx import TensorProto

    if response == "softmax":
        nodes.append(helper.make_node("Softmax", [score], ["probabilities"], axis=1))
    elif ensemble.n_outputs > 1:
        nodes.append(helper.make_node("Identity", [score], ["probabilities"]))
    else:
        constants.append(helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0]))
        nodes += [
            helper.make_node("Sigmoid" if response == "sigmoid" else "Identity", [score], ["second"]),
            helper.make_node("Sub", ["one", "second"], ["first"]),
            helper.make_node("Concat", ["first", "second"], ["probabilities"], axis=1),
        ]
    classes: list[Any] = list(ensemble.classes or ())
    if all(isinstance(level, bool) for level in classes):
        label_type = TensorProto.BOOL
    elif all(isinstance(level, int) for level in classes):
        if max(classes) >= 2**63:
            raise ParameterError(f"class {max(classes)} exceeds the integers of 64 bits that ONNX has for labels")
        label_type = TensorProto.INT64
    elif all(isinstance(level, int | float) for level in classes):
        label_type, classes = TensorProto.DOUBLE, [float(level) for level in classes]
    else:
        label_type, classes = TensorProto.STRING, [str(level).encode() for level in classes]
    constants.append(helper.make_tensor("classes", label_type, [len(classes)], classes))
    nodes += [
        helper.make_node("ArgMax", ["probabilities"], ["most_probable"], axis=1, keepdims=0),
        helper.make_node("Gather", ["classes", "most_probable"], ["label"]),
    ]
    return label_type


def _doubles(helper: Any, values: Any) -> Any:
    values = np.asarray(values, np.float64)
    return helper.make_tensor("", helper.np_dtype_to_tensor_dtype(values.dtype), [len(values)], values.tolist())


class _Tables:
    """The nodes of all trees, in the columns of a TreeEnsembleRegressor.

    The false branch of a node in a chain leads to the next node of the chain.
    """

    def __init__(self, helper: Any) -> None:
        self._helper = helper
        self._rows: list[tuple[int, int, int, str, float, int, int, int]] = []
        self._leaves: list[tuple[int, int, int, float]] = []

    def add_leaf(self, tree: int, output: int, node: int = 0, value: float = 0.0) -> None:
        self._rows.append((tree, node, 0, "LEAF", 0.0, 0, 0, 0))
        self._leaves.append((tree, node, output, value))

    def add(self, tree: Tree, number: int, output: int, features: tuple[Feature, ...]) -> None:
        """Add a tree; further nodes of chains are numbered after its own nodes."""
        threshold = nearest_float32(tree.threshold).astype(np.float64)
        n_nodes = tree.n_nodes
        for node in range(tree.n_nodes):
            column = int(tree.feature[node])
            left, right = int(tree.left[node]), int(tree.right[node])
            if column < 0:
                self.add_leaf(number, output, node, float(tree.value[node]))
            elif not features[column].is_categorical:
                row = (number, node, column, "BRANCH_LEQ", float(threshold[node]), left, right, int(tree.missing_left[node]))
                self._rows.append(row)
            else:
                members = away_from_missing(tree, node, features[column])
                with_missing, away = (left, right) if tree.missing_left[node] else (right, left)
                tests = list(_membership_tests(members))
                at = node
                for i, (mode, value, is_away) in enumerate(tests):
                    yes = away if is_away else with_missing
                    no = with_missing if i == len(tests) - 1 else n_nodes + i
                    self._rows.append((number, at, column, mode, value, yes, no, 0))
                    at = no
                n_nodes += len(tests) - 1

    def attributes(self) -> dict[str, Any]:
        trees, nodes, columns, modes, values, yes, no, missing = zip(*self._rows, strict=True)
        leaf_trees, leaf_nodes, outputs, weights = zip(*self._leaves, strict=True)
        return {
            "nodes_treeids": list(trees),
            "nodes_nodeids": list(nodes),
            "nodes_featureids": list(columns),
            "nodes_modes": list(modes),
            "nodes_values_as_tensor": _doubles(self._helper, values),
            "nodes_truenodeids": list(yes),
            "nodes_falsenodeids": list(no),
            "nodes_missing_value_tracks_true": list(missing),
            "target_treeids": list(leaf_trees),
            "target_nodeids": list(leaf_nodes),
            "target_ids": list(outputs),
            "target_weights_as_tensor": _doubles(self._helper, weights),
        }


def _membership_tests(members: np.ndarray) -> Iterator[tuple[str, float, bool]]:
    """Yield the tests of a chain that decide membership: mode, value, and whether true means that a number is a member."""
    if not len(members):
        yield "BRANCH_EQ", -1.0, True  # no number is -1
        return
    starts = np.flatnonzero(np.diff(members, prepend=-2) != 1)
    for first, last in zip(members[starts], members[np.append(starts[1:], len(members)) - 1], strict=True):
        if first == last:
            yield "BRANCH_EQ", float(first), True
        else:
            yield "BRANCH_LEQ", float(first) - 0.5, False
            yield "BRANCH_LEQ", float(last), True
