"""Settings of a network follow the features that they name."""

from typing import Any

import pytest

from enn_trainer import RelposEncodingConfig, RogueNetConfig, TrainConfig, TranslationConfig
from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.checkpoints.migrate.config_diff import check_same_network, renamed_config
from enn_trainer.checkpoints.migrate.evolve_rules import PARTS, Rules
from enn_trainer.config import EnvConfig, OptimizerConfig, PPOConfig, RolloutConfig
from entity_env import Entity, ObsSpace
from entity_env.spaces import Spaces

SPACE = ObsSpace(
    [],
    {
        "Rock": Entity(["x", "y"]),
        "Unit": Entity(["x", "y", "turn"]),
        "Sign": Entity(["x", "text"]),
        "Sky": Entity(["x", "y"]),
    },
)


def config_of(**options: Any) -> TrainConfig:
    net = RogueNetConfig(**options)
    return TrainConfig(EnvConfig(), net, OptimizerConfig(), PPOConfig(), RolloutConfig())


def now(*renames: tuple[str, str, str], without: tuple[str, ...] = ()) -> tuple[Rules, ObsSpace]:
    rules = Rules({("feature", name, old): new for name, old, new in renames})
    space, _ = rules.spaces(Spaces(SPACE, {}))
    types = {name: one for name, one in space.entities.items() if name not in without}
    return rules, ObsSpace([], types)


def relpos_now(*renames: tuple[str, str, str], without: tuple[str, ...] = ()) -> list[str]:
    relpos = RelposEncodingConfig([2, 2], ["x", "y"], exclude_entities=["Sky"])
    rules, space = now(*renames, without=without)
    renamed = renamed_config(config_of(relpos_encoding=relpos), rules, SPACE, Spaces(space, {}))
    assert renamed.net.relpos_encoding is not None
    return renamed.net.relpos_encoding.position_features


def test_features_of_positions_are_renamed_where_all_types_that_have_a_position_agree() -> None:
    """Types that are excluded, have no position or are gone do not count."""
    both = ("Rock", "x", "px"), ("Unit", "x", "px")
    assert relpos_now(*both) == ["px", "y"]
    assert relpos_now(("Sky", "x", "px"), ("Sign", "x", "px")) == ["x", "y"]
    assert relpos_now(("Rock", "x", "px"), without=("Unit",)) == ["px", "y"]


def test_features_of_positions_that_types_disagree_about_are_refused() -> None:
    """Else the types that keep the old name would lose their positions without a word."""
    with pytest.raises(ConfigError) as error:
        relpos_now(("Rock", "x", "px"))
    message = str(error.value)
    assert message.startswith("net.relpos_encoding.position_features: expected one new name for x")
    assert "got px of Rock, x of Unit" in message


def test_translation_follows_its_reference() -> None:
    translation = TranslationConfig("Unit", ["x", "y"], rotation_angle_feature="turn")
    rules, space = now(
        *(("Unit", "turn", "angle"), ("Unit", "x", "px"), ("Rock", "x", "px"), ("Sky", "x", "px"))
    )
    renamed = renamed_config(config_of(translation=translation), rules, SPACE, Spaces(space, {}))
    assert renamed.net.translation is not None
    assert renamed.net.translation.position_features == ["px", "y"]
    assert renamed.net.translation.rotation_angle_feature == "angle"
    rules, space = now(("Rock", "x", "px"))
    with pytest.raises(ConfigError, match=r"net\.translation\.pos.* got x of Unit, px of Rock"):
        renamed_config(config_of(translation=translation), rules, SPACE, Spaces(space, {}))


def test_fixed_section_is_shown_in_ron() -> None:
    relpos = RelposEncodingConfig([2, 2], ["x", "y"])
    with pytest.raises(CheckpointError) as error:
        check_same_network(config_of(), config_of(relpos_encoding=relpos), PARTS)
    assert 'got (extent: [2, 2], position_features: ["x", "y"])' in str(error.value)
