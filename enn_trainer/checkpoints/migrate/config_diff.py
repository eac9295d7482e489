"""Changes of the configuration of a run: when it is resumed, and when its world changes."""

import dataclasses
import json
from collections.abc import Collection, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
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

_OF_VALUES = ("ppo.value_bins", "ppo.value_norm")
FIXED = ("net", "vf_net", *_OF_VALUES, "optim.name", "optim.kwargs")
"""Settings, or sections of them, that a resumed run must keep: the network whose weights, the bins
whose probabilities and the optimizer whose moments are saved."""

REPORTED = ("net.precision", "vf_net.precision")
"""Settings in `FIXED` sections that a resumed run may change, with a notice: it changes the
rounding of everything learnt."""

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
    # They set how far the resumed run goes,
    *("total_timesteps", "max_train_time", "stop"),
    # where metrics go,
    *("name", "trial", "data_dir", "track", "wandb_project_name", "wandb_entity"),
    "mlflow_tracking_uri",
    # what is recorded, and what is saved and kept,
    *("capture_samples", "capture_logits", "capture_samples_subsample"),
    *(
        "eval.capture_videos",
        "eval.capture_replays",
        "eval.capture_samples",
        "eval.capture_logits",
        "eval.capture_samples_subsample",
    ),
    "checkpoint",
    # and when evaluations run, not how.
    *("eval.interval", "eval.run_on_first_step"),
    *("eval.ray", "eval.lag"),
)
"""Settings, or sections of them, that a resumed run may change without notice."""

_FEATURES = ("position_features", "rotation_vec_features", "rotation_angle_feature")
# Names of the world may change; the report lists those that change the outputs of the network.
_FREE_OF_NET = (
    *("n_layer", "embd_pdrop", "resid_pdrop", "attn_pdrop", "precision"),
    *(*_FEATURES, "exclude_entities", "reference_entity"),
)


