"""Metric sink for MLflow."""

import importlib.util
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, final

from enn_trainer.errors import ConfigError

BATCH = 100
"""Number of parameters in one request; a server takes ten times as many metrics."""
LONGEST_VALUE = 500
"""Maximal length of the value of a parameter; some servers take no longer ones."""
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Retries and timeout of requests: training waits for them, and MLflow's defaults are minutes."""


@final
class MlflowSink:
    """A run of MLflow.

    Metrics are named by their tags, with a full stop for each character that MLflow does not take.
    Values that are not finite are left out, as not every server takes them.

    Args:
        uri: URI of the tracking server or store.
        run_id: id of a run to continue; empty for a new one, whose id becomes `self.run_id`.
        run_name: the name that MLflow displays.
        experiment: the experiment of the run; created if it does not exist.
        config: the parameters, by dotted name. A run that is continued keeps its own.
        tags: the tags of the run.
    """

    def __init__(
        self,
        uri: str,
        run_id: str,
        run_name: str,
        experiment: str,
        config: Mapping[str, object],
        tags: Mapping[str, str],
    ) -> None:
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client: Any = MlflowClient(uri)
        self.run_id = run_id
        if run_id:
            self._client.update_run(run_id, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(experiment)
        where = self._client.create_experiment(experiment) if found is None else found.experiment_id
        run = self._client.create_run(where, run_name=run_name, tags=dict(tags))
        self.run_id = run.info.run_id
        params = [Param(key, str(value)[:LONGEST_VALUE]) for key, value in config.items()]
        for start in range(0, len(params), BATCH):
            self._client.log_batch(self.run_id, params=params[start : start + BATCH])

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Send the finite scalars, up to 1,000 in a request."""
        from mlflow.entities import Metric

        now_ms = int(1000 * time.time())
        names = {tag: metric_name(tag) for tag in scalars}
        folders = {str(folder) for name in names.values() for folder in PurePath(name).parents}
        metrics = [
            # A store in files cannot have a file and a folder of one name.
            Metric(f"{name}/own" if name in folders else name, float(scalars[tag]), now_ms, step)
            for tag, name in names.items()
            if math.isfinite(scalars[tag])
        ]
        for start in range(0, len(metrics), 10 * BATCH):
            self._client.log_batch(self.run_id, metrics=metrics[start : start + 10 * BATCH])

    def video(self, step: int, name: str, path: Path) -> None:
        """Upload a video file as an artifact in a folder for its name and step."""
        self._client.log_artifact(self.run_id, str(path), f"{metric_name(name)}/{step}")

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self.run_id)


def metric_name(tag: str) -> str:
    """Return a tag with a full stop for each character that MLflow does not take."""
    return "".join(c if (c.isascii() and c.isalnum()) or c in "_-./ " else "." for c in tag)


def check_mlflow() -> None:
    """Raise if MLflow is not installed.

    Raises:
        ConfigError: the package is missing.
    """
    if importlib.util.find_spec("mlflow") is None:
        raise ConfigError(
            "mlflow_tracking_uri: expected the package mlflow, which is not installed; "
            "pip install 'enn-trainer[mlflow]'"
        )
