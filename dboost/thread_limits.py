"""Variables of the environment that limit the threads of a process, as they are when dboost is imported.

joblib sets them in the processes of a parallel search, and Dask in workers with a nanny. But Dask also sets them in the process
that starts these workers, such as a notebook with a `LocalCluster`, where later fits would be slow. So they are read once, as
OpenMP does.
"""

from __future__ import annotations

import os

#: OpenMP's variables, Numba's, and joblib's.
THREAD_LIMITS = ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "NUMBA_NUM_THREADS", "LOKY_MAX_CPU_COUNT")
#: Those that were set when dboost was imported, and their values.
INITIAL_LIMITS = {name: os.environ[name] for name in THREAD_LIMITS if name in os.environ}
