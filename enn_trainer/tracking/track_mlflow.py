"""Scalars and videos to MLflow."""

import importlib.util
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, final

from enn_trainer.errors import ConfigError

BATCH = 100
"""As many parameters, or ten times as many metrics, as a server takes in one request."""
LONGEST_VALUE = 500
"""Characters of a parameter that every server keeps."""
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""A run waits while a request is made: MLflow's own patience, for minutes, is not for that."""


@final
class MlflowSink:
    """Sends numbers to an MLflow run.

    Metrics have the published tags, with a full stop for every character that MLflow refuses. What
    is not finite is left out, as not every server takes it.

    Args:
        uri: of the tracking server or store.
        run_id: of a run to continue; empty for a new one, whose id is then `run_id`.
        run_name: shown there.
        experiment: where the run belongs; made when absent.
        config: the parameters, by full name. A run that is continued keeps those it has.
        tags: further text about the run.
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
        """Send each finite scalar, all in one request."""
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
        """Keep a video file with the run, in a folder for its name and step."""
        self._client.log_artifact(self.run_id, str(path), f"{metric_name(name)}/{step}")

    def close(self) -> None:
        """Say that the run is over."""
        self._client.set_terminated(self.run_id)


def metric_name(tag: str) -> str:
    """A tag in the characters that MLflow takes."""
    return "".join(c if (c.isascii() and c.isalnum()) or c in "_-./ " else "." for c in tag)


def check_mlflow() -> None:
    """Refuse to begin a run that cannot be tracked.

    Raises:
        ConfigError: the extra is not installed.
    """
    if importlib.util.find_spec("mlflow") is None:
        raise ConfigError(
            "mlflow_tracking_uri: expected the package mlflow, which is not installed; "
            "pip install 'enn-trainer[mlflow]'"
        )
