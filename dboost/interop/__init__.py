"""Models in the formats of others: XGBoost's JSON, ONNX, treelite. One file a format.

`columns` says how a row becomes numbers, `links` what leads from the sum of the trees to the prediction; a format that cannot
carry what a model needs is refused with the reason, never approximated.
"""
