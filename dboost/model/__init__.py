"""A trained model as plain data: `Ensemble` and `Tree`, their files, prediction, and models derived from a model."""
