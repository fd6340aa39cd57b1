"""Messages between client, scheduler and workers, and what workers send to each other."""
