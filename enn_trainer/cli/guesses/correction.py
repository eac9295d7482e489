"""Correction of a command line in words of other libraries.

The words are split into names, assignments, and options with their values; each is corrected on its
own. Then the line is completed by what its command requires.
"""

import re
import shlex
from argparse import Action, ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise, takewhile
from pathlib import Path
from typing import NamedTuple, TypeAlias

from enn_trainer.cli.guesses.words import (
    ALGORITHMS,
    COMMANDS_OF_OTHER_LIBRARIES,
    OPTIONS_OF_OTHER_LIBRARIES,
    SEARCH,
    SETTINGS,
    SWITCHES,
    TUNE,
    UNAVAILABLE,
    WITH_VALUE,
)
from enn_trainer.config import CloneRunConfig, TrainConfig
from enn_trainer.config.formats import read_file
from enn_trainer.config.help import matching_settings, setting_types
from enn_trainer.config.other_libraries import VALUES_OF_OTHER_LIBRARIES, setting_hint, word_of
from enn_trainer.config.shipped import configs_of_world, shipped_configs
from enn_trainer.runtime.start_folder import RUNS, path_of_run
from entity_env.errors import nearest_name
from entity_env.examples import ENV_REGISTRY
from entity_env.named_world import likely_name

Parsers: TypeAlias = Mapping[str, Callable[[], ArgumentParser]]
_WITH_SETTINGS = {"train", "resume", "profile", "clone", "tune"}
_TRAINING = {"train", "tune", "profile"}
_OF_ENV = _TRAINING | {"check", "play", "envs"}
_OF_RUN = {"eval", "watch", "serve", "resume", "export", "plot", "inspect"}
_CONFIG_FILES = {".ron", ".yaml", ".yml", ".toml", ".json"}
_COMMAND_FOR_RUN = {
    "train": "resume",
    "tune": "resume",
    "check": "inspect",
    "envs": "inspect",
}
"""Command for a run instead of an environment; `watch` for the remaining commands."""
_ENV_OPTIONS = ("--env", "--env-id", "--env.id")
_TEMPLATE = " {}"
"""Part of corrected words that are a line, with {} in place of the command."""
_REQUIRED = {"CHECKPOINT", "COMMAND", "ENV", "RUN"}
_REQUIRED_OF_SEARCH = {"ranges", "--metric", "--trials"}
"""Required arguments that are added to a line, as messages name them."""


class Correction(NamedTuple):
    """Corrected command line.

    Attributes:
        text: the line.
        mistakes: words, and parts of words, that were corrected.
    """

    text: str
    mistakes: set[str]


class _Command(NamedTuple):
    """Command with its options, and the settings that it accepts."""

    name: str
    options: Mapping[str, Action]
    settings: Mapping[str, type]

    def paths(self, name: str) -> list[str]:
        """Return the settings that a name stands for."""
        return matching_settings(name.lstrip("-"), self.settings)

    def translation(self, name: str) -> tuple[str | None, str | None]:
        """Return the template of words, or the setting, for a word of another library."""
        template = OPTIONS_OF_OTHER_LIBRARIES.get(self.name, {}).get(word_of(name))
        return template, setting_hint(name) if self.settings and template is None else None


