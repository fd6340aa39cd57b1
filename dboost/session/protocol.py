"""The typed protocols between training and the places that hold rows.

`Engine` is what the boosting loop calls: a session's rows in this process, or all workers of a cluster. `Session` is what one
process does for a fit. A transport calls it directly in this process (`session.transport.LocalTable`) or sends the call to a
worker (`distributed.partitioned_table`); the name of the method is taken from this protocol, so mypy checks both ends.

What a session is told before it builds shards: frozen records, equal for all sessions of a fit.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from dboost.data.binning import Binning
from dboost.kernels.histograms import BinLayout
from dboost.metrics.metric import LossMagnitude
from dboost.session.memory_budget import Budget
from dboost.session.target import Target
from dboost.session.warm_start import WarmStart
from dboost.shards.apply_trees import TreeDelta
from dboost.shards.shard_spec import ShardSpec
from dboost.trees.tree_task import GradientStats, GrownTree, TreeTask

if TYPE_CHECKING:
    from dboost.losses import Loss
    from dboost.metrics.metric import LossMagnitude
    from dboost.model.ensemble import Ensemble
    from dboost.schema import Feature
    from dboost.session.partition_loader import Numbered, PartitionStats
    from dboost.session.row_selection import DigitRequest, RowAssignment
    from dboost.session.target import Target
    from dboost.session.warm_start import WarmStart
    from dboost.trees.grower import RoundHistograms, RoundRequest
    from dboost.trees.split_finder import BestSplits


@dataclass(frozen=True, eq=False)
class BuildSpec:
    """How a session turns its rows into shards and evaluation sets. The same record for all sessions."""

    shard: ShardSpec
    binning: Binning
    target: Target  # loss and classes; holds no rows
    baseline: np.ndarray  # float64[n_outputs]
    warm_start: WarmStart  # the model whose trees the scores begin with
    magnitude: float  # about how large the loss of a row can be, see `training.initial_score.TargetStats`
    spread: float  # about how large the error of a prediction can be
    #: Global id of each partition's first row among all rows of positive weight.
    starts: dict[int, int]
    budget: Budget | None  # what the fit may add to the memory of each process
    n_bites: int | None  # number of arcbites (or of their parts), None without arcbites
    n_together: int  # how many parts form an arcbite
    seed: int  # of the division into arcbites
    #: Whether rows may go to files without a `memory_limit`: not where trees propose their own bins.
    may_stream: bool

    @property
    def layout(self) -> BinLayout:
        return self.shard.layout

    def loss_magnitude(self, max_weight: float, n_rows: int) -> LossMagnitude:
        """What metrics need to know of `n_rows` rows for their exact sums."""
        return LossMagnitude(self.magnitude, self.spread, max_weight, n_rows)

    def are_of(self, rows: np.ndarray, partitions: Sequence[int]) -> np.ndarray:
        """Which rows (int64[n], global ids) belong to these partitions: bool[n]."""
        numbers = np.array(sorted(self.starts), np.int64)
        starts = np.array([self.starts[number] for number in numbers.tolist()], np.int64)
        # Several partitions start at the same id if some are empty; the last of them holds the row.
        return np.isin(numbers[np.searchsorted(starts, rows, "right") - 1], np.array(partitions, np.int64))


@dataclass(frozen=True)
class BiteVisit:
    """A visit to an arcbite."""

    number: int
    bite: tuple[int, ...]  # the parts that the bite consists of
    n_kept: int  # iterations of this fit that the model had when the visit began


@dataclass(frozen=True, eq=False)
class ReplayState:
    """What shards that are built late have missed."""

    applied: int = -1  # number of the last call of `advance`, from 0; -1 before the first
    iterations: tuple[tuple[TreeDelta, ...], ...] = ()  # complete ones
    pending: tuple[TreeDelta, ...] = ()  # trees of the current iteration, whose values are not in the scores yet
    terms: tuple = ()  # the loss's record for kernels at present
    turn: BiteVisit | None = None  # the arcbite that is trained on


Statistic = TypeVar("Statistic")


class Engine(Protocol):
    """Holds the training rows, wherever they lie."""

    @property
    def n_rows(self) -> int:
        """Rows of positive weight."""

    def advance(self, values: np.ndarray, terms: tuple | None = None) -> GradientStats:
        """Add the leaf values of the last tree of each output to the scores; then gradients, Hessians and the loss.

        values : float64[n_outputs, n_leaves], rows of trees with fewer leaves filled up.
        terms : the loss's record from now on, where it is not the one before (None).
        """

    def ask(self, function: Callable[..., Statistic], *arguments: Any) -> list[Statistic]:
        """What ``function(shard, first, last, *arguments)`` says of ranges of rows that together are all training rows.

        The function is one of a module, so that it can be sent to where the rows are, and changes nothing: when a worker is
        lost, all are asked again. How the rows are divided is the engine's affair: what follows from the answers must not
        depend on it, so they are merged by sums of integers, minima or maxima.
        """

    def grow(self, task: TreeTask) -> GrownTree:
        """Grow a tree from the present gradients and Hessians of one output."""

    def report(self) -> dict[str, float]:
        """What this engine has to say of the time since it was last asked, for the history; not part of the model."""

    def close(self) -> None:
        """Let go of threads and buffers."""


class BiteEngine(Engine, Protocol):
    """Holds the training rows divided into arcbites (see `shards.arcbite_rows`); `n_rows` counts all of them."""

    def visit(self, bite: Sequence[int], iterations: Sequence[Sequence[TreeDelta]]) -> None:
        """Train on the rows of this bite from now on. Comes before everything else.

        bite : the parts that it is made of.
        iterations : those of the model as it is kept, with which the bite's scores begin.
        """


class SessionRef(NamedTuple):
    """Names what one worker process holds of one fit.

    An address is not enough: a worker that is restarted at the same address holds nothing, and has another session. Every call
    names the session that it is meant for, and a worker answers `UNKNOWN` when it has another one.
    """

    worker: str
    session: str


def session_refs(pairs: Sequence[Sequence[str]]) -> list[SessionRef]:
    """Sessions from what msgpack makes of them."""
    return [SessionRef(*pair) for pair in pairs]


class MissingPartitions(Exception):
    """A call speaks of a batch, or of partitions of it, that this session does not hold."""


@dataclass(frozen=True)
class FeatureOwner:
    """A session that searches features first…last-1."""

    ref: SessionRef
    first: int
    last: int

    def buckets(self, layout: BinLayout) -> slice:
        return slice(int(layout.offset[self.first]), int(layout.offset[self.last]))


def pack_round(message: Any) -> bytes:
    """Questions and answers, which hold nothing of the user's: a fit has thousands, and Dask's way looks through each."""
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def unpack(message: bytes) -> Any:
    return pickle.loads(message)


@dataclass(frozen=True, eq=False)
class RefitOrder:
    """What a session needs to estimate leaf values anew: the model, the loss with what it knows of the rows, its exact unit."""

    model: Ensemble
    loss: Loss
    loss_unit: float


@dataclass(frozen=True, eq=False)
class RefitStep:
    """One call of `Session.refit_advance`: the leaf values of an iteration, and the loss's record from then on."""

    iteration: int
    values: np.ndarray  # float64[n_outputs, n_leaves]
    terms: tuple


