"""What may become of a model: the methods of `Booster` that give another one."""

from __future__ import annotations

from typing import Self

from dboost.model import succession
from dboost.model.ensemble import Ensemble


class Offspring:
    """A part of `Booster`."""

    ensemble: Ensemble

    def _instead(self, ensemble: Ensemble) -> Self:
        """The same for another ensemble."""
        raise NotImplementedError

    def truncate(self, n_iterations: int) -> Self:
        """The model as it was after its first iterations.

        Parameters
        ----------
        n_iterations : int
            From 0 (the baseline alone) to `n_iter_`.

        Returns
        -------
        Booster
            This one stays what it is.

        Raises
        ------
        ParameterError
            When the model never had so many iterations.
        """
        return self._instead(succession.truncate(self.ensemble, n_iterations))

    def drop_source(self, source: int | str) -> Self:
        """The model without the trees that one fit's data gave it.

        Later trees were fitted to what the dropped ones had left over, so the result is a model that never existed in
        between: judge it before it is used. The baseline (of the first data) and the levels of categories stay, and metrics
        of later iterations, which were measured with the dropped trees, are forgotten.

        Parameters
        ----------
        source : int or str
            Number in `sources` (negative: from the end), or the label given as ``source_name``.

        Returns
        -------
        Booster

        Raises
        ------
        ParameterError
            When there is no such source, the label is not unique, or the source is the only one.
        """
        return self._instead(succession.drop_source(self.ensemble, source))