def correct(program: str, typed: Sequence[str], parsers: Parsers) -> Correction:
    """Correct a command line.

    Args:
        program: `enn`, or `python FILE` for a program of the user, which trains.
        typed: arguments of the program.
        parsers: functions that return the parsers of the commands, by name.
    """
    # The command.
    is_enn = program == "enn"
    name, words = _corrected_command(typed, [*parsers]) if is_enn else ("train", [*typed])
    mistakes = {typed[0]} - parsers.keys() if is_enn else set[str]()
    if is_enn and name == "train" and (searches := [*filter(_is_search, words)]):
        name, words = "tune", [word for word in words if word not in searches]
    if name in UNAVAILABLE:
        return Correction(_line_of_unavailable(name, words), mistakes)
    options = parsers[name]()._option_string_actions if name in parsers else {}
    settings = setting_types(CloneRunConfig if name == "clone" else TrainConfig)
    command = _Command(name, options, settings if name in _WITH_SETTINGS else {})

    # Its arguments: a name, as of an environment or a run, is neither an option nor an assignment.
    groups = _groups(words, command)
    names = [i for i, group in enumerate(groups) if _is_name(group[0], command)] if is_enn else []
    if name in _TRAINING:
        while names and groups[names[0]][0].lower() in ALGORITHMS:
            groups[names.pop(0)] = []
    for i, group in enumerate(groups):
        if i in (names if name == "plot" else names[:1]):
            name, groups[i] = _corrected_name(name, group[0])
            mistakes |= {*group} if (name, groups[i]) != (command.name, group) else set()
        elif group and not _is_name(group[0], command):
            groups[i] = _corrected_group(group, command)
    words = [*chain.from_iterable(groups)]
    if is_enn and not names and (required := _with_required(name, words)) != words:
        words, mistakes = required, mistakes | _REQUIRED
    if name == "train":
        env = _env_of(words) or (groups[names[0]][0] if names else "")
        name, words = _with_run_to_resume(words, env)
        words += _length_of_evals(words, env)
    if name == "export" and "--to" not in words:
        words, mistakes = [*words, "--to", "out"], mistakes | {"--to"}
    if name == "tune":
        words, mistakes = _with_search(words), mistakes | _REQUIRED_OF_SEARCH

    # The line, inside a loop or after a command that trains.
    around = next((word for word in words if _TEMPLATE in word), "{}")
    words = [word for word in words if _TEMPLATE not in word]
    line = f"{f'enn {name}' if is_enn else program} {shlex.join(words)}".strip()
    return Correction(around.replace("{}", line), mistakes | _differences(typed, [name, *words]))


def _differences(typed: Sequence[str], corrected: Sequence[str]) -> set[str]:
    """Return the typed words that a corrected line lacks, and the parts that it lacks."""
    old, new = ({*chain(*(re.split("[=:]+", w) for w in words))} for words in (typed, corrected))
    return ({*typed} - {*corrected} | (old - new)) - {""}


def _is_search(word: str) -> bool:
    is_option = word.startswith("-")
    return is_option and OPTIONS_OF_OTHER_LIBRARIES["train"].get(word_of(word)) == TUNE


def _is_name(word: str, command: _Command) -> bool:
    return word == "--" or not (word.startswith("-") or ("=" in word and command.settings))


# Commands.


def _corrected_command(typed: Sequence[str], commands: Sequence[str]) -> tuple[str, list[str]]:
    """Return the command, and its arguments."""
    word, *words = typed
    command = word.replace("-", "_").lower()
    if word == "config" and words[:1] == ["show"]:
        return "train", ["--print-config", *words[1:]]
    if word in commands or command in UNAVAILABLE:
        return (word if word in commands else command), words
    if command == "record" and words and _is_run(path_of_run(words[0])):
        return "eval", [*words, "--video", "video.gif"]
    if command == "record" and words:
        return "play", [*words, "--record", "games.rec"]
    known = COMMANDS_OF_OTHER_LIBRARIES.get(command)
    return known or nearest_name(word, commands) or word, words


def _line_of_unavailable(command: str, words: Sequence[str]) -> str:
    template = UNAVAILABLE[command][1]
    names = [word for word in words if not word.startswith("-") and "=" not in word]
    if "enn train" in template:
        name = (likely_name(names[0], Path.cwd()) or names[0]) if names else "TreasureHunt"
    else:
        newest = _newest_run() or RUNS / "TreasureHunt-1"
        name = str(path_of_run(names[0]) if names else newest)
    return template.format(shlex.quote(name), name=shlex.quote(Path(name).name))


# Environments, runs and configurations.


def _corrected_name(command: str, name: str) -> tuple[str, list[str]]:
    """Return the command for the first name of a line, and the words to type for the name."""
    path, is_training = path_of_run(name), command in _TRAINING
    if name == "list" and command in ("envs", "runs"):
        return command, []
    if command in _OF_RUN:
        return _corrected_run(command, name)
    if command == "checkpoints" and _is_run(path):
        return command, ["list", str(path)]
    if command not in _OF_ENV:
        return command, [name]
    if _is_run(path):
        return _COMMAND_FOR_RUN.get(command, "watch"), [str(path)]
    if is_training and _is_config(name):
        return command, ["--config", name]
    return command, [_likely_env(name)]


