"""Settings of a command line: `optim.lr=0.1`, `--lr 0.1`, and the name of an environment."""

import argparse
import ast
import contextlib
import inspect
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from enn_trainer.base.errors import ConfigError
from enn_trainer.config.build import type_of_field
from enn_trainer.config.help import matching_settings, setting_types
from enn_trainer.config.load import load_with_sources
from enn_trainer.config.other_libraries import setting_hint
from enn_trainer.config.shipped import configs_of_world, find_config, shipped_configs
from enn_trainer.config.validation import dict_of_unique
from enn_trainer.runtime.trust import TYPED, import_named
from entity_env.errors import UnknownWorld, did_you_mean


def parse_typed(
    parser: argparse.ArgumentParser, words: Sequence[str], config_cls: type[Any]
) -> argparse.Namespace:
    """Parse a command line with options that name settings, see `settings_from_options`.

    Arguments of the environment can be written `env.kwargs=size=3,label=a`.
    """
    try:
        settings = map(_with_json, settings_from_options(parser, words, config_cls))
        return parser.parse_intermixed_args(list(settings))
    except ConfigError as error:
        parser.error(str(error))


def _with_json(word: str) -> str:
    """Convert an assignment such as `env.kwargs=size=3` to JSON; return other words unchanged."""
    match = re.fullmatch(r"((?:eval\.)?env\.kwargs)=(\w+=.*)", word, re.DOTALL)
    return f"{match[1]}={json.dumps(parse_kwargs(match[2], match[1]))}" if match else word


def settings_from_options(
    parser: argparse.ArgumentParser, words: Sequence[str], config_cls: type[Any]
) -> list[str]:
    """Replace each option that names a setting by FIELD=VALUE.

    An option names a setting by its path, or by the last part of its path if that is unique; "-",
    "_" and "." are equivalent. `--env` is `env.id`. Options of the parser have precedence. Unknown
    and ambiguous options end the program.

    Args:
        parser: parser of the command, which also reports errors.
        words: arguments of the command.
        config_cls: class of the configuration.
    """
    kinds, options = setting_types(config_cls), parser._option_string_actions
    remaining, translated = list(words), []
    while remaining and remaining[0] != "--":
        word = remaining.pop(0)
        option, equals, value = word.partition("=")
        paths = matching_settings(option.removeprefix("--"), kinds)
        is_abbreviation = not paths and any(name.startswith(option) for name in options)
        if not word.startswith("--") or option in options or is_abbreviation:
            translated.append(word)
            continue

        # The setting, and its value.
        if not paths:
            hint = "" if setting_hint(option) else _nearest_option(option, options, kinds)
            parser.error(f"{option}: no such option{hint}")
        if len(paths) > 1:
            several = " or ".join(f"--{path}" for path in paths)
            parser.error(f"{option}: expected {several}, got an ambiguous name")
        following, is_switch = remaining[0] if remaining else "--", kinds[paths[0]] is bool
        if is_switch and not equals and following.lower() not in ("true", "false"):
            value = "true"
        elif not equals and following.startswith("--"):
            parser.error(f"{option}: expected a value of {paths[0]}, got none")
        elif not equals:
            value = remaining.pop(0)
        translated.append(f"{paths[0]}={value}")
    return [*translated, *remaining]


def _nearest_option(option: str, options: Iterable[str], paths: Iterable[str]) -> str:
    fields = {f"--{name}" for path in paths for name in (path, path.rpartition(".")[2])}
    names = [name.replace("_", "-") for name in (*fields, "--env", *options)]
    return did_you_mean(option.replace("_", "-"), names)


class TypedSettings(NamedTuple):
    """Settings of a command line.

    Attributes:
        config: configuration file, if any.
        overrides: assignments such as `optim.lr=0.1`.
        note: line about the selected shipped configuration, "" without one.
    """

    config: Path | None
    overrides: list[str]
    note: str = ""


