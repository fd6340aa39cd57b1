"""What may become of a model: the methods of `Booster` that give another one."""

from __future__ import annotations

from typing import Any, Self

from dboost.cluster.choice import client_for
from dboost.losses import Loss
from dboost.model import succession
from dboost.model.ensemble import Ensemble
from dboost.sources import open_table
from dboost.training.fit import available_threads
from dboost.training.origin import checked_decay, checked_name
from dboost.training.refresh import refresh


class Offspring:
    """A part of `Booster`."""

    ensemble: Ensemble
    _own_loss: Loss | None

    @property
    def sources(self) -> tuple[dict[str, Any], ...]:
        """One record per fit, in the order of their trees.

        ``label`` (the fit's `source_name`), ``rows``, ``first_iteration`` and ``last_iteration`` (from 1, both included; a
        source of no iterations ends before it begins), ``parameters``, and ``data_digest`` of schema and counts. Of fits that
        went on from a model also ``unexplained_loss`` (the model's loss on the new rows as a share of the best constant's;
        None where that predicts all of them) and ``steps``, what the new trees were grown with after damping.
        """
        return tuple({name: value for name, value in source.items() if name != "summary"} for source in self.ensemble.sources)

    @property
    def own_loss(self) -> Loss | None:
        """The loss of the user's own that came with the model, if one did."""
        return self._own_loss

    def _instead(self, ensemble: Ensemble) -> Self:
        """The same for another ensemble."""
        return type(self)(ensemble, loss=self._own_loss)  # type: ignore[call-arg]

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

    def refit_leaves(
        self,
        data: Any,
        target: Any,
        *,
        sample_weight: Any = None,
        offset: Any = None,
        decay: float = 0.0,
        source_name: str | None = None,
        client: Any = None,
        n_threads: int | None = None,
    ) -> Self:
        """The model with leaf values estimated anew from other data; the splits stay.

        An alternative to adding trees (``dboost.fit(…, start_from=…)``), where what matters is the same but how much it
        matters has changed. See `dboost.training.refresh`.

        Parameters
        ----------
        data, target, sample_weight, offset
            As in `dboost.fit`, with the model's columns. Levels that the model does not know count as missing.
        decay : float, 0 <= … < 1
            A leaf's value becomes ``decay · old + (1 - decay) · new``; leaves that no row reaches keep theirs.
        source_name : str, optional
            What the data are called in `sources`, where every source's record tells of them as "refreshed".
        client : distributed.Client, optional
            Where the rows are read and asked. Default: for Dask collections and paths the current client, if there is one; else
            this process. The values are the same.
        n_threads : int, optional

        Returns
        -------
        Booster

        Raises
        ------
        ParameterError
            For a model under monotonic constraints, or whose trees were added by another step than "leaf".
        DataError
            When columns or target do not fit the model.
        """
        decay, threads = checked_decay(decay), available_threads(n_threads)
        common: dict[str, Any] = {"decay": decay, "own": self._own_loss, "n_threads": threads}
        common["source_name"] = checked_name(source_name)
        roles: dict[str, Any] = {"sample_weight": sample_weight, "offset": offset}
        with client_for(data, client) as cluster:
            if cluster is not None:
                from dboost.cluster.refit import refresh_on_cluster

                return self._instead(refresh_on_cluster(cluster, self.ensemble, data, target, **roles, **common))
        with open_table(data, target, **roles, like=self.ensemble.features, n_threads=threads) as table:
            return self._instead(refresh(self.ensemble, table, **common))

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
