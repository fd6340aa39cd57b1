"""Clusters for the tests: one in this process for what is equal, one of processes for what is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster, Scheduler

from dboost.shard import blocks
from dboost.training.budget import Budget

ROOT = Path(__file__).parent.parent
