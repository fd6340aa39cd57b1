"""Import this module to load the kernels of workers and reducer in this process: for processes that are forked from it."""

from __future__ import annotations

from benchmarks.simulation.__main__ import simulate
from benchmarks.simulation.costs import measure
from benchmarks.simulation.network import Network

simulate(2, 1e3, 28, 1, Network(), measure(20_000, 28))
