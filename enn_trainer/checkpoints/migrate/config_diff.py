"""Configuration changes of resumed runs and of runs whose environment changes."""

import dataclasses
import json
from collections.abc import Collection, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.base.tables import aligned
from enn_trainer.checkpoints.migrate.evolve_rules import Rules
from enn_trainer.config import TrainConfig
from enn_trainer.config.build import as_data
from enn_trainer.config.curriculum_config import lesson_changes, renamed_arguments
from enn_trainer.config.field_types import join_path
from enn_trainer.config.load import load_config
from enn_trainer.config.ppo_config import OptimizerConfig, PPOConfig
from enn_trainer.config.ron import in_one_line
from enn_trainer.config.schedules import as_written
from entity_env.spaces import GLOBAL, ObsSpace, Spaces

FROM_PYTHON = "the configuration passed from Python"
"""Source of such a configuration, for messages."""

_VALUE_HEAD = ("ppo.value_bins", "ppo.value_norm")
FIXED = ("net", "vf_net", *_VALUE_HEAD, "optim.name", "optim.kwargs")
"""Settings, or sections of settings, that a resumed run cannot change: they determine the shapes
and meaning of saved weights, value bins and optimizer moments."""

REPORTED = ("net.precision", "vf_net.precision")
"""Settings in `FIXED` sections that a resumed run may change, with a message, as they change
rounding."""

FREE = (
    # The split of the work, validation and the device have no effect on learning beyond rounding.
    *(
        "rollout.processes",
        "rollout.recover",
        "rollout.ray",
        "rollout.ray_resources",
        "rollout.ray_files",
        "rollout.ray_env",
        "eval.processes",
        "optim.micro_bs",
        "optim.max_entities",
        "scale.timeout_s",
    ),
    *("env.validate", "cuda", "cuda_empty_cache", "torch_deterministic"),
    # Limits of the run,
    *("total_timesteps", "max_train_time", "stop"),
    # trackers and folders,
    *("name", "trial", "data_dir", "track", "wandb_project_name", "wandb_entity"),
    "mlflow_tracking_uri",
    # recordings, saving and retention,
    *("capture_samples", "capture_logits", "capture_samples_subsample"),
    *(
        "eval.capture_videos",
        "eval.capture_replays",
        "eval.capture_samples",
        "eval.capture_logits",
        "eval.capture_samples_subsample",
    ),
    "checkpoint",
    # and the schedule of evaluations.
    *("eval.interval", "eval.run_on_first_step"),
    *("eval.ray", "eval.lag"),
)
"""Settings, or sections of settings, that a resumed run may change without a message."""

_FEATURES = ("position_features", "rotation_vec_features", "rotation_angle_feature")
# Names of features and types may change; the report lists changes of the outputs.
_FREE_NET_SETTINGS = (
    *("n_layer", "embd_pdrop", "resid_pdrop", "attn_pdrop", "precision"),
    *(*_FEATURES, "exclude_entities", "reference_entity"),
)


