"""The scheduler's side of a fit."""
