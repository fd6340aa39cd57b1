"""Chaos tests: random fits on a cluster of real processes, which are killed, stopped, paused and restarted.

``python -m tests.chaos --minutes 60 --seed 123`` runs, prints its progress, and exits with status 1 if a guarantee is violated.
Fits and faults follow from the seed and the number of a job; the moment at which a process reacts does not.

    fits.py      fits: drawn from a seed, written to files, run by clients and in this process
    client.py    the process of a client, which receives its fits as lines of JSON
    inside.py    code in the processes of the cluster: signals that pause a worker or print its stacks
    spare.py     a worker process that waits to replace another
    cluster.py   the processes: started, killed, stopped, restarted at the same address
    faults.py    faults and their times: drawn from a seed, and carried out
    run.py       job after job; checks of each job, and reports of violations
    costs.py     the seconds that a lost worker and a stopped worker cost
"""
