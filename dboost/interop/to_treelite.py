"""Export to a treelite model with float64 thresholds and leaves, which reaches the same leaves and sums for float64 rows.

Left means "less than or equal" in treelite too. A list of categories may lead to either child: it is given for the child
without missing values, so that unknown levels follow the missing ones. The baseline is treelite's base score.

treelite's own reader of XGBoost's JSON makes float32 models: of 50,000 rows some reach another leaf (raw scores differ by up to
0.05). It also refuses files with the categories of columns, which XGBoost's own predictions from frames need (treelite 4.8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dboost.errors import MissingExtraError
from dboost.interop.export import away_from_missing, response_of
from dboost.losses import BaseLoss
from dboost.model.ensemble import Ensemble, Tree
from dboost.schema import Feature

if TYPE_CHECKING:
    import treelite
    from treelite.model_builder import ModelBuilder

_POSTPROCESSOR = {"identity": "identity", "exp": "exponential", "sigmoid": "sigmoid", "softmax": "softmax"}


def to_treelite(ensemble: Ensemble, loss: BaseLoss) -> treelite.Model:
    """Return the model as a treelite model.

    Raises
    ------
    DBoostError
        If treelite is not installed.
    ParameterError
        If the loss has a link that treelite does not have.
    """
    try:
        from treelite.model_builder import Metadata, ModelBuilder, PostProcessorFunc, TreeAnnotation
    except ImportError as error:
        raise MissingExtraError("treelite is not installed; it comes with the extra: pip install 'dboost[export]'") from error
    response, factor = response_of(loss, ensemble.n_outputs, "treelite")
    ensemble = ensemble.summed().expanded()
    n_outputs, n_trees = ensemble.n_outputs, max(len(ensemble.trees), ensemble.n_outputs)
    task = {"softmax": "kMultiClf", "sigmoid": "kBinaryClf"}.get(response, "kRegressor")
    builder = ModelBuilder(
        threshold_type="float64",
        leaf_output_type="float64",
        metadata=Metadata(
            num_feature=len(ensemble.features),
            task_type=task,
            average_tree_output=False,
            num_target=1,
            num_class=[n_outputs],
            leaf_vector_shape=(1, 1),
        ),
        tree_annotation=TreeAnnotation(
            num_tree=n_trees, target_id=[0] * n_trees, class_id=[ensemble.outputs_of(i).start for i in range(n_trees)]
        ),
        postprocessor=PostProcessorFunc(name=_POSTPROCESSOR[response], sigmoid_alpha=factor if response == "sigmoid" else 1.0),
        base_scores=ensemble.baseline.tolist(),
    )
    for tree in ensemble.trees:
        builder.start_tree()
        _add_nodes(builder, tree, ensemble.features)
        builder.end_tree()
    for _ in range(n_trees - len(ensemble.trees)):  # without trees: one leaf of value 0 per output
        builder.start_tree()
        builder.start_node(0)
        builder.leaf(0.0)
        builder.end_node()
        builder.end_tree()
    return builder.commit()


def _add_nodes(builder: ModelBuilder, tree: Tree, features: tuple[Feature, ...]) -> None:
    for node in range(tree.n_nodes):
        builder.start_node(node)
        column = int(tree.feature[node])
        missing_left = bool(tree.missing_left[node])
        children = {"left_child_key": int(tree.left[node]), "right_child_key": int(tree.right[node])}
        if column < 0:
            builder.leaf(float(tree.value[node]))
        elif features[column].is_categorical:
            members = away_from_missing(tree, node, features[column])
            builder.categorical_test(
                column,
                default_left=missing_left,
                category_list=members.tolist(),
                category_list_right_child=missing_left,
                **children,
            )
        else:
            builder.numerical_test(column, float(tree.threshold[node]), default_left=missing_left, opname="<=", **children)
        if column >= 0:
            builder.gain(float(tree.gain[node]))
        builder.data_count(int(tree.count[node]))
        builder.sum_hess(float(tree.cover[node]))
        builder.end_node()
