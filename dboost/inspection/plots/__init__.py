"""Pictures of what a model learned, in one restrained style (see `canvas`); matplotlib is imported when one is drawn."""
