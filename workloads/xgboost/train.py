"""The training itself; runs in an environment that has NumPy and XGBoost: `train.py ROWS ROUNDS`.

Writes `progress.txt` (one line a round: its number and the loss), then `model.ubj`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np  # type: ignore[import-not-found, unused-ignore]
import xgboost as xgb  # type: ignore[import-not-found, unused-ignore]

COLUMNS = 40
SEED = 20261
PARAMETERS = {
    "objective": "binary:logistic",
    "tree_method": "hist",
    "max_depth": 6,
    "eta": 0.1,
    "subsample": 0.8,
    "colsample_bytree": 0.8,
    "seed": SEED,
    "nthread": 1,
}


class RoundLog(xgb.callback.TrainingCallback):  # type: ignore[misc, unused-ignore]
    """Write a line for every finished round, so that progress can be read from outside."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=1)

    def after_iteration(self, _model: Any, epoch: int, evals_log: Mapping[str, Any]) -> bool:
        loss = evals_log["train"]["logloss"][-1]
        self._file.write(f"{epoch + 1} {loss:.17g}\n")
        return False


def make_data(rows: int) -> xgb.DMatrix:
    """Return labelled points that take a few hundred trees to tell apart."""
    random = np.random.default_rng(SEED)
    features = random.standard_normal((rows, COLUMNS), dtype=np.float32)
    signal = features[:, 0] * features[:, 1] + np.sin(features[:, 2] * 3) + features[:, 3:8].sum(axis=1) * 0.2
    labels = (signal + random.standard_normal(rows) * 0.3 > 0).astype(np.float32)
    return xgb.DMatrix(features, label=labels, nthread=1)


def main() -> None:
    rows, rounds = int(sys.argv[1]), int(sys.argv[2])
    data = make_data(rows)
    log = RoundLog(Path("progress.txt"))
    model = xgb.train(
        PARAMETERS, data, num_boost_round=rounds, evals=[(data, "train")], verbose_eval=False, callbacks=[log]
    )
    model.save_model("model.ubj")
    print(f"trained {rounds} rounds on {rows} rows", flush=True)


if __name__ == "__main__":
    main()
