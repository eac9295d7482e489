"""The configuration of a run in another world: what may change, and what is called otherwise."""

import dataclasses
from collections.abc import Collection, Mapping
from copy import deepcopy

from enn_trainer.checkpoints.evolve_rules import Rules
from enn_trainer.config import TrainConfig
from enn_trainer.errors import CheckpointError
from entity_env.spaces import GLOBAL, ObsSpace
from rogue_net.rogue_net import RogueNetConfig

_FREE = ("n_layer", "embd_pdrop", "resid_pdrop", "attn_pdrop")
# Names of the world. Where they make another function, the report says so.
_NAMES = (
    *("position_features", "exclude_entities", "reference_entity"),
    *("rotation_vec_features", "rotation_angle_feature"),
)


def renamed_config(config: TrainConfig, rules: Rules, obs_space: ObsSpace) -> TrainConfig:
    """A configuration with the names of now, where they are those of types, features and actions.

    Features keep their names in it if types do not agree about the new one. Types that there are
    none of any more are no longer excluded from relative positions.

    Args:
        config: of the save.
        rules: say what is called otherwise.
        obs_space: the world of now.
    """
    config = deepcopy(config)
    features = _agreed(rules)
    for net in (config.net, config.vf_net):
        if net is None:
            continue
        for section in (net.relpos_encoding, net.translation):
            if section is None:
                continue
            for name in ("position_features", "rotation_vec_features"):
                own = getattr(section, name)
                setattr(section, name, own and [features.get(one, one) for one in own])
            angle = section.rotation_angle_feature
            section.rotation_angle_feature = angle and features.get(angle, angle)
        if net.relpos_encoding is not None:
            excluded = map(rules.type, net.relpos_encoding.exclude_entities)
            known = {*obs_space.entities, GLOBAL}
            net.relpos_encoding.exclude_entities = [name for name in excluded if name in known]
        if net.translation is not None:
            net.translation.reference_entity = rules.type(net.translation.reference_entity)
    config.ppo.ent_targets = {rules.action(n): x for n, x in config.ppo.ent_targets.items()}
    return config


def refuse_other_network(old: TrainConfig, new: TrainConfig, parts: Collection[str]) -> None:
    """Refuse a network that is made of other parts than that of the save.

    Args:
        old: of the save.
        new: of the run that is to begin.
        parts: which of `PARTS` are taken of the save.

    Raises:
        CheckpointError: names the settings.
    """
    problems = _problems("net", old.net, new.net)
    if "value" in parts:
        if old.ppo.value_bins != new.ppo.value_bins:
            problems.append(_changed("ppo.value_bins", old.ppo.value_bins, new.ppo.value_bins))
        if old.vf_net is not None and new.vf_net is not None:
            problems += _problems("vf_net", old.vf_net, new.vf_net)
    if (old.vf_net is None) != (new.vf_net is None):
        problems.append(_changed("vf_net", old.vf_net, new.vf_net))
    if problems:
        raise CheckpointError(
            f"{'; '.join(problems)}; of a network, only names, dropout and n_layer can change"
        )


def _problems(section: str, old: RogueNetConfig, new: RogueNetConfig) -> list[str]:
    problems = []
    for field in dataclasses.fields(old):
        before, after = getattr(old, field.name), getattr(new, field.name)
        path = f"{section}.{field.name}"
        if field.name in _FREE or before == after:
            continue
        if not dataclasses.is_dataclass(before) or not dataclasses.is_dataclass(after):
            problems.append(_changed(path, before, after))
            continue
        for inner in dataclasses.fields(before):
            one, other = getattr(before, inner.name), getattr(after, inner.name)
            count = inner.name == "position_features" and len(one) != len(other)
            if one != other and (count or inner.name not in _NAMES):
                problems.append(_changed(f"{path}.{inner.name}", one, other))
    return problems


def _changed(path: str, before: object, after: object) -> str:
    return f"{path}: expected {before!r} as in the save, got {after!r}"


def _agreed(rules: Rules) -> Mapping[str, str]:
    """The new names of features that all rules about a name agree about."""
    renamed: dict[str, set[str]] = {}
    for name, new in rules.renamed.items():
        if name[0] in ("feature", "global"):
            renamed.setdefault(name[-1], set()).add(new)
    return {old: next(iter(new)) for old, new in renamed.items() if len(new) == 1}
