"""Settings whose feature is not built yet, refused rather than ignored."""

from collections.abc import Iterator

from enn_trainer.config import TrainConfig
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
    if config.eval is not None and config.eval.capture_videos:
        yield "eval.capture_videos=true"