class SettingChange(NamedTuple):
    """Change of one setting between two configurations."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if self.path == "curricula":
            return f"curricula: {', '.join(lesson_changes(self.before, self.after))}"
        return f"{self.path} {one_line(self.before)} -> {one_line(self.after)}"


def changes(before: object, after: object, path: str = "") -> list[SettingChange]:
    """Return the settings that differ; a section that only one side has counts as one change."""
    if not dataclasses.is_dataclass(before) or type(before) is not type(after):
        same = as_written(before) == as_written(after)
        return [] if same else [SettingChange(path, before, after)]
    diff = []
    for field in dataclasses.fields(before):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if "json_text" in field.metadata and json.loads(old) == json.loads(new):
            continue
        diff += changes(old, new, join_path(path, field.name))
    return diff


def lines_not_default(config: TrainConfig) -> list[str]:
    """Return a table of the settings that differ from their defaults, as lines of text."""
    rows = [(change.path, one_line(change.after)) for change in not_default(config)]
    return ["", "settings that are not default", *aligned(rows)] if rows else []


def not_default(config: TrainConfig) -> list[SettingChange]:
    """Return the settings that differ from their defaults."""
    return changes(load_config(type(config), None), config)


def fixed_changes(diff: list[SettingChange]) -> list[SettingChange]:
    """Return the changes that are not allowed in a resumed run."""
    return [c for c in diff if _is_among(c.path, FIXED) and c.path not in REPORTED]


def keep_precision(config: TrainConfig, before: TrainConfig) -> list[str]:
    """Replace `precision="auto"` of the networks by the choice in an earlier configuration.

    Args:
        config: configuration to continue with, modified in place.
        before: configuration of the checkpoint.

    Returns:
        The sections that changed.
    """
    changed = []
    nets = {"net": (config.net, before.net), "vf_net": (config.vf_net, before.vf_net)}
    for name, (net, net_before) in nets.items():
        if net is not None and net_before is not None and net.precision == "auto":
            net.precision = net_before.precision
            changed.append(name)
    return changed


def reported_changes(diff: list[SettingChange]) -> list[SettingChange]:
    """Return the changes that affect learning or evaluation."""
    settled = (*FIXED, *FREE)
    return [c for c in diff if not _is_among(c.path, settled) or c.path in REPORTED]


def difference(diff: Sequence[SettingChange], start: Path | None) -> str:
    """Return the message about a configuration that a resumed run does not use, with a table.

    Args:
        diff: changes from the configuration of the run to the other one.
        start: the file of the other one; None if it was passed from Python.
    """
    name, title, where = f"{start}", "file", "on the command line"
    if start is None:
        name, title, where = FROM_PYTHON, "passed", "as settings"
    rows = [(change.path, one_line(change.before), one_line(change.after)) for change in diff]
    table = "\n  ".join(aligned([("field", "saved", title), *rows]))
    fields = ", ".join(change.path for change in diff)
    return f"{name} differs in {fields}\n  {table}\n  pass these {where} to change them"


def one_line(value: Any) -> str:
    """Format a setting on one line; a section shows only its non-default fields."""
    if not dataclasses.is_dataclass(value):
        return in_one_line(as_data(value))
    texts = []
    for field in dataclasses.fields(value):
        make, content = field.default_factory, getattr(value, field.name)
        if content != (field.default if make is dataclasses.MISSING else make()):
            texts.append(f"{field.name}: {one_line(content)}")
    return f"({', '.join(texts)})"


def _is_among(path: str, settings: Collection[str]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in settings)


def renamed_config(
    config: TrainConfig, rules: Rules, before: ObsSpace, spaces: Spaces
) -> TrainConfig:
    """Return a configuration with the new names of types, features, actions and arguments.

    Removed types are deleted from `exclude_entities` of the relative positions, and removed actions
    from `ppo.ent_targets`.

    Args:
        config: configuration of the checkpoint.
        rules: the renames.
        before: observation space of the checkpoint.
        spaces: the new spaces.

    Raises:
        ConfigError: a feature in a setting has different new names in different types.
    """
    config, (obs_space, action_space) = deepcopy(config), spaces

    # Features, entity types and the reference entity in the settings of both networks.
    feature_renames = _FeatureRenames(rules, before, obs_space)
    types = [*before.entities] or [GLOBAL]
    for name, net in (("net", config.net), ("vf_net", config.vf_net)):
        if net is None:
            continue
        relpos, translation = net.relpos_encoding, net.translation
        if relpos is not None:
            path = f"{name}.relpos_encoding"
            included = [one for one in types if one not in relpos.exclude_entities]
            placed = feature_renames.having(relpos.position_features, included)
            feature_renames.rename(relpos, _FEATURES, placed, path)
            excluded = [rules.new("type", one) for one in relpos.exclude_entities]
            relpos.exclude_entities = [n for n in excluded if n in (*obs_space.entities, GLOBAL)]
        if translation is not None:
            path, reference = f"{name}.translation", translation.reference_entity
            other_types = [one for one in types if one != reference]
            feature_renames.rename(translation, _FEATURES[:1], [reference, *other_types], path)
            feature_renames.rename(translation, _FEATURES[1:], [reference], path)
            translation.reference_entity = rules.new("type", reference)

    # Actions in the targets of the entropy.
    targets = {rules.new("action", name): share for name, share in config.ppo.ent_targets.items()}
    targets_left = {name: share for name, share in targets.items() if name in action_space}
    if targets and not targets_left:
        config.ppo.ent_target_lr = PPOConfig().ent_target_lr  # an error without targets
    config.ppo.ent_targets = targets_left
    if arguments := rules.arguments():
        renamed_arguments(config, arguments)
    return config


def check_same_network(old: TrainConfig, new: TrainConfig, parts: Collection[str]) -> None:
    """Raise if the network architecture differs from the checkpoint.

    Args:
        old: configuration of the checkpoint.
        new: configuration of the new run.
        parts: the `PARTS` to load from the checkpoint.

    Raises:
        CheckpointError: a setting of the architecture differs; the message names them all.
    """
    diff = changes(old.net, new.net, "net")
    if "value" in parts:
        diff += [c for c in changes(old.ppo, new.ppo, "ppo") if _is_among(c.path, _VALUE_HEAD)]
    if "value" in parts or (old.vf_net is None) != (new.vf_net is None):
        diff += changes(old.vf_net, new.vf_net, "vf_net")
    problems = [
        f"{path}: expected {one_line(before)} as in the checkpoint, got {one_line(after)}"
        for path, before, after in diff
        if not _may_change(path, before, after)
    ]
    if problems:
        raise CheckpointError(
            f"{'; '.join(problems)}; only names, dropout, precision and n_layer of a network can "
            "change"
        )


def _may_change(path: str, before: Any, after: Any) -> bool:
    """Return True if weights can be loaded after a change of a network setting."""
    name = path.rpartition(".")[2]
    if name == "position_features":
        return len(before) == len(after)
    return name in _FREE_NET_SETTINGS


def check_groups(optim: OptimizerConfig, names: Collection[str]) -> None:
    """Raise if the pattern of a parameter group matches no parameter of the upgraded network.

    Args:
        optim: optimizer settings of the new run.
        names: names of the parameters.

    Raises:
        ConfigError: a pattern matches nothing; the message names them all.
    """
    unfit = [g.pattern for g in optim.groups if not any(fnmatchcase(n, g.pattern) for n in names)]
    if unfit:
        raise ConfigError(
            f"optim.groups: expected patterns that match parameters of the upgraded network, "
            f"got {', '.join(unfit)}; patterns are not renamed, change them by --set "
            "optim.groups="
        )


class _FeatureRenames(NamedTuple):
    """Renaming of the features in settings, from the old environment to the new one."""

    rules: Rules
    before: ObsSpace
    now: ObsSpace

    def having(self, features: Sequence[str], types: Sequence[str]) -> list[str]:
        """Return the types that have all of these features in the old environment."""
        return [name for name in types if {*features} <= _features_of(self.before, name)]

    def rename(
        self, section: object, fields: Sequence[str], types: Sequence[str], path: str
    ) -> None:
        """Rename the features in some fields of a section, in place.

        Args:
            section: section of the configuration.
            fields: fields of the section with a feature, a list of features or None.
            types: entity types to look for the features in.
            path: path of the section, for messages.
        """
        for field in fields:
            value: str | list[str] | None = getattr(section, field)
            if value is None:
                continue
            features = [value] if isinstance(value, str) else value
            having = self.having(features, types)
            names = [self._name(feature, having, f"{path}.{field}") for feature in features]
            setattr(section, field, names[0] if isinstance(value, str) else names)

    def _name(self, feature: str, types: Sequence[str], path: str) -> str:
        names = {}
        for name in types:
            now = self.rules.new("type", name)
            has_it = name in self.before.entities and feature in self.before.entities[name].features
            new = self.rules.new(*(("feature", name, feature) if has_it else ("global", feature)))
            if now in (GLOBAL, *self.now.entities) and new in _features_of(self.now, now):
                names[name] = new
        if len({*names.values()}) > 1:
            each = ", ".join(f"{new} of {name}" for name, new in names.items())
            raise ConfigError(
                f"{path}: expected one new name for {feature}, got {each}; rename it in all of "
                "these types or in none"
            )
        return next(iter(names.values()), feature)


def _features_of(obs_space: ObsSpace, name: str) -> set[str]:
    """Return the features of an entity type, including global features."""
    local = obs_space.entities[name].features if name in obs_space.entities else []
    return {*obs_space.global_features, *local}
