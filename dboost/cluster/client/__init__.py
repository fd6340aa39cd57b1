"""The client's connection to the scheduler, and the choice of client and workers."""
