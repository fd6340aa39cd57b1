"""Messages between client, scheduler and workers, and exchanges among workers."""