def typed_settings(
    config_cls: type[Any], words: Sequence[str], config: Path | None, is_new: bool
) -> TypedSettings:
    """Return the settings of a command line, which may start with an environment.

    Without `--config`, a shipped configuration of that environment is used.

    Args:
        config_cls: class of the configuration.
        words: an environment, if the first word has no "=", and assignments to settings or to
            arguments of the environment.
        config: value of `--config`: a file, or the name of a shipped configuration.
        is_new: False for a run with the configuration of a save.

    Raises:
        ConfigError: a word is neither an environment nor an assignment.
    """
    # The environment, and its shipped configuration.
    file, overrides, note = find_config(config), list(words), ""
    if overrides and "=" not in overrides[0]:
        world = overrides[0]
        overrides[0] = f"env.id={_check_environment_name(config_cls, world, overrides[1:])}"
        if is_new and file is None and (shipped := configs_of_world(world)):
            file, *alternatives = shipped
            also = "".join(f" or {other.stem}" for other in alternatives)
            note = f"settings: shipped configuration {file.stem}; for others: --config FILE{also}"

    for word in overrides:
        if "=" not in word:
            raise ConfigError(f"{word!r}: expected FIELD=VALUE; name the environment first")
    if is_new:
        overrides = _merge_arguments(config_cls, overrides, file)
    return TypedSettings(file, overrides, note)


def _check_environment_name(config_cls: type[Any], word: str, overrides: Sequence[str]) -> str:
    """Check that a word is not a setting, a configuration or a second environment; return it."""
    paths = matching_settings(word, setting_types(config_cls))
    if paths:
        raise ConfigError(f"{word}: expected a value, as in {paths[0]}=VALUE")
    suffixes = (".ron", ".yaml", ".yml", ".toml", ".json")
    if word in shipped_configs() or Path(word).suffix in suffixes:
        expected = "expected an environment, got a configuration"
        raise ConfigError(f"{word!r}: {expected}; use --config {word}")
    again = next((other for other in overrides if other.startswith("env.id=")), None)
    if again is not None:
        raise ConfigError(f"env.id: expected one environment, got {word} and {again}")
    return word


def _merge_arguments(config_cls: type[Any], overrides: list[str], file: Path | None) -> list[str]:
    """Merge assignments to arguments of the environment into `env.kwargs`.

    A field of the configuration has precedence over an argument of the same name. Arguments
    without an assignment keep the value of the configuration.
    """
    assignments = dict(word.split("=", 1) for word in overrides)
    unknown = [n for n in assignments if type_of_field(config_cls, n.split(".")[0]) is None]
    if not unknown:
        return overrides
    settings = [word for word in overrides if word.partition("=")[0] not in unknown]
    env = load_with_sources(config_cls, file, settings, environment=os.environ)[0].env
    arguments: Iterable[str] = ()
    with contextlib.suppress(UnknownWorld, TypeError, ValueError):  # reported at its creation
        arguments = inspect.signature(import_named(env.id, "env.id", TYPED)).parameters
    typed = [f"{name}={assignments[name]}" for name in unknown if name in arguments]
    if not typed:
        return overrides
    kwargs = json.loads(env.kwargs) | parse_kwargs(typed, "env.kwargs")
    remaining = [word for word in overrides if word not in typed]
    return [*remaining, f"env.kwargs={json.dumps(kwargs)}"]


def parse_kwargs(pairs: str | Sequence[str], field: str) -> dict[str, Any]:
    """Parse the arguments of an environment on the command line.

    Args:
        pairs: text such as `size=3,label=a`, with values that are JSON, Python literals or text;
            or JSON such as `{"size": 3, "label": "a"}`; or a list of such texts.
        field: name of the arguments on the command line, for messages.

    Raises:
        ConfigError: an argument has another form, or is repeated.
    """
    kwargs: dict[str, Any] = {}
    if isinstance(pairs, str):
        pairs = [pairs] if pairs.lstrip().startswith("{") else split_pairs(pairs)
    for text in pairs:
        for name, value in _arguments_in(text, field):
            if name in kwargs:
                raise ConfigError(f"{field}: expected every argument once, got {name} twice")
            kwargs[name] = value
    return kwargs


def _arguments_in(text: str, field: str) -> Iterator[tuple[str, Any]]:
    form = """an argument of ENV as in size=3, or JSON as in '{"size": 3}'"""
    if text.lstrip().startswith("{"):
        try:
            yield from json.loads(text, object_pairs_hook=dict_of_unique).items()
        except ValueError as error:
            raise ConfigError(f"{field}: expected {form}, got {text!r} ({error})") from None
        return
    parts = split_pairs(text)
    for pair in parts if all("=" in part for part in parts) else [text]:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"{field}: expected {form}, got {pair!r}")
        yield name, _value(value)


def _value(text: str) -> Any:
    """Parse a text as JSON or as a Python literal, else return the text."""
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError):
            return read(text)
    return text


def split_pairs(text: str) -> list[str]:
    """Split a text at commas outside of brackets and quotes."""
    parts, depth, quoted = [""], 0, False
    for char in text:
        quoted ^= char == '"'
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += char
    return parts
