"""Tables of any kind as chunks with consistent columns: training data and evaluation sets."""
