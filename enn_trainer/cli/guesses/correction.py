"""Correction of a command line in words of other libraries."""

import re
import shlex
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

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

_WITH_SETTINGS = {"train", "resume", "profile", "clone", "tune"}
_OF_ENV = {"train", "tune", "profile", "check", "play", "envs"}
_OF_RUN = {"eval", "watch", "serve", "resume", "plot", "inspect"}
_CONFIG_FILES = {".ron", ".yaml", ".yml", ".toml", ".json"}
_COMMAND_FOR_RUN = {"train": "resume", "tune": "resume", "check": "inspect", "envs": "inspect"}
"""Command for a run instead of an environment; `watch` for the remaining commands."""


def _is_run(path: Path) -> bool:
    return path.is_dir() and any(path.glob("step-*"))


def _newest_run(folder: Path, pattern: str = "*") -> Path | None:
    runs = filter(_is_run, folder.glob(pattern))
    return max(runs, key=lambda run: run.stat().st_mtime, default=None)


class Correction:
    """Command line that is corrected word by word.

    Args:
        program: `enn`, or `python FILE` for a program of the user, which trains.
        words: arguments of the program.
        parsers: functions that return the parsers of the commands, by name.

    Attributes:
        mistakes: the words that were corrected.
    """

    def __init__(
        self,
        program: str,
        words: Sequence[str],
        parsers: Mapping[str, Callable[[], ArgumentParser]],
    ) -> None:
        self.mistakes = list[str]()
        self._program, self._is_script = program, program != "enn"
        self._todo, self._words = list(words), list[str]()
        self._is_first, self._env, self._around = True, "", "{}"
        self._command = "train"
        if not self._is_script:
            self._command = self._corrected_command(self._todo.pop(0), list(parsers))
        self._options = {}
        if self._command in parsers:
            self._options = parsers[self._command]()._option_string_actions
        self._settings = setting_types(CloneRunConfig if self._command == "clone" else TrainConfig)

    def text(self) -> str:
        """Correct the words and return the line."""
        if self._command in UNAVAILABLE:
            return self._unavailable(UNAVAILABLE[self._command][1])
        while self._todo:
            word = self._todo.pop(0)
            if word.startswith("-") and word != "--":
                self._correct_option(word)
            elif "=" in word and self._command in _WITH_SETTINGS:
                self._correct_assignment(*word.split("=", 1))
            else:
                self._correct_name(word)
        self._complete()
        program = self._program if self._is_script else f"enn {self._command}"
        line = " ".join(filter(None, [program, shlex.join(self._words)]))
        return self._around.replace("{}", line)

    # Commands.

    def _corrected_command(self, typed: str, commands: Sequence[str]) -> str:
        command = typed.replace("-", "_").lower()
        if typed in commands:
            if typed != "config" or self._todo[:1] != ["show"]:
                return typed
            self._replace(self._todo.pop(0), "--print-config")
            return "train"
        self.mistakes.append(typed)
        if command == "record" and self._todo:
            is_run = _is_run(path_of_run(self._todo[0]))
            self._todo += ["--video", "video.gif"] if is_run else ["--record", "games.rec"]
            return "eval" if is_run else "play"
        if command in UNAVAILABLE:
            return command
        return COMMANDS_OF_OTHER_LIBRARIES.get(command) or nearest_name(typed, commands) or typed

    def _unavailable(self, template: str) -> str:
        names = [word for word in self._todo if not word.startswith("-") and "=" not in word]
        name = likely_name(names[0], Path.cwd()) or names[0] if names else "TreasureHunt"
        if "enn train" not in template:
            path = path_of_run(names[0]) if names else _newest_run(RUNS) or RUNS / "TreasureHunt-1"
            name = str(path)
        return template.format(shlex.quote(name), name=shlex.quote(Path(name).name))

    # Environments, runs and configurations.

    def _correct_name(self, word: str) -> None:
        is_first, self._is_first = self._is_first, False
        if self._is_script or not (is_first or self._command == "plot"):
            self._words.append(word)
        elif self._command in _OF_ENV:
            self._correct_env(word)
        elif self._command in _OF_RUN:
            self._correct_run(word)
        elif self._command == "checkpoints" and _is_run(path_of_run(word)):
            self._replace(word, "list", str(path_of_run(word)))
        elif self._command == "runs" and word == "list":
            self._replace(word)
        else:
            self._words.append(word)

    def _correct_env(self, word: str) -> None:
        path, is_training = path_of_run(word), self._command in ("train", "tune", "profile")
        if _is_run(path):
            self._command = _COMMAND_FOR_RUN.get(self._command, "watch")
            self._replace(word, str(path))
        elif is_training and self._is_config(word):
            self._replace(word, "--config", word)
        elif is_training and word.lower() in ALGORITHMS:
            self._is_first = True
            self._replace(word)
        elif self._command == "envs" and word == "list":
            self._replace(word)
        else:
            self._env = self._likely_env(word)
            self._words.append(self._env)

    def _is_config(self, word: str) -> bool:
        is_shipped = word in shipped_configs() and likely_name(word, Path.cwd()) is None
        return is_shipped or Path(word).suffix in _CONFIG_FILES

    def _likely_env(self, word: str) -> str:
        likely = None if word in ENV_REGISTRY else likely_name(word, Path.cwd())
        if likely in (None, word):
            return word
        self.mistakes += [word, *filter(None, word.split(":"))]
        return str(likely)

    def _correct_run(self, word: str) -> None:
        path = path_of_run(word)
        newest = None if _is_run(path) or self._command == "inspect" else _newest_run(path)
        if newest is not None:
            self._replace(word, str(newest))
        elif path.suffix == ".py" and (likely := likely_name(word, Path.cwd())):
            self._command = "envs" if self._command == "inspect" else self._command
            self._replace(word, likely)
        elif not path.exists() and likely_name(word, Path.cwd()):
            self._env = str(likely_name(word, Path.cwd()))
            self._replace(word, self._run_of_env())
        else:
            self._words.append(str(path))

    def _run_of_env(self) -> str:
        """Return the newest run of the environment, or the first one after a command to train."""
        newest = self._newest_run_of_env()
        if newest is None:
            newest = RUNS / f"{self._env_name}-1"
            self._around = f"enn train {shlex.quote(self._env)} && {{}}"
        return str(newest)

    @property
    def _env_name(self) -> str:
        """Name of the environment in the folders of its runs; see `new_run_dir`."""
        return re.sub(r"[^\w.-]+", "_", self._env.rpartition(":")[2])

    def _newest_run_of_env(self) -> Path | None:
        return _newest_run(RUNS, f"{self._env_name}-*")

    def _replace(self, word: str, *words: str) -> None:
        self.mistakes.append(word)
        self._words += words

    # Options and settings.

    def _correct_option(self, word: str) -> None:
        option, equals, value = word.partition("=")
        name, action = option.lstrip("-"), self._options.get(option)
        paths = self._paths(name)
        if action is not None and (action.nargs == 0 or equals):
            self._words.append(word)
        elif action is not None:
            values = [self._todo.pop(0)] if self._todo else []
            self._words += [option, *(map(self._likely_env, values) if name == "env" else values)]
        elif len(paths) == 1:
            value = self._value(name, paths[0], value if equals else None)
            value = self._likely_env(value) if paths == ["env.id"] else self._number(option, value)
            self._env = value if paths == ["env.id"] else self._env
            self._words += self._setting_words(option, paths[0], value)
        elif not self._translate(option, name, value if equals else None, is_option=True):
            names = [*self._options, *(f"--{path}" for path in self._settings_here())]
            names += [f"--{path.rpartition('.')[2]}" for path in self._settings_here()]
            nearest = nearest_name(option, names) if option.startswith("--") else None
            if nearest is None:
                self._words.append(word)
            else:
                self._replace(option, nearest.replace("_", "-") + equals + value)

    def _correct_assignment(self, name: str, value: str) -> None:
        option, paths = f"--{name.replace('_', '-')}", self._paths(name)
        if paths == [name]:
            corrected = self._likely_env(value) if name == "env.id" else self._number(name, value)
            self._env = corrected if name == "env.id" else self._env
            self._words.append(f"{name}={corrected}")
        elif option in self._options:
            self._replace(name, option, value)
        elif len(paths) == 1:
            self._replace(name, f"{paths[0]}={self._number(name, value)}")
        elif not self._translate(name, name, value, is_option=False):
            self._words.append(f"{name}={value}")

    def _translate(self, typed: str, name: str, value: str | None, is_option: bool) -> bool:
        """Append the words for a word of another library; return False for an unknown word."""
        word, path = word_of(name), setting_hint(name) if self._settings_here() else None
        template = OPTIONS_OF_OTHER_LIBRARIES.get(self._command, {}).get(word)
        if template is None and path is None:
            return False
        self.mistakes.append(typed)
        value = self._value(name, path, value)
        if template is None:
            assert path is not None
            self._append_setting(word, path, value, is_option)
        elif template == SETTINGS:
            while self._todo and re.match(r"\w+[:=]", self._todo[0]):
                value += f" {self._todo.pop(0)}"
            for setting, text in re.findall(r"(\w+)[:=](\S*)", value):
                self._correct_assignment(setting, text)
        elif template == TUNE:
            self._command = self._command if self._is_script else "tune"
        elif template.startswith("for "):
            self._around = template.format(value if value.isdecimal() else 3)
        elif value in ("latest", "true") and "{}" in template:
            self._words.append("--resume")
        else:
            self._words += [part.format(value) for part in template.split()]
        return True

    def _append_setting(self, word: str, path: str, value: str, is_option: bool) -> None:
        """Append a setting with the value that corresponds to a value of another library."""
        corresponding = VALUES_OF_OTHER_LIBRARIES.get(word, {}).get(value, value)
        if corresponding is None:
            return
        if path == "env.id":
            corresponding = self._env = self._likely_env(corresponding)
        corresponding = self._number(path, corresponding)
        option = f"--{'lr' if path == 'optim.lr' else path}".replace("_", "-")
        words = self._setting_words(option, path, corresponding)
        self._words += words if is_option else [f"{path}={corresponding}"]

    def _paths(self, name: str) -> list[str]:
        return matching_settings(name, self._settings_here())

    def _settings_here(self) -> dict[str, type]:
        return self._settings if self._command in _WITH_SETTINGS else {}

    def _setting_words(self, option: str, path: str, value: str) -> list[str]:
        is_on = self._settings[path] is bool and value == "true"
        return [option] if is_on else [option, value]

    def _value(self, name: str, path: str | None, value: str | None) -> str:
        """Return the value of an option, from the next word if it has none; "true" for a switch."""
        if value is not None:
            return value
        is_bool = path is not None and self._settings[path] is bool
        following = self._todo[0] if self._todo else "-"
        if word_of(name) in SWITCHES or (is_bool and word_of(name) not in WITH_VALUE):
            has_value = following.lower() in ("true", "false")
        else:
            has_value = not following.startswith("-")
        return self._todo.pop(0) if has_value else "true"

    def _number(self, typed: str, value: str) -> str:
        """Return a number such as 100k or 1.5M in digits, and other values unchanged."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM])", value)
        if match is None:
            return value
        self.mistakes.append(typed.lstrip("-"))
        return f"{float(match[1]) * {'k': 1e3, 'm': 1e6}[match[2].lower()]:.0f}"

    # What the line lacks.

    def _complete(self) -> None:
        """Add what the command requires, and remove what does not go together."""
        if self._command == "train" and "--resume" in self._words:
            self._resume()
        if self._is_first and self._command in _OF_RUN - {"inspect", "plot"}:
            self._add_run()
        if self._is_first and self._command in ("check", "play"):
            files = (likely_name(str(file), Path.cwd()) for file in Path().glob("*.py"))
            self.mistakes.append("ENV")
            self._words.insert(0, next(filter(None, files), "TreasureHunt"))
        if self._is_first and self._command == "checkpoints":
            self._replace("COMMAND", "list", str(_newest_run(RUNS) or "RUN"))
        if self._command == "tune":
            self._complete_search()
        evals = [word for word in self._words if re.match(r"(--)?eval\.", word)]
        needs_length = self._command == "train" and evals
        if needs_length and not any(re.search(r"\.(steps|episodes)", word) for word in evals):
            shipped = configs_of_world(self._env)
            if not any("eval" in read_file(path) for path in shipped[:1]):
                self._words += ["--eval.episodes", "32"]

    def _complete_search(self) -> None:
        """Add an environment, a range, evaluations, a metric and a number of trials."""
        self.mistakes += ["ranges", "--metric", "--trials"]
        if self._is_first:
            self._words.insert(0, "TreasureHunt")
        for start, words in SEARCH.items():
            is_searched = start == "optim.lr=" and any("=" in w and " " in w for w in self._words)
            if not is_searched and not any(word.startswith(start) for word in self._words):
                place = len(self._words) if start.startswith("--") else 1
                self._words[place:place] = words

    def _resume(self) -> None:
        """Replace `--resume` without a folder by a command that continues a run."""
        newest = self._newest_run_of_env() if self._env else _newest_run(RUNS)
        if "--checkpoint-dir" in self._words or (newest is None and not self._env):
            return
        self._words.remove("--resume")
        self.mistakes.append("--resume")
        if newest is None:
            first = str(RUNS / f"{self._env_name}-1")
            self._words += ["--checkpoint-dir", first, "--resume-or-start"]
        else:
            self._command, self._is_first = "resume", False
            self._words = [str(newest), *self._without_env()]

    def _add_run(self) -> None:
        """Add the newest run, of the environment of `--env` if there is one."""
        self.mistakes += ["RUN", "CHECKPOINT"]
        if "--env" in self._words[:-1]:
            self._env = self._words[self._words.index("--env") + 1]
            self._words = [self._run_of_env(), *self._without_env()]
        else:
            self._words.insert(0, str(_newest_run(RUNS) or "RUN"))

    def _without_env(self) -> list[str]:
        """Return the words without the environment, and without an option before it."""
        words = [word for word in self._words if word not in (self._env, f"env.id={self._env}")]
        return [word for word in words if word not in ("--env", "--env-id", "--env.id")]
