"""Settings of a command line: `optim.lr=0.1`, `--lr 0.1`, and the name of an environment."""

import argparse
import contextlib
import dataclasses
import inspect
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from enn_trainer.base.errors import ConfigError
from enn_trainer.cli.load_world import parse_kwargs
from enn_trainer.config.build import type_of_field
from enn_trainer.config.field_types import entries, strip_optional
from enn_trainer.config.load import load_with_sources
from enn_trainer.config.shipped import configs_of_world, find_config, shipped_configs
from enn_trainer.runtime.trust import TYPED, import_named
from entity_env.errors import UnknownWorld, did_you_mean


def parse_typed(
    parser: argparse.ArgumentParser, words: Sequence[str], config_cls: type[Any]
) -> argparse.Namespace:
    """Parse a command line on which options may name settings, see `settings_from_options`.

    Arguments of the environment may be given as `env.kwargs=size=3,label=a`.
    """
    try:
        settings = map(_with_json, settings_from_options(parser, words, config_cls))
        return parser.parse_intermixed_args(list(settings))
    except ConfigError as error:
        parser.error(str(error))


def _with_json(word: str) -> str:
    """Return an assignment such as `env.kwargs=size=3` with JSON; any other word as it is."""
    match = re.fullmatch(r"((?:eval\.)?env\.kwargs)=(\w+=.*)", word, re.DOTALL)
    return f"{match[1]}={json.dumps(parse_kwargs(match[2], match[1]))}" if match else word


def settings_from_options(
    parser: argparse.ArgumentParser, words: Sequence[str], config_cls: type[Any]
) -> list[str]:
    """Return a command line with FIELD=VALUE in place of each option that names a setting.

    An option names a setting by its whole path, or by the last part of it if that is the last part
    of no other setting; "-", "_" and "." are equivalent. `--env` is `env.id`. Options of the parser
    have precedence. An option that is neither, or that names several settings, ends the program.

    Args:
        parser: parser of the command, which also reports errors.
        words: arguments of the command.
        config_cls: class of the configuration.
    """
    kinds, known = _settings(config_cls), parser._option_string_actions
    left, translated = list(words), []
    while left and left[0] != "--":
        word = left.pop(0)
        option, equals, value = word.partition("=")
        paths = _named_by(option.removeprefix("--"), kinds)
        is_abbreviation = not paths and any(name.startswith(option) for name in known)
        if not word.startswith("--") or option in known or is_abbreviation:
            translated.append(word)
            continue

        # The setting, and its value.
        if not paths:
            parser.error(f"{option}: no such option{_nearest_option(option, known, kinds)}")
        if len(paths) > 1:
            several = " or ".join(f"--{path}" for path in paths)
            parser.error(f"{option}: expected {several}, got the last part of all of them")
        following, is_switch = left[0] if left else "--", kinds[paths[0]] is bool
        if is_switch and not equals and following.lower() not in ("true", "false"):
            value = "true"
        elif not equals and following.startswith("--"):
            parser.error(f"{option}: expected a value of {paths[0]}, got none")
        elif not equals:
            value = left.pop(0)
        translated.append(f"{paths[0]}={value}")
    return [*translated, *left]


def _settings(config_cls: Any) -> dict[str, Any]:
    """Return the type of each setting that a command line can name, without sections, by path."""
    kinds = {entry.path: strip_optional(entry.kind) for entry in entries(config_cls)}
    return {
        path: kind
        for path, kind in kinds.items()
        if not dataclasses.is_dataclass(kind) and not re.search(r"\[\]|<", path)
    }


def _named_by(name: str, paths: Iterable[str]) -> list[str]:
    """Return the settings with this path or, without any, with this last part of their path."""
    if name == "env":
        return ["env.id"]

    def is_named(text: str) -> bool:
        return re.sub("[-.]", "_", text) == re.sub("[-.]", "_", name)

    whole = [path for path in paths if is_named(path)]
    return whole or [path for path in paths if is_named(path.rpartition(".")[2])]


