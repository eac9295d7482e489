"""Runs with numbers and dependent actions: workers, saves, memory, agents, upgrades."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_trainer import (
    ConfigError,
    StateManager,
    TrainConfig,
    Trainer,
    load_agent,
    load_checkpoint,
    train,
)
from enn_trainer.check_agent import check_agent
from enn_trainer.checkpoints.migrate.evolve_rules import PARTS, Rules
from enn_trainer.checkpoints.migrate.evolve_tensors import function_changes, upgrade_tensors
from enn_trainer.checkpoints.saved_state import dump_spaces, read_spaces
from enn_trainer.config import ron
from entity_env import (
    Bot,
    CategoricalActionSpace,
    ContinuousAction,
    ContinuousActionSpace,
    EnvList,
    GlobalContinuousAction,
    InvalidAction,
    check_env,
)
from entity_env.actions import CategoricalAction
from entity_env.ragged import Ragged
from entity_env.spaces import Spaces
from entity_env.testing.random_play import random_choices
from rogue_net import RogueNet, RogueNetConfig
from rogue_net.actions.parts import joint
from rogue_net.ragged import EntityBatch
from rogue_net.space_diff import diff_spaces
from rogue_net.wiring import Wired
from tests.enn_trainer.builders import run_small, weights
from tests.enn_trainer.chains_world import Camp
from tests.enn_trainer.numbers_world import Targets
from tests.enn_trainer.resuming import assert_same, assert_same_clocks, go

SETTINGS = [
    *("rollout.num_envs=4", "rollout.steps=3", "rollout.processes=1", "optim.bs=6"),
    *("net.d_model=8", "net.n_layer=1", "total_timesteps=24"),
]
SPACES = Spaces.of(Targets())


def network(seed: int = 0, action_space: Any = None, **settings: Any) -> RogueNet:
    torch.manual_seed(seed)
    config = RogueNetConfig(d_model=8, n_layer=1, **settings)
    return RogueNet(config, SPACES[0], action_space or SPACES[1], {"value": 1})


def some_batch(envs: int = 5) -> EntityBatch:
    world = EnvList(Targets, envs)
    world.seed(0)
    return EntityBatch.of(world.reset(world.obs_space()))


def test_the_test_environment_is_correct() -> None:
    assert not check_env(Targets).problems


@pytest.mark.parametrize("memory", ["None", '(inputs: ["action", "reward"])'])
def test_a_network_with_continuous_actions_conforms(memory: str) -> None:
    config = TrainConfig(net=RogueNetConfig(d_model=8, n_layer=1))
    net = network(memory=StateManager(overrides=[f"net.memory={memory}"]).config.net.memory)
    check_agent(net, *SPACES)
    assert config.net.init_std == 1.0


def test_standard_deviations_start_at_the_setting_within_limits() -> None:
    for std in (0.05, 1.0, 1.9):
        net = network(init_std=std)
        found = net(some_batch()).distribution("aim")
        torch.testing.assert_close(found.log_std.exp(), torch.full_like(found.log_std, std))
        with torch.no_grad():
            net.action_heads["/aim"].deviation.bias.fill_(1e9)
        found = net(some_batch()).distribution("aim")
        torch.testing.assert_close(found.log_std.exp()[0], torch.tensor([2.0, 10.0]))
        assert found.mode().abs().max() < 0.1


@pytest.mark.parametrize("std", ["0", "0.01", "2", "nan", "-1"])
def test_standard_deviation_beyond_its_limits_is_refused(std: str) -> None:
    manager = StateManager(overrides=[f"net.init_std={std}"])
    with pytest.raises(ConfigError, match="init_std: expected"):
        assert manager.config


@pytest.mark.slow
@pytest.mark.parametrize("world", [Targets, Camp])
def test_a_run_does_not_depend_on_workers_or_microbatches(tmp_path: Path, world: Any) -> None:
    alone = run_small(tmp_path, env=world)
    assert torch.equal(
        weights(alone), weights(run_small(tmp_path, "rollout.processes=2", env=world))
    )
    pieces = run_small(tmp_path, "optim.micro_bs=2", env=world)
    torch.testing.assert_close(weights(alone), weights(pieces), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "more"),
    [
        (Targets, ()),
        (Targets, ('net.memory=(inputs: ["action", "reward"])',)),
        (Targets, ("ppo.ent_targets={call: 0.5}",)),
        (Camp, ()),
        (Camp, ('net.memory=(inputs: ["action", "reward"])',)),
    ],
)
def test_a_resumed_run_with_continuous_actions_continues_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: Any, more: tuple[str, ...]
) -> None:
    monkeypatch.setattr("enn_trainer.tracking.track._new_run_name", lambda runs, config: "it")
    go(tmp_path / "one", world, *SETTINGS, *more)
    go(tmp_path / "other", world, *SETTINGS, *more, stops=0)
    go(tmp_path / "other", world, *SETTINGS, *more)
    one, other = (load_checkpoint(tmp_path / name / "run").state for name in ("one", "other"))
    assert_same(one, other)
    assert_same_clocks(one, other)
    assert one.action_space == world().action_space()
    agent, game = load_agent(tmp_path / "one/run"), world()
    game.seed(3)
    obs = game.reset()
    while not obs.done:
        obs = game.act(agent.act(obs).actions)  # which checks bounds, and who takes what


def test_a_custom_program_may_choose_any_values_within_the_bounds() -> None:
    envs = EnvList(Targets, 3)
    envs.seed(1)
    obs = envs.reset(envs.obs_space())
    choices = random_choices(obs, envs.action_space(), np.random.default_rng(0))
    values = choices["aim"].values.copy()
    for wrong, message in (
        (1.5, r"x=1.5, which is not from .*, in environment 0, by the entity at position 0"),
        (np.nan, "x=nan, which is not from"),
    ):
        values[0, 0] = wrong
        with pytest.raises(InvalidAction, match=message):
            envs.act(choices | {"aim": Ragged(values, choices["aim"].lengths)}, envs.obs_space())
    wrong_shape = choices | {"aim": Ragged(values[:, :1], choices["aim"].lengths)}
    with pytest.raises(InvalidAction, match=r"expected numbers of the shape \(actors, 2\)"):
        envs.act(wrong_shape, envs.obs_space())


class Archer(Bot):
    """Aims at the places that it sees."""

    def act(self, observation: Any) -> dict[str, Any]:
        mask = observation.actions["aim"]
        places = np.asarray(observation.features["Archer"])[:, 0]
        x = np.clip(places, mask.low[:, 0], mask.high[:, 0])
        values = np.stack([x, places], axis=1).astype(np.float32)
        count = len(places)
        return {
            "aim": ContinuousAction(mask.actor_ids, values[:, ::-1], ["free", "x"]),
            "call": CategoricalAction(mask.actor_ids, np.zeros(count, int), ["left", "right"]),
            "mean": GlobalContinuousAction(np.float32([5 * (1 + places.mean())]), ["m"]),
        }


def test_entropy_target_of_unbounded_actions_is_refused(tmp_path: Path) -> None:
    manager = StateManager(overrides=[*SETTINGS, "ppo.ent_targets={aim: 0.5}"])
    with pytest.raises(ConfigError, match="aim: expected labels, entities or numbers with bounds"):
        train(manager, Targets)
    run_small(tmp_path, "ppo.ent_targets={mean: 0.5}", env=Targets)


def last_metrics(folder: Path, world: Any) -> dict[str, float]:
    """Return the metrics of the last update of a small run."""
    with Trainer(StateManager(overrides=[*SETTINGS, f"data_dir={folder}"]), world) as trainer:
        trainer.run()
        return dict(trainer.metrics)


def test_statistics_show_mean_deviation_and_bounds(tmp_path: Path) -> None:
    tags = last_metrics(tmp_path, Targets)
    assert -1 <= tags["actions/aim/x.mean"] <= 1
    assert 0 < tags["actions/aim/x.std"] <= 1
    assert 0 <= tags["actions/aim/x.at_bound"] <= 1
    assert 0 <= tags["actions/mean/m.mean"] <= 10
    assert "actions/aim/free.at_bound" not in tags
    assert 0 < tags["policy/mean/normalised_entropy"] <= 1
    assert "policy/aim/normalised_entropy" not in tags
    assert math.isfinite(tags["policy/aim/entropy"])


# -- Other spaces ----------------------------------------------------------------------------------


SWAPPED = dict(SPACES[1]) | {
    "aim": ContinuousActionSpace({"free": (-math.inf, math.inf), "x": (-1.0, 1.0)})
}


def test_components_in_another_order_are_matched_by_name() -> None:
    net, batch = network(), some_batch()
    wired = Wired(net, SPACES[0], SWAPPED)
    action = batch.actions["aim"]
    assert action.bounds is not None
    bounds = replace(action.bounds, values=action.bounds.values[:, :, [1, 0]])
    swapped = replace(batch, actions=dict(batch.actions) | {"aim": replace(action, bounds=bounds)})
    uniforms = {
        "aim": torch.rand(len(action.actors.values), 2),
        "call": torch.rand(len(batch.actions["call"].actors.values)),
        "mean": torch.rand(batch.num_frames),
    }
    own = net(batch, uniforms=uniforms)
    turned = uniforms | {"aim": uniforms["aim"][:, [1, 0]]}
    other = wired(swapped, uniforms=turned)
    torch.testing.assert_close(other.actions["aim"][:, [1, 0]], own.actions["aim"])
    torch.testing.assert_close(other.logprobs["aim"], own.logprobs["aim"])


def test_upgrades_match_components_by_name_and_centre_new_ones() -> None:
    wider = dict(SWAPPED) | {
        "aim": ContinuousActionSpace(
            {"free": (-math.inf, math.inf), "y": (0.0, 4.0), "x": (-2.0, 2.0)}
        )
    }
    old, fresh = network(1), network(2, wider, init_std=0.5)
    with torch.no_grad():
        for parameter in old.action_heads["/aim"].parameters():
            parameter.normal_()
    moved = upgrade_tensors(old, fresh, Rules({}, 0.1), PARTS).tensors
    was = old.state_dict()
    for layer in ("mean", "deviation"):
        for part in ("weight", "bias"):
            key = f"action_heads./aim.{layer}.{part}"
            assert torch.equal(moved[key][[2, 0]], was[key])
    assert not moved["action_heads./aim.mean.weight"][1].any()
    assert moved["action_heads./aim.mean.bias"][1] == 0
    fresh.load_state_dict(moved)
    diff = diff_spaces(SPACES, SPACES._replace(action_space=wider))
    assert diff.changed == ["components of aim: added ['y']"]
    assert diff.bounds == ["bounds of aim: x changed from (-1.0, 1.0) to (-2.0, 2.0)"]
    assert diff.reordered_labels == ["components of aim: reordered ['x', 'free'] to ['free', 'x']"]


def test_continuous_spaces_round_trip_as_text() -> None:
    started = ContinuousActionSpace({"x": (0, 5), "free": (-np.inf, np.inf)}, start={"x": 1.5})
    spaces = SPACES._replace(action_space={**SPACES.action_space, "started": started})
    text = ron.dumps(ron.Struct("Spaces", dump_spaces(spaces)))
    loaded = read_spaces(ron.loads(text))
    assert loaded == spaces
    assert loaded.action_space["started"].initial_value("x") == 1.5
    assert "start" not in ron.dumps(ron.Struct("Spaces", dump_spaces(SPACES)))


# -- Dependent actions -----------------------------------------------------------------------------


CAMP = Spaces.of(Camp())


@pytest.mark.slow
def test_dependent_actions_train_with_every_weighting(tmp_path: Path) -> None:
    run_small(tmp_path, "ppo.ratio=frame", "ppo.weight_by=frame", env=Camp)
    run_small(tmp_path, "ppo.ent_targets={whom: 0.5, do: 0.5}", env=Camp)
    run_small(tmp_path, "ppo.magnet=(coef: 0.1, every: 20)", env=Camp)


def test_the_ratio_of_dependent_actions_is_a_product(tmp_path: Path) -> None:
    envs = EnvList(Camp, 8)
    envs.seed(0)
    batch = EntityBatch.of(envs.reset(CAMP[0]))
    torch.manual_seed(0)
    net = RogueNet(RogueNetConfig(d_model=8), *CAMP, {"value": 1})
    out = net(batch, generator=torch.Generator().manual_seed(0))
    totals = joint(out.logprobs, batch.actions)
    assert totals.keys() == {"do", "trade"}
    do = batch.actions["do"].actors
    frame_of_do, position = do.frame_of_row(), do.values.tolist()
    expected = out.logprobs["do"].clone()
    for name in ("whom", "force", "shout"):
        action = batch.actions[name].actors
        for row, (frame, place) in enumerate(
            zip(action.frame_of_row(), action.values.tolist(), strict=True)
        ):
            [at] = [
                k
                for k, (f, p) in enumerate(zip(frame_of_do, position, strict=True))
                if (f, p) == (frame, place)
            ]
            expected[at] += out.logprobs[name][row]
    torch.testing.assert_close(totals["do"], expected)


def test_upgrades_of_dependent_actions_follow_names() -> None:
    renamed = {
        ("action", "do"): "task",
        ("label", "do", "heal"): "cure",
    }
    rules = Rules(renamed, 0.1)
    spaces = rules.spaces(CAMP)
    assert spaces[1]["whom"].after == "task"
    assert spaces[1]["whom"].when == ["cure", "attack"]
    assert spaces[1]["shout"].after == "whom"
    torch.manual_seed(0)
    old = RogueNet(RogueNetConfig(d_model=8), *CAMP, {"value": 1})
    with torch.no_grad():
        for parameter in old.parameters():
            parameter.normal_()
    now = dict(spaces[1])
    now["task"] = CategoricalActionSpace(["attack", "sing", "cure", "rest"])
    fresh = RogueNet(RogueNetConfig(d_model=8), CAMP[0], now, {"value": 1})
    moved = upgrade_tensors(old, fresh, rules, PARTS).tensors
    was = old.state_dict()["action_heads./whom.after.weight"]  # rest, heal, attack
    is_now = moved["action_heads./whom.after.weight"]
    assert torch.equal(is_now[[3, 2, 0]], was)
    assert not is_now[1].any()
    key = "action_heads./shout.after.weight"
    assert torch.equal(moved[key], old.state_dict()[key])
    assert not function_changes(old, fresh, rules)
    # An action that is added with `after` leaves the answers of the others as they were.
    less = {name: space for name, space in CAMP[1].items() if name != "price"}
    smaller = RogueNet(RogueNetConfig(d_model=8), CAMP[0], less, {"value": 1})
    whole = RogueNet(RogueNetConfig(d_model=8), *CAMP, {"value": 1})
    whole.load_state_dict(upgrade_tensors(smaller, whole, Rules(), PARTS).tensors)
    envs = EnvList(Camp, 4)
    envs.seed(0)
    batch = EntityBatch.of(envs.reset(CAMP[0]))
    one, other = smaller(batch), whole(batch)
    for name in less:
        torch.testing.assert_close(one.logprobs[name], other.logprobs[name], rtol=0, atol=0)
    # Another `after` changes the answers.
    changed = dict(CAMP[1]) | {"shout": CategoricalActionSpace(["hey", "ho", "ha"], after="do")}
    third = RogueNet(RogueNetConfig(d_model=8), CAMP[0], changed, {"value": 1})
    assert function_changes(old, third, Rules()) == [
        "action shout: after was whom (any), is now do (any)"
    ]
    assert "action shout: after changed from" in str(
        diff_spaces(CAMP, CAMP._replace(action_space=changed))
    )


def test_dependent_action_spaces_round_trip_as_text() -> None:
    text = ron.dumps(ron.Struct("Spaces", dump_spaces(CAMP)))
    assert read_spaces(ron.loads(text)) == CAMP


def test_statistics_show_the_share_of_active_actors(tmp_path: Path) -> None:
    tags = last_metrics(tmp_path, Camp)
    assert 0 < tags["policy/whom/taken"] < 1
    assert "policy/do/taken" not in tags
    shares = [tags[f"actions/do/{label}"] for label in ("rest", "heal", "attack")]
    assert sum(shares) == pytest.approx(1)
