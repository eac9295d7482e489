"""Initial weights: logits depend on the frame."""

from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from entity_env import (
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
)
from rogue_net import RogueNet, RogueNetConfig
from rogue_net.actions.heads import CategoricalHead
from rogue_net.ragged import EntityBatch
from tests.rogue_net.nets import batch_obs

SPACE = ObsSpace(entities={"Thing": Entity(["x", "y", "is_red"])})
ACTIONS = {"do": GlobalCategoricalActionSpace([str(i) for i in range(16)])}
SEEDS = range(3)
Init = Literal["published", "scaled"]


def frames() -> EntityBatch:
    """Frames that show different things to an actor that has no features."""
    rng = np.random.default_rng(0)
    things = [rng.normal(size=(rng.integers(10, 20), 3)) for _ in range(48)]
    actions = {"do": GlobalCategoricalActionMask()}
    observations = [Observation(entities={"Thing": rows}, actions=actions) for rows in things]
    return EntityBatch.of(batch_obs(observations, SPACE, ACTIONS))


def share(rows: Tensor) -> float:
    """Return the standard deviation over frames relative to the mean over frames."""
    mean = rows.mean(0)
    return float((rows - mean).square().sum(1).mean().sqrt() / mean.norm())


def shares_of_logits(init: Init, d_model: int, n_layer: int) -> float:
    """Return the mean share of the logits over some seeds."""
    batch, found = frames(), []
    for seed in SEEDS:
        torch.manual_seed(seed)
        config = RogueNetConfig(d_model=d_model, n_layer=n_layer, init=init)
        net = RogueNet(config, SPACE, ACTIONS)
        net.update_input_stats(batch)
        head = net.action_heads["/do"]
        assert isinstance(head, CategoricalHead)
        with torch.no_grad():
            x, layout = net.embed(batch)
            actors = batch.actions["do"].actors
            rows = x.index_select(0, layout.rows(actors.values, actors.frame_of_row()))
            found.append(share(head.project(rows)))
    return sum(found) / len(found)


@pytest.mark.slow
@pytest.mark.parametrize("n_layer", [1, 2, 4])
@pytest.mark.parametrize("d_model", [16, 32, 64, 128, 256])
def test_initial_logits_depend_on_the_frame_equally_at_every_width(
    d_model: int, n_layer: int
) -> None:
    assert 0.08 < shares_of_logits("scaled", d_model, n_layer) < 0.6


@pytest.mark.parametrize("d_model", [16, 32, 64])
def test_logits_of_published_initial_weights_hardly_depend_on_the_frame(d_model: int) -> None:
    """The control: narrow networks that start so give a choice up in all frames alike."""
    assert shares_of_logits("published", d_model, 2) < 0.02


def test_continuous_policy_begins_at_the_start_of_its_space() -> None:
    """A mask that narrows the range moves the start with it."""
    torch.manual_seed(0)
    bounds = {"gas": (0.0, 5.0), "bid": (-np.inf, np.inf)}
    space = ContinuousActionSpace(bounds, start={"gas": 1.0, "bid": -7.0})
    obs_space = ObsSpace(entities={"Car": Entity(["x"])})
    net = RogueNet(RogueNetConfig(d_model=16), obs_space, {"drive": space})
    mask = ContinuousActionMask(actor_types=["Car"], high=[[5.0, np.inf], [2.5, np.inf]])
    obs = Observation(entities={"Car": [[0.3], [-1.0]]}, actions={"drive": mask})
    batch = EntityBatch.of(batch_obs([obs], obs_space, {"drive": space}))
    with torch.no_grad():
        distribution = net(batch).distributions["drive"]
    values = distribution.to_env(distribution.mode())
    torch.testing.assert_close(values, torch.tensor([[1.0, -7.0], [0.5, -7.0]]), atol=0.1, rtol=0)
