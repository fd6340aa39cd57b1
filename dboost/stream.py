"""Models that follow a stream: chunk after chunk of data, each a continuation of the model before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dboost.api import fit
from dboost.booster import Booster
from dboost.errors import DataError, InputTypeError
from dboost.training.origin import check_options

#: What only a fit with `start_from` takes, with its defaults.
_CONTINUING = {"continue_bins": "new", "continue_steps": "damped"}


def continue_on(chunks: Iterable[Any], target: Any = None, *, start_from: Any = None, **keywords: Any) -> Iterator[Booster]:
    """Train on a sequence of chunks, each as it comes; a generator of models.

    Parameters
    ----------
    chunks : iterable
        Tables of any kind that `dboost.fit` takes; or pairs of a label and a table, which becomes the ``source_name``; or
        pairs (X, y). One chunk is asked for at a time, when the model of those before has been handed out.
    target : str, optional
        The target's column, unless chunks are pairs (X, y).
    start_from : Booster, path or URL, optional
        The model to begin with. Default: the first chunk trains one.
    **keywords
        As in `dboost.fit`, for every chunk; `max_iter` is what each of them adds.

    Yields
    ------
    Booster
        The model after each chunk; ``*_, last = continue_on(…)`` keeps the last one only.

    Raises
    ------
    DataError
        With the number of the chunk that cannot be used; the models before are good.
    InputTypeError
        When nobody says what the target is.
    """
    model = start_from
    for number, chunk in enumerate(chunks, 1):
        data, of_chunk, more = chunk, target, {}
        if isinstance(chunk, tuple) and len(chunk) == 2:
            if isinstance(chunk[0], str):
                data, more = chunk[1], {"source_name": chunk[0]}
            else:
                data, of_chunk = chunk
        if of_chunk is None:
            raise InputTypeError("continue_on wants a target, or chunks that are pairs (X, y)")
        given = keywords
        if model is None:  # how to continue matters from the second chunk on
            check_options(*(keywords.get(name, default) for name, default in _CONTINUING.items()))
            given = {name: value for name, value in keywords.items() if name not in _CONTINUING}
        try:
            model = fit(data, of_chunk, start_from=model, **given | more)
        except DataError as error:
            raise DataError(f"chunk {number}: {error}") from error
        yield model
