"""A value network of its own: what it is, what trains it, and that it comes back."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from enn_trainer import (
    CheckpointError,
    ConfigError,
    State,
    StateManager,
    load_agent,
    load_checkpoint,
)
from enn_trainer.algorithms.optimizers import value_network
from enn_trainer.checkpoints.state import make_network
from rogue_net import RogueNet, RogueNetConfig, RogueNetWithValueNet
from rogue_net.wiring import Wired
from tests.enn_trainer.builders import run_small
from tests.enn_trainer.resuming import assert_same, straight_and_resumed
from tests.enn_trainer.worlds import Meadow

APART = ["vf_net.d_model=12", "vf_net.n_head=3", "vf_net.n_layer=2"]


def weights(network: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in network.parameters()])


def ids(parameters: Any) -> list[int]:
    return sorted(id(parameter) for parameter in parameters)


def trained_by(optimizer: Any) -> list[int]:
    return ids(p for group in optimizer.param_groups for p in group["params"])


def assert_each_optimizer_trains_its_own(state: State) -> None:
    assert isinstance(state.agent, RogueNetWithValueNet)
    assert state.value_function is state.agent.value_function
    assert trained_by(state.optimizer) == ids(state.agent.policy.parameters())
    assert trained_by(state.vf_optimizer) == ids(state.value_function.parameters())
    assert state.agent.policy.config.d_model == 8
    assert state.agent.policy.config.n_layer == 1
    assert state.value_function.config.d_model == 12
    assert state.value_function.config.n_layer == 2


def test_value_network_is_found_in_a_network_wired_to_another_environment() -> None:
    world = Meadow()
    both = RogueNetWithValueNet(
        RogueNetConfig(), RogueNetConfig(d_model=16), world.obs_space(), world.action_space()
    )
    assert value_network(Wired(both, world.obs_space())) is both.value_function


@pytest.mark.slow
def test_value_network_has_its_own_size_and_optimizer_before_and_after_resume(
    tmp_path: Path,
) -> None:
    """The published trainer gave it the size of the policy; after a resume its optimizer held the
    policy's parameters, so that it was never trained again and the policy was stepped twice."""
    first = run_small(tmp_path, *APART, "total_timesteps=48", checkpoint_dir=tmp_path / "run")
    assert_each_optimizer_trains_its_own(first.state)
    saved = weights(first.state.value_function)
    assert_each_optimizer_trains_its_own(load_checkpoint(tmp_path / "run").state)
    resumed = run_small(tmp_path, checkpoint_dir=tmp_path / "run")
    assert_each_optimizer_trains_its_own(resumed.state)
    assert resumed.state.step == 72
    assert not torch.equal(weights(resumed.state.value_function), saved)


def test_without_vf_net_one_optimizer_trains_everything(tmp_path: Path) -> None:
    state = run_small(tmp_path, "total_timesteps=24").state
    assert isinstance(state.agent, RogueNet)
    assert (state.value_function, state.vf_optimizer) == (None, None)
    assert trained_by(state.optimizer) == ids(state.agent.parameters())


@pytest.mark.slow
def test_resumed_run_with_vf_net_equals_the_uninterrupted_run(tmp_path: Path) -> None:
    """Weights, statistics and the moments of both optimizers."""
    straight, resumed = straight_and_resumed(tmp_path, *APART, "optim.lr_warmup_steps=30")
    assert len(straight.optimizers()) == 2
    assert_same(straight, resumed)


@pytest.mark.slow
def test_policy_does_not_learn_from_the_value_loss_nor_the_other_way_round(tmp_path: Path) -> None:
    """In one update; the next one's advantages depend on the values."""
    one = ["total_timesteps=24", *APART]
    plain = run_small(tmp_path, *one).state
    other_values = run_small(tmp_path, *one, "ppo.vf_coef=0.01").state
    assert torch.equal(weights(plain.agent.policy), weights(other_values.agent.policy))
    assert not torch.equal(weights(plain.value_function), weights(other_values.value_function))
    other_policy = run_small(tmp_path, *one, "ppo.ent_coef=0.9", "ppo.clip_coef=0.001").state
    assert not torch.equal(weights(plain.agent.policy), weights(other_policy.agent.policy))
    # Value clipping has the same coefficient, and nothing to clip before the values moved.
    other_entropy = run_small(tmp_path, *one, "ppo.ent_coef=0.9").state
    assert torch.equal(weights(plain.value_function), weights(other_entropy.value_function))