class Change(NamedTuple):
    """Difference of two configurations in one field."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if self.path == "curricula":
            return f"curricula: {', '.join(lesson_changes(self.before, self.after))}"
        return f"{self.path} {shown(self.before)} -> {shown(self.after)}"


def changes(before: object, after: object, path: str = "") -> list[Change]:
    """Return the fields that differ; a section that only one configuration has is one change."""
    if not dataclasses.is_dataclass(before) or type(before) is not type(after):
        return [] if as_written(before) == as_written(after) else [Change(path, before, after)]
    found = []
    for field in dataclasses.fields(before):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if "json_text" in field.metadata and json.loads(old) == json.loads(new):
            continue
        found += changes(old, new, join_path(path, field.name))
    return found


def lines_not_default(config: TrainConfig) -> list[str]:
    """Return lines of text about the settings that differ from their defaults."""
    rows = [(change.path, shown(change.after)) for change in not_default(config)]
    return ["", "settings that are not default", *aligned(rows)] if rows else []


def not_default(config: TrainConfig) -> list[Change]:
    """Return the settings that differ from their defaults."""
    return changes(load_config(type(config), None), config)


def fixed(found: list[Change]) -> list[Change]:
    """Return the changes that a resumed run cannot make."""
    return [c for c in found if _is_among(c.path, FIXED) and c.path not in REPORTED]


def worth_a_line(found: list[Change]) -> list[Change]:
    """Return the changes that affect how a resumed run learns or measures."""
    settled = (*FIXED, *FREE)
    return [c for c in found if not _is_among(c.path, settled) or c.path in REPORTED]


def shown(value: Any) -> str:
    """Return a value on one line, as in a file; a section with its non-default fields only."""
    if not dataclasses.is_dataclass(value):
        return in_one_line(as_data(value))
    texts = []
    for field in dataclasses.fields(value):
        make, own = field.default_factory, getattr(value, field.name)
        if own != (field.default if make is dataclasses.MISSING else make()):
            texts.append(f"{field.name}: {shown(own)}")
    return f"({', '.join(texts)})"


def _is_among(path: str, settings: Collection[str]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in settings)


def renamed_config(
    config: TrainConfig, rules: Rules, before: ObsSpace, spaces: Spaces
) -> TrainConfig:
    """Return a configuration with the new names of types, features, actions and arguments.

    Removed types leave `exclude_entities` of the relative positions, and removed actions leave
    `ppo.ent_targets`.

    Args:
        config: configuration of the save.
        rules: the renames.
        before: the observation space of the save.
        spaces: the new spaces.

    Raises:
        ConfigError: a feature in a setting has different new names in different types.
    """
    config, (obs_space, action_space) = deepcopy(config), spaces

    # Features, entity types and the reference entity in the settings of both networks.
    worlds = _Worlds(rules, before, obs_space)
    types = [*before.entities] or [GLOBAL]
    for name, net in (("net", config.net), ("vf_net", config.vf_net)):
        if net is None:
            continue
        relpos, translation = net.relpos_encoding, net.translation
        if relpos is not None:
            path = f"{name}.relpos_encoding"
            included = [one for one in types if one not in relpos.exclude_entities]
            placed = worlds.having(relpos.position_features, included)
            worlds.rename(relpos, _FEATURES, placed, path)
            excluded = [rules.new("type", one) for one in relpos.exclude_entities]
            relpos.exclude_entities = [n for n in excluded if n in (*obs_space.entities, GLOBAL)]
        if translation is not None:
            path, reference = f"{name}.translation", translation.reference_entity
            others = [one for one in types if one != reference]
            worlds.rename(translation, _FEATURES[:1], [reference, *others], path)
            worlds.rename(translation, _FEATURES[1:], [reference], path)
            translation.reference_entity = rules.new("type", reference)

    # Actions in the targets of the entropy.
    targets = {rules.new("action", name): share for name, share in config.ppo.ent_targets.items()}
    left = {name: share for name, share in targets.items() if name in action_space}
    if targets and not left:
        config.ppo.ent_target_lr = PPOConfig().ent_target_lr  # an error without targets
    config.ppo.ent_targets = left
    if arguments := rules.arguments():
        renamed_arguments(config, arguments)
    return config


def check_same_network(old: TrainConfig, new: TrainConfig, parts: Collection[str]) -> None:
    """Raise if the network architecture differs from that of the save.

    Args:
        old: configuration of the save.
        new: configuration of the new run.
        parts: the `PARTS` that are taken over from the save.

    Raises:
        CheckpointError: a setting of the architecture differs; the message names them all.
    """
    found = changes(old.net, new.net, "net")
    if "value" in parts:
        found += [c for c in changes(old.ppo, new.ppo, "ppo") if _is_among(c.path, _OF_VALUES)]
    if "value" in parts or (old.vf_net is None) != (new.vf_net is None):
        found += changes(old.vf_net, new.vf_net, "vf_net")
    problems = [
        f"{path}: expected {shown(was)} as in the save, got {shown(now)}"
        for path, was, now in found
        if not _may_change(path, was, now)
    ]
    if problems:
        raise CheckpointError(
            f"{'; '.join(problems)}; only the names, dropout, precision and n_layer of a network "
            "can change"
        )


def _may_change(path: str, was: Any, now: Any) -> bool:
    """Return True if the weights of a network fit after a change of one of its settings."""
    name = path.rpartition(".")[2]
    if name == "position_features":
        return len(was) == len(now)
    return name in _FREE_OF_NET


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
            f"optim.groups: expected patterns of parameters that exist in the changed world, "
            f"got {', '.join(unfit)}; patterns are not renamed, change them by --set "
            "optim.groups="
        )


class _Worlds(NamedTuple):
    """Renaming of the features that settings refer to, from the old world to the new one."""

    rules: Rules
    before: ObsSpace
    now: ObsSpace

    def having(self, features: Sequence[str], types: Sequence[str]) -> list[str]:
        """Return the types that had all of these features."""
        return [name for name in types if {*features} <= _features_of(self.before, name)]

    def rename(
        self, section: object, fields: Sequence[str], types: Sequence[str], path: str
    ) -> None:
        """Rename the features of settings by the renames of the types that had all of them."""
        for field in fields:
            value: str | list[str] | None = getattr(section, field)
            if value is None:
                continue
            features = [value] if isinstance(value, str) else value
            having = self.having(features, types)
            names = [self._name(feature, having, f"{path}.{field}") for feature in features]
            setattr(section, field, names[0] if isinstance(value, str) else names)

    def _name(self, feature: str, types: Sequence[str], path: str) -> str:
        found = {}
        for name in types:
            now = self.rules.new("type", name)
            own = name in self.before.entities and feature in self.before.entities[name].features
            new = self.rules.new(*(("feature", name, feature) if own else ("global", feature)))
            if now in (GLOBAL, *self.now.entities) and new in _features_of(self.now, now):
                found[name] = new
        if len({*found.values()}) > 1:
            each = ", ".join(f"{new} of {name}" for name, new in found.items())
            raise ConfigError(
                f"{path}: expected one name for {feature} in the changed world, got {each}; rename "
                "it in all of these types or in none"
            )
        return next(iter(found.values()), feature)


def _features_of(obs_space: ObsSpace, name: str) -> set[str]:
    """Return the features that rows of an entity type have, global ones included."""
    own = obs_space.entities[name].features if name in obs_space.entities else []
    return {*obs_space.global_features, *own}