def _is_config(name: str) -> bool:
    is_shipped = name in shipped_configs() and likely_name(name, Path.cwd()) is None
    return is_shipped or Path(name).suffix in _CONFIG_FILES


def _likely_env(name: str) -> str:
    return name if name in ENV_REGISTRY else likely_name(name, Path.cwd()) or name


def _corrected_run(command: str, name: str) -> tuple[str, list[str]]:
    path, env = path_of_run(name), None
    if not _is_run(path) and command != "inspect" and (newest := _newest_run(path)):
        return command, [str(newest)]
    if path.suffix == ".py" or not path.exists():
        env = likely_name(name, Path.cwd())
    if env is None:
        return command, [name]
    if path.suffix == ".py":
        return ("envs" if command == "inspect" else command), [env]
    return command, _run_of_env(env)


def _is_run(path: Path) -> bool:
    return path.is_dir() and any(path.glob("step-*"))


def _newest_run(folder: Path = RUNS, pattern: str = "*") -> Path | None:
    runs = filter(_is_run, folder.glob(pattern))
    return max(runs, key=lambda run: run.stat().st_mtime, default=None)


def _run_of_env(env: str) -> list[str]:
    """Return the newest run of an environment; without one, its first run after training."""
    newest = _newest_run(RUNS, f"{_run_name(env)}-*")
    first = [str(RUNS / f"{_run_name(env)}-1"), f"enn train {shlex.quote(env)} && {{}}"]
    return first if newest is None else [str(newest)]


def _run_name(env: str) -> str:
    """Return the name of an environment in the folders of its runs; see `new_run_dir`."""
    return re.sub(r"[^\w.-]+", "_", env.rpartition(":")[2])


# Options and settings.


def _groups(words: Sequence[str], command: _Command) -> list[list[str]]:
    """Split a line into names, assignments, and options with their values."""
    groups, todo = list[list[str]](), [*words]
    while todo:
        group = [todo.pop(0)]
        if group[0].startswith("-") and "=" not in group[0]:
            for _ in range(_num_values(group[0], todo, command)):
                group.append(todo.pop(0))
        groups.append(group)
    return groups


def _num_values(option: str, following: Sequence[str], command: _Command) -> int:
    """Return the number of the following words that are values of an option."""
    word, paths, (template, path) = (
        word_of(option),
        command.paths(option),
        command.translation(option),
    )
    path, after = paths[0] if len(paths) == 1 else path, following[0] if following else "-"
    if option in command.options:
        return min(len(following), int(command.options[option].nargs != 0))
    if option == "--" or (path is None and template is None):
        return 0
    is_bool = path is not None and command.settings.get(path) is bool and word not in WITH_VALUE
    if word in SWITCHES or is_bool:
        return int(after.lower() in ("true", "false"))
    if template == SETTINGS:
        return sum(1 for _ in takewhile(re.compile(r"\w+[:=]").match, following))
    return int(not after.startswith("-"))


def _corrected_group(group: Sequence[str], command: _Command) -> list[str]:
    """Return the words to type for an option with its values, or for an assignment."""
    name, equals, value = group[0].partition("=")
    is_option = name.startswith("-")
    value = value if equals else " ".join(group[1:]) or "true"
    paths = command.paths(name)
    option = name if is_option else f"--{name.replace('_', '-')}"
    if is_option and name in command.options:
        return [name, _likely_env(value)] if name == "--env" and len(group) > 1 else [*group]
    if not is_option and option in command.options and paths != [name]:
        return [option, value]
    if len(paths) == 1:
        return _setting_words(name if is_option else "", paths[0], value, command)
    translated = _translated(name, value, command)
    if translated is None and name.startswith("--"):
        known = [name for path in command.settings for name in (path, path.rpartition(".")[2])]
        nearest = nearest_name(name, [*command.options, *(f"--{path}" for path in known)])
        return [nearest.replace("_", "-") + group[0].removeprefix(name)] if nearest else [*group]
    return [*group] if translated is None else translated


def _setting_words(option: str, path: str, value: str, command: _Command) -> list[str]:
    """Return an option with the value of a setting, or an assignment if the option is ""."""
    value = _likely_env(value) if path == "env.id" else _in_digits(value)
    if not option:
        return [f"{path}={value}"]
    return [option] if command.settings.get(path) is bool and value == "true" else [option, value]


