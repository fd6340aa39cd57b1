"""The worker's side of a fit."""
