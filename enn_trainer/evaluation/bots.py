"""Bots by the names that settings and command lines have for them."""

from enn_trainer.errors import ConfigError
from enn_trainer.runtime.trust import Trust, import_bot
from entity_env.bot import Bot
from entity_env.errors import UnknownWorld


def bot_class(name: str, field: str, trust: Trust) -> type[Bot]:
    """Import the class of a bot.

    Args:
        name: `file.py:Name` or `package.module:Name`.
        field: the setting, for messages.
        trust: the code that may run.

    Raises:
        ConfigError: there is no such bot, or it is not trusted.
    """
    try:
        return import_bot(name, field, trust)
    except UnknownWorld as error:
        raise ConfigError(f"{field}: {error}") from None
