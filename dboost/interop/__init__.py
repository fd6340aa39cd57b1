"""Models of other libraries and formats: XGBoost and LightGBM models as ours, ours as XGBoost's JSON, ONNX and treelite.

One file per format; `convert_trees` has what all imports share, `export` what all exports share. What a format cannot
represent is refused with the reason, never approximated.
"""
