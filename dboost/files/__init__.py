"""Files of dboost on any storage: atomic writes, leases, temporary files, checks of JSON content."""
