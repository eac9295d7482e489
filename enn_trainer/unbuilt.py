"""Settings whose feature is not built yet, refused rather than ignored."""

from collections.abc import Iterator

from enn_trainer.config import EvalConfig, TrainConfig
from enn_trainer.errors import ConfigError


def check_supported(config: TrainConfig) -> None:
    """Refuse a configuration that asks for what this version cannot do.

    Raises:
        ConfigError: names every such field.
    """
    problems = [
        f"{setting}: not available in this version; leave it out" for setting in _unbuilt(config)
    ]
    if problems:
        raise ConfigError(*problems)


def _unbuilt(config: TrainConfig) -> Iterator[str]:
    if config.track:
        yield "track=true"
    if config.capture_samples is not None:
        yield f"capture_samples={config.capture_samples!r}"
    if config.capture_logits:
        yield "capture_logits=true"
    if config.eval is not None:
        yield from _unbuilt_of_eval(config.eval)


def _unbuilt_of_eval(evaluation: EvalConfig) -> Iterator[str]:
    if evaluation.capture_videos:
        yield "eval.capture_videos=true"
    if evaluation.capture_samples:
        yield f"eval.capture_samples={evaluation.capture_samples!r}"
