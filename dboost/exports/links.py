"""What leads from a raw score to a prediction, in words that other formats know.

A loss *declares* the form of its inverse link (`Loss.response`): "identity", "exp", "sigmoid" of the raw score times a
factor, or "softmax". A declaration is not believed: it is compared with `Loss.inverse_link` on some scores, so that a loss of
the user's own with a link that no format knows is refused instead of being exported with the wrong one.
"""

from __future__ import annotations

import numpy as np

from dboost.errors import ParameterError
from dboost.losses import Loss


def response_of(loss: Loss, n_outputs: int, to: str) -> tuple[str, float]:
    """Form of the inverse link ("identity", "exp", "sigmoid", "softmax") and the factor that comes first.

    to : the format, for messages.

    Raises
    ------
    ParameterError
        When the loss's link is none of these.
    """
    if loss.response not in ("identity", "exp", "sigmoid", "softmax"):
        raise ParameterError(f"loss {loss.name!r} declares the response {loss.response!r}, which is no form of inverse link")
    scores = np.linspace(-3.0, 3.0, 25)
    if n_outputs > 1:
        scores = np.column_stack([scores * (k + 1) for k in range(n_outputs)])
    scaled = scores * loss.response_factor
    with np.errstate(all="ignore"):
        expected = {
            "identity": lambda: scaled,
            "exp": lambda: np.exp(scaled),
            "sigmoid": lambda: 1.0 / (1.0 + np.exp(-scaled)),
            "softmax": lambda: np.exp(scaled) / np.exp(scaled).sum(axis=-1, keepdims=True),
        }[loss.response]()
        found = np.asarray(loss.inverse_link(scores), np.float64)
    if found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-9, atol=1e-12):
        raise ParameterError(
            f"a model of loss {loss.name!r} cannot be exported to {to}: its inverse_link is not the {loss.response!r} that its "
            "class declares; a class may declare response = 'identity', 'exp' or 'sigmoid', other links are not carried"
        )
    return loss.response, loss.response_factor
