"""What an estimator tells scikit-learn's tools of the targets that its loss takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sklearn.utils import ClassifierTags, RegressorTags, Tags

from dboost.errors import DataError, ParameterError

if TYPE_CHECKING:
    from dboost.losses import BaseLoss


def add_tags_of_numbers(tags: Tags, estimator: Any) -> None:
    """Set the tags of targets and scores of a regressor by its loss."""
    losses = _losses(estimator)
    needs_several = isinstance(estimator.loss, list | tuple) or any(len(loss.targets.columns) > 1 for loss in losses)
    is_single = all(loss.n_outputs == 1 for loss in losses)
    tags.target_tags.multi_output = needs_several or is_single
    tags.target_tags.single_output = not needs_several
    tags.target_tags.positive_only = any(loss.targets.excludes_negative for loss in losses)
    # R² compares predictions with means, so it is low for the quantiles and expectiles of other levels than one half.
    is_low = any(leaves.level != 0.5 for loss in losses for leaves in loss.leaves)
    tags.regressor_tags = RegressorTags(poor_score=is_low)


def add_tags_of_classes(tags: Tags, estimator: Any) -> None:
    """Set the tags of a classifier by its loss."""
    losses = _losses(estimator)
    tags.classifier_tags = ClassifierTags(
        multi_class=all(map(_takes_many_classes, losses)), multi_label=all(loss.n_outputs == 1 for loss in losses)
    )


def _losses(estimator: Any) -> list[BaseLoss]:
    """Return the loss of an estimator, or those of its targets; none if they are invalid, which `fit` says."""
    from dboost.losses import as_loss, by_name  # imports compiled kernels, which constructing an estimator does not need

    try:
        loss = estimator._loss()
        each = loss if isinstance(loss, list | tuple) else [loss]
        return [by_name(loss, **vars(estimator)) if isinstance(loss, str) else as_loss(loss) for loss in each]
    except (ParameterError, TypeError):
        return []


def _takes_many_classes(loss: BaseLoss) -> bool:
    try:
        loss.for_classes(3)
    except DataError:
        return False
    return True