def _in_digits(value: str) -> str:
    """Return a number such as 100k or 1.5M in digits, and other values unchanged."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM])", value)
    factors = {"k": 1e3, "m": 1e6}
    return value if match is None else f"{float(match[1]) * factors[match[2].lower()]:.0f}"


def _translated(name: str, value: str, command: _Command) -> list[str] | None:
    """Return the words to type for a word of another library; None for an unknown word."""
    template, path = command.translation(name)
    if template is None and path is not None:
        corresponding = VALUES_OF_OTHER_LIBRARIES.get(word_of(name), {}).get(value, value)
        option = f"--{'lr' if path == 'optim.lr' else path}".replace("_", "-")
        if corresponding is None:  # the default
            return []
        return _setting_words(option if name[0] == "-" else "", path, corresponding, command)
    if template is None:
        return None
    if template == SETTINGS:
        pairs = re.findall(r"(\w+)[:=](\S*)", value)
        return [*chain.from_iterable(_corrected_group([f"{k}={v}"], command) for k, v in pairs)]
    if template == TUNE:  # of a program, which has no searches
        return []
    if template.startswith("for "):
        return [template.format(value if value.isdecimal() else 3)]
    if value in ("latest", "true") and "{}" in template:
        return ["--resume"]
    return [part.format(value) for part in template.split()]


# Required arguments.


def _with_required(command: str, words: Sequence[str]) -> list[str]:
    """Add a required name to a line without names: a run, an environment, or a command."""
    env, newest = _env_of(words), str(_newest_run() or "RUN")
    if command in _OF_RUN - {"inspect", "plot"}:
        return [*_run_of_env(env), *_without_env(words, env)] if env else [newest, *words]
    if command in ("check", "play"):
        files = (likely_name(str(file), Path.cwd()) for file in Path().glob("*.py"))
        return [next(filter(None, files), "TreasureHunt"), *words]
    if command == "tune":
        return ["TreasureHunt", *words]
    return [*words, "list", newest] if command == "checkpoints" else [*words]


def _with_search(words: Sequence[str]) -> list[str]:
    """Add a range, evaluations, a metric and a number of trials to a search without them."""
    has_range = any("=" in word and " " in word for word in words)
    missing = [
        added
        for start, added in SEARCH.items()
        if not any(word.startswith(start) for word in words)
        and not (has_range and added[0].startswith("optim.lr="))
    ]
    options = [word for added in missing if added[0].startswith("--") for word in added]
    assignments = [added[0] for added in missing if not added[0].startswith("--")]
    return [*words[:1], *assignments, *words[1:], *options]


def _with_run_to_resume(words: Sequence[str], env: str) -> tuple[str, list[str]]:
    """Return the command, and words with a run for `--resume` if the folder is missing."""
    newest = _newest_run(RUNS, f"{_run_name(env)}-*" if env else "*")
    is_complete = "--resume" not in words or "--checkpoint-dir" in words
    if is_complete or not (newest or env):
        return "train", [*words]
    words = [word for word in words if word != "--resume"]
    if newest is None:
        first = str(RUNS / f"{_run_name(env)}-1")
        return "train", [*words, "--checkpoint-dir", first, "--resume-or-start"]
    return "resume", [str(newest), *_without_env(words, env)]


def _env_of(words: Sequence[str]) -> str:
    """Return the environment that an option or `env.id` names; "" without one."""
    options = [after for word, after in pairwise(words) if word in _ENV_OPTIONS]
    assigned = [word.removeprefix("env.id=") for word in words if word.startswith("env.id=")]
    return next(iter([*options, *assigned]), "")


def _without_env(words: Sequence[str], env: str) -> list[str]:
    return [word for word in words if word not in (env, f"env.id={env}", *_ENV_OPTIONS)]


def _length_of_evals(words: Sequence[str], env: str) -> list[str]:
    """Return the number of episodes that evaluations require, if nothing sets their length."""
    evals = [word for word in words if re.match(r"(--)?eval\.", word)]
    is_set = any(re.search(r"\.(steps|episodes)", word) for word in evals)
    if not evals or is_set or any("eval" in read_file(one) for one in configs_of_world(env)[:1]):
        return []
    return ["--eval.episodes", "32"]