def _nearest_option(option: str, known: Iterable[str], paths: Iterable[str]) -> str:
    fields = {f"--{name}" for path in paths for name in (path, path.rpartition(".")[2])}
    names = [name.replace("_", "-") for name in (*fields, "--env", *known)]
    return did_you_mean(option.replace("_", "-"), names)


class TypedSettings(NamedTuple):
    """Settings of a command line.

    Attributes:
        config: configuration file, if any.
        overrides: assignments such as `optim.lr=0.1`.
        note: line about a shipped configuration that was chosen, "" without one.
    """

    config: Path | None
    overrides: list[str]
    note: str = ""


def typed_settings(
    config_cls: type[Any], words: Sequence[str], config: Path | None, is_new: bool
) -> TypedSettings:
    """Return the settings of a command line on which a world may be the first word.

    Without `--config`, a shipped configuration of that world is used.

    Args:
        config_cls: class of the configuration.
        words: a world, if the first one has no "=", and assignments to settings or to arguments of
            the world.
        config: value of `--config`: a file or the name of a shipped configuration.
        is_new: False for a run that has its configuration from a save.

    Raises:
        ConfigError: a word is neither.
    """
    # The world, and its shipped configuration.
    file, overrides, note = find_config(config), list(words), ""
    if overrides and "=" not in overrides[0]:
        world = overrides[0]
        overrides[0] = f"env.id={_checked_world(config_cls, world, overrides[1:])}"
        if is_new and file is None and (shipped := configs_of_world(world)):
            file, *others = shipped
            also = "".join(f", as is {other.stem}" for other in others)
            note = f"settings: {file.stem}, shipped with this program{also}; --config for others"

    for word in overrides:
        if "=" not in word:
            raise ConfigError(f"{word!r}: expected FIELD=VALUE; a world is the first word")
    if is_new:
        overrides = _with_arguments(config_cls, overrides, file)
    return TypedSettings(file, overrides, note)


def _checked_world(config_cls: type[Any], word: str, others: Sequence[str]) -> str:
    """Return a word after checking that it is no setting, configuration or second world."""
    paths = _named_by(word, _settings(config_cls))
    if paths:
        raise ConfigError(f"{word}: expected a value, as in {paths[0]}=VALUE")
    suffixes = (".ron", ".yaml", ".yml", ".toml", ".json")
    if word in shipped_configs() or Path(word).suffix in suffixes:
        raise ConfigError(f"{word!r}: expected a world, got a configuration; --config {word}")
    again = next((other for other in others if other.startswith("env.id=")), None)
    if again is not None:
        raise ConfigError(f"env.id: expected one world, got {word} and {again}")
    return word


def _with_arguments(config_cls: type[Any], overrides: list[str], file: Path | None) -> list[str]:
    """Return assignments in which those of arguments of the world are part of `env.kwargs`.

    A name that is also that of a field is the field. Arguments without an assignment are those of
    the configuration.
    """
    assignments = dict(word.split("=", 1) for word in overrides)
    unknown = [n for n in assignments if type_of_field(config_cls, n.split(".")[0]) is None]
    if not unknown:
        return overrides
    known = [word for word in overrides if word.partition("=")[0] not in unknown]
    env = load_with_sources(config_cls, file, known, environment=os.environ)[0].env
    arguments: Iterable[str] = ()
    with contextlib.suppress(UnknownWorld, TypeError, ValueError):  # reported when it is made
        arguments = inspect.signature(import_named(env.id, "env.id", TYPED)).parameters
    typed = [f"{name}={assignments[name]}" for name in unknown if name in arguments]
    if not typed:
        return overrides
    kwargs = json.loads(env.kwargs) | parse_kwargs(typed, "env.kwargs")
    left = [word for word in overrides if word not in typed]
    return [*left, f"env.kwargs={json.dumps(kwargs)}"]