class Session(Protocol):
    """What one process does for one fit. Every method may be called again after a failure: it repeats its answer.

    A *batch* is a table, or the part of one that a session has read in one go.
    """

    # Tables before they are shards.

    def attach(self, batch: str, role: str, values: dict[int, Any], /) -> None:
        """Store target, weight or offset of partitions, which the user gave for all rows at once."""

    def survey(self, batch: str, numbers: Sequence[int], /) -> PartitionStats:
        """Statistics of the partitions of a batch."""

    def set_features(self, batch: str, features: tuple[Feature, ...], named: bool, /) -> None:
        """Turn a batch into a table with these features."""

    def encode_target(self, batch: str, target: Target, /) -> None:
        """Encode the target in the terms of the loss."""

    def class_counts(self, batch: str, numbered: Numbered, n_classes: int | None, /) -> np.ndarray:
        """Number of rows of positive weight of each class."""

    def digit_counts(self, batch: str, numbered: Numbered, n_classes: int | None, digits: DigitRequest, /) -> np.ndarray:
        """Counts of the values of a digit of the rows' hashes."""

    def assign_rows(self, batch: str, numbered: Numbered, n_classes: int | None, assignment: RowAssignment, /) -> None:
        """Set the weights of rows for training, and note which rows are held out or watched."""

    def trained_rows(self, batch: str, /) -> tuple[dict[int, int], dict[str, tuple[int, float]], bool]:
        """Rows of each partition to train on; number and largest weight of chosen rows by set; whether all weights are 1."""

    def compute_start_scores(self, batch: str, warm_start: WarmStart, /) -> None:
        """Compute the raw scores that an earlier model gives the rows."""

    def map_rows(self, batch: str, function: Callable[..., Any], arguments: tuple[Any, ...], /) -> list[Any]:
        """``function(y, weight, offset, *arguments)`` of parts of the rows of positive weight."""

    def distinct(self, batch: str, /) -> list[np.ndarray]:
        """The distinct values of each numeric column."""

    def sample(
        self, batch: str, starts: dict[int, int], n_rows: int, seed: int, columns: tuple[int, int], /
    ) -> dict[int, tuple[list[np.ndarray], np.ndarray | None]]:
        """Sampled values of a range of numeric columns, and weights, by partition."""

    def portray(
        self, batch: str, starts: dict[int, int], n_rows: int, seed: int, /
    ) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Values and targets of the rows of the reference sample, by partition."""

    # Shards and evaluation sets.

    def build(self, batch: str, spec: BuildSpec, past: ReplayState, /) -> None:
        """Turn a table into shards that have seen the trees so far."""

    def in_files(self, batch: str, /) -> int:
        """How many rows of a batch are in files."""

    def hold_out(self, batch: str, name: str, spec: BuildSpec, size: LossMagnitude, with_block: bool, /) -> None:
        """Turn a table into a part of an evaluation set."""

    def hold_out_chosen(self, batch: str, name: str, spec: BuildSpec, size: LossMagnitude, with_block: bool, /) -> None:
        """Turn the chosen rows of a training table into a part of an evaluation set."""

    def judged_in_files(self, batch: str, /) -> int:
        """How many rows of evaluation sets are in files."""

    def keep(self, batch: str, numbers: Sequence[int], /) -> None:
        """Drop the rows of all other partitions of a batch."""

    # Training.

    def visit(self, turn: BiteVisit, first: int, iterations: Sequence[Sequence[TreeDelta]], applied: int, /) -> bool:
        """Train on one arcbite from now on; False where iterations before number `first` are missing here."""

    def advance(self, iteration: int, values: np.ndarray, terms: tuple, /) -> tuple[GradientStats | None, float, int, int]:
        """Add leaf values to the scores; gradient statistics, seconds, bytes read, rows trained on."""

    def answer(self, task: TreeTask | None, question: RoundRequest, /) -> tuple[RoundHistograms | None, int, float]:
        """The histograms of a round (of a new tree, with a task), the rows trained on, and the seconds."""

    def answer_in_slices(
        self, task: TreeTask | None, question: RoundRequest, owners: Sequence[FeatureOwner], /
    ) -> tuple[RoundHistograms | None, dict[SessionRef, bytes], int, float]:
        """The same, with the histograms cut into a slice for each feature owner."""

    def search_slices(self, here: SessionRef, arguments: bytes, parts: Sequence[bytes], /) -> tuple[BestSplits, float]:
        """Merge the slices of a feature range and find the best splits."""

    def ask(self, function: Callable[..., Any], arguments: tuple[Any, ...], /) -> list[Any]:
        """``function(shard, first, last, *arguments)`` of every shard."""

    def judge(
        self, first: int, trees: Sequence[TreeDelta], metrics: dict[str, list[str]], mark: int, n_cuts: int, /
    ) -> dict[str, tuple[int, list[list[Any]]]] | None:
        """Rows and statistics of the metrics of each evaluation set after these trees; None where earlier trees are missing."""

    # Leaf values estimated anew.

    def refit_begin(self, batch: str, order: RefitOrder, past: list[RefitStep], /) -> None:
        """Prepare the rows of a table, and replay the steps so far."""

    def refit_advance(self, batch: str, number: int, step: RefitStep, /) -> tuple[int, GradientStats | None]:
        """The number of rows, and their gradient statistics after a step."""

    def refit_ask(
        self, batch: str, iteration: int, function: Callable[..., Any], arguments: tuple[Any, ...], /
    ) -> tuple[int, Any]:
        """The number of rows, and ``function(shard, first, last, *arguments)`` of them."""


#: The names of a session's methods, the only ones that a message may ask for.
SESSION_METHODS = frozenset(name for name in vars(Session) if not name.startswith("_"))
