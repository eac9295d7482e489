"""Bots by the names that settings and command lines have for them."""

from typing import TYPE_CHECKING

from enn_trainer.config import TrainConfig
from enn_trainer.errors import ConfigError
from enn_trainer.runtime.start_folder import start_folder
from entity_env.bot import Bot
from entity_env.errors import UnknownWorld, short_repr
from entity_env.named_world import find_bot, names_bot

if TYPE_CHECKING:  # commands without an agent start without torch
    from enn_trainer.state_manager import StateManager


def bot_class(name: str, field: str) -> type[Bot]:
    """Import the class of a bot.

    Args:
        name: `file.py:Name` or `package.module:Name`.
        field: the setting, for messages.

    Raises:
        ConfigError: there is no such bot.
    """
    try:
        return find_bot(name, start_folder())
    except UnknownWorld as error:
        raise ConfigError(f"{field}: {error}") from None


def bots_named_in(config: TrainConfig) -> list[tuple[tuple[str, ...], str]]:
    """Return each bot that a configuration names, after the path of its setting."""
    named: list[tuple[tuple[str, ...], str | None]] = []
    if config.eval is not None:
        named.append((("eval", "opponent"), config.eval.opponent))
        for name, suite in config.eval.suites.items():
            named.append((("eval", "suites", name, "opponent"), suite.opponent))
    if config.selfplay is not None:
        named += [(("selfplay", "opponents"), entry) for entry in config.selfplay.opponents]
    return [(path, text) for path, text in named if text is not None and names_bot(text)]


def check_bots_trusted(manager: "StateManager") -> None:
    """Raise if a run continues from a save that names a bot which the user does not.

    Importing code of a stranger already runs it.

    Args:
        manager: state manager of the run.

    Raises:
        ConfigError: names the setting, the bot and what to type.
    """
    saved = manager.resumed_from
    if saved is None or manager.trusts_save:
        return
    named = bots_named_in(manager.config)
    typed = {text for path, text in named if manager.sources.is_given(path)}
    for path, text in named:
        if text not in typed:
            field = ".".join(path)
            raise ConfigError(
                f"{field}: expected a bot that is named on the command line, got "
                f"{short_repr(text, 200)} from {saved.path}, which is code that would be imported "
                f"and run; give {field}={text} again, or --trust if you trust the save"
            )