@pytest.mark.slow
def test_gradients_are_clipped_and_reported_apart(tmp_path: Path) -> None:
    """A large value loss must not take away the policy's share of `max_grad_norm`."""

    def norms(*overrides: str) -> tuple[float, float]:
        state = run_small(tmp_path, "total_timesteps=24", *overrides).state
        events = EventAccumulator(str(tmp_path / "runs" / state.run_name))
        events.Reload()
        policy, values = (
            events.Scalars(f"losses/{name}")[-1].value for name in ("gradnorm", "vf_gradnorm")
        )
        return policy, values

    policy, values = norms(*APART)
    assert policy > 0
    assert values > 0
    # A very small step, so that the losses stay what they are and the norms scale with them.
    still = [*APART, "optim.lr=0.0000000001"]
    policy, values = norms(*still)
    same_policy, larger = norms(*still, "ppo.vf_coef=500")
    assert same_policy == pytest.approx(policy, rel=1e-4)
    assert larger == pytest.approx(1000 * values, rel=1e-4)
    assert norms()[1] == 0.0


def test_each_network_has_its_own_gradient_norm(tmp_path: Path) -> None:
    """A step of plain gradient descent is as long as the gradient after clipping."""
    settings = ["total_timesteps=24", "optim.name=SGD", "optim.lr=1", "optim.anneal_lr=false"]
    settings += ["optim.update_epochs=1", "optim.bs=24", "optim.max_grad_norm=0.0001", *APART]
    begun = run_small(tmp_path, *settings, "max_train_time=0").state.agent
    trained = run_small(tmp_path, *settings).state.agent
    for part in ("policy", "value_function"):
        step = weights(getattr(trained, part)).double() - weights(getattr(begun, part)).double()
        assert step.norm().item() == pytest.approx(0.0001, rel=1e-2), part


@pytest.mark.slow
def test_learning_rate_of_both_is_annealed_and_warmed_up(tmp_path: Path) -> None:
    for rates in (["optim.lr_warmup_steps=1000"], []):
        state = run_small(tmp_path, *APART, *rates).state
        (policy,) = {group["lr"] for group in state.optimizer.param_groups}
        assert state.vf_optimizer is not None
        assert {group["lr"] for group in state.vf_optimizer.param_groups} == {policy}
        assert 0 < policy < 0.001


@pytest.mark.slow
def test_loaded_agent_predicts_with_the_value_network(tmp_path: Path) -> None:
    settings = [*APART, "optim.lr=0.01", "ppo.value_norm=false"]
    trained = run_small(tmp_path, *settings, checkpoint_dir=tmp_path / "run").state.agent
    agent = load_agent(tmp_path / "run")
    env = Meadow()
    env.seed(3)
    observation = env.reset()
    _, value = agent.act(observation)
    assert torch.equal(weights(agent.agent), weights(trained))
    assert value != 0.0
    with torch.no_grad():
        for parameter in agent.agent.value_function.parameters():
            parameter.zero_()
    assert agent.act(observation).value == 0.0


@pytest.mark.slow
def test_agent_with_vf_net_is_evaluated_against_itself(tmp_path: Path) -> None:
    run_small(tmp_path, *APART, checkpoint_dir=tmp_path / "run")
    evaluation = ["eval.steps=4", "eval.interval=24", f'eval.opponent="{tmp_path / "run"}"']
    plain, evaluated = run_small(tmp_path, *APART), run_small(tmp_path, *APART, *evaluation)
    assert torch.equal(weights(plain.state.agent), weights(evaluated.state.agent))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (APART, ["vf_net.d_model=24"], "vf_net.d_model: expected 12 .* got 24"),
        ([], ["vf_net.d_model=12"], "vf_net: expected None .* got RogueNetConfig"),
        (APART, ["vf_net=None"], "vf_net: expected RogueNetConfig.* got None"),
    ],
)
def test_value_network_of_a_resumed_run_cannot_change(
    tmp_path: Path, before: list[str], after: list[str], message: str
) -> None:
    run_small(tmp_path, *before, checkpoint_dir=tmp_path / "run")
    with pytest.raises(CheckpointError, match=message) as error:
        run_small(tmp_path, *after, checkpoint_dir=tmp_path / "run")
    assert "\n" not in str(error.value)


def test_settings_of_vf_net_are_named_by_their_section(tmp_path: Path) -> None:
    translation = 'translation={"reference_entity": "Sun", "position_features": ["x"]}'
    for section in ("net", "vf_net"):
        with pytest.raises(ConfigError, match=f"^{section}: translation.reference_entity"):
            run_small(tmp_path, *APART, f"{section}.{translation}")


def test_vf_net_is_refused_with_a_custom_network(tmp_path: Path) -> None:
    env = Meadow()
    config = StateManager(overrides=APART).config
    mine = make_network(config, env.obs_space(), env.action_space())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^vf_net: a custom network"):
        run_small(tmp_path, *APART, agent=mine)
    state = run_small(tmp_path, agent=mine).state
    assert trained_by(state.vf_optimizer) == ids(state.value_function.parameters())
