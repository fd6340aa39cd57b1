"""Predictions of models in other formats, on the rows of `Booster.to_matrix`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dboost import Booster


def by_xgboost(booster: Booster, matrix: np.ndarray, folder: Path, **how: Any) -> np.ndarray:
    xgboost = pytest.importorskip("xgboost")
    path = folder / "model.xgb.json"
    booster.to_xgboost_json(path)
    model = xgboost.Booster({"nthread": 1}, model_file=path)
    rows = xgboost.DMatrix(
        matrix, feature_names=model.feature_names, feature_types=model.feature_types, enable_categorical=True, nthread=1
    )
    return model.predict(rows, **how)


def by_onnx(booster: Booster, matrix: np.ndarray, folder: Path) -> list[np.ndarray]:
    """Predict all outputs, which must have the shapes that the model declares."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    path = folder / "model.onnx"
    assert booster.to_onnx(path) == booster.to_onnx()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (rows,) = session.get_inputs()
    assert rows.type == "tensor(float)"
    found = session.run(None, {rows.name: matrix.astype(np.float32)})
    for output, values in zip(session.get_outputs(), found, strict=True):
        assert values.shape == (len(matrix), *output.shape[1:]), output.name
    return found


def by_treelite(booster: Booster, matrix: np.ndarray, **how: Any) -> np.ndarray:
    """Predict: [rows, outputs]."""
    treelite = pytest.importorskip("treelite")
    return treelite.gtil.predict(booster.to_treelite(), matrix, nthread=1, **how)[:, 0, :]
