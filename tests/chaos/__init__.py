"""Chaos tests from outside: random fits on a cluster of real processes, which are killed, stopped, paused and started anew.

``python -m tests.chaos --minutes 60 --seed 123`` runs, prints what it does, and exits with status 1 when a promise is broken.
Fits and faults follow from the seed and the number of a job; the moment at which a process reacts does not.

    fits.py      what is fitted: drawn, written to files, fitted (by clients) and expected (by fits in this process)
    client.py    the process of a client, told by lines of JSON what to fit
    inside.py    what runs in the processes of the cluster: signals that pause a worker or print its stacks
    spare.py     a worker that waits to be needed
    cluster.py   the processes: started, killed, stopped, started anew at the same address
    faults.py    what goes wrong and when: drawn, and carried out
    run.py       job after job; what must be true of each, and what is printed where it is not
    costs.py     what a death and a stopped worker cost, in seconds
"""
