"""A network of one's own is tried before time is spent on it, and each fault is named."""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from enn_trainer import AgentError, RogueNet, RogueNetConfig, check_agent, load_agent
from entity_env import ObsSpace
from entity_env.examples import ENV_REGISTRY
from rogue_net import EntityBatch, NetOutput
from tests.enn_trainer.builders import run_small
from tests.rogue_net.nets import ACTIONS, SPACE

ROOT = Path(__file__).parent.parent.parent


def rogue_net() -> RogueNet:
    return RogueNet(RogueNetConfig(d_model=8), SPACE, ACTIONS, {"value": 1})


def own_network() -> Any:
    """The example of the documentation."""
    spec = importlib.util.spec_from_file_location("own_network", ROOT / "docs/own_network.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", list(ENV_REGISTRY))
def test_rogue_net_passes_for_every_environment(name: str) -> None:
    env = ENV_REGISTRY[name]()
    net = RogueNet(RogueNetConfig(d_model=8), env.obs_space(), env.action_space(), {"value": 1})
    check_agent(net, env.obs_space(), env.action_space(), num_frames=8)


def test_the_checked_network_is_not_modified() -> None:
    net = rogue_net().train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    check_agent(net, SPACE, ACTIONS)
    assert net.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


class Changed(nn.Module):
    """A network whose answers are tampered with."""

    def __init__(self, change: Callable[..., NetOutput]) -> None:
        super().__init__()
        self.net = rogue_net()
        self.change = change
        self.register_buffer("calls", torch.zeros(()))

    def forward(
        self,
        batch: EntityBatch,
        actions: Mapping[str, Tensor] | None = None,
        uniforms: Mapping[str, Tensor] | None = None,
    ) -> Any:
        out = self.net(batch, actions=actions, uniforms=uniforms)
        return self.change(self, out, batch, actions)

    def values(self, batch: EntityBatch) -> dict[str, Tensor]:
        return self.net.values(batch)

    def update_input_stats(self, batch: EntityBatch) -> None:
        self.net.update_input_stats(batch)


def with_move(out: NetOutput, part: str, rows: Tensor) -> NetOutput:
    return out._replace(**{part: {**getattr(out, part), "move": rows}})


def counts_calls(self: Any, out: NetOutput, *_: Any) -> NetOutput:
    self.calls += 1
    return out


def draws(self: Any, out: NetOutput, *_: Any) -> NetOutput:
    torch.rand(1)
    return out


def allows_everything(self: Any, out: NetOutput, batch: EntityBatch, actions: Any) -> NetOutput:
    free = {n: replace(a, mask=None) for n, a in batch.actions.items()}
    return self.net(replace(batch, actions=free), actions=out.actions)  # type: ignore[no-any-return]


def looks_at_others(self: Any, out: NetOutput, batch: EntityBatch, *_: Any) -> NetOutput:
    value = out.values["value"] + batch.num_frames
    return out._replace(values={"value": value})


FAULTS: dict[str, tuple[Callable[..., Any], str]] = {
    "another type": (lambda s, out, *_: tuple(out), "forward: expected a NetOutput, got tuple"),
    "an action too few": (
        lambda s, out, *_: out._replace(entropies={"move": out.entropies["move"]}),
        r"entropies: expected the actions .*got \['move'\]",
    ),
    "flat values": (
        lambda s, out, *_: out._replace(values={"value": out.values["value"][:, 0]}),
        r"values\['value'\]: expected \(25, 1\) finite numbers",
    ),
    "values that are not numbers": (
        lambda s, out, *_: out._replace(values={"value": out.values["value"] / 0}),
        r"values\['value'\]: expected",
    ),
    "other values": (
        lambda s, out, *_: out._replace(values={"value": out.values["value"] + 1}),
        "values: expected the values of forward",
    ),
    "an actor too few": (
        lambda s, out, *_: with_move(out, "logprobs", out.logprobs["move"][1:]),
        r"logprobs\['move'\]: expected shape",
    ),
    "choices that are not integers": (
        lambda s, out, *_: with_move(out, "actions", out.actions["move"].int()),
        r"actions\['move'\]: expected int64",
    ),
    "a choice too many": (
        lambda s, out, *_: with_move(out, "log_probs", out.log_probs["move"].repeat(1, 2)),
        r"log_probs\['move'\]: expected shape",
    ),
    "no probabilities": (
        lambda s, out, *_: with_move(out, "log_probs", out.log_probs["move"] + 1),
        r"log_probs\['move'\]: expected probabilities that add up to 1",
    ),
    "masks ignored": (allows_everything, "expected probability 0 where the mask forbids"),
    "other logprobs": (
        lambda s, out, *_: with_move(out, "logprobs", out.logprobs["move"] - 1),
        r"logprobs\['move'\]: expected log-probabilities of the choices",
    ),
    "other entropies": (
        lambda s, out, *_: with_move(out, "entropies", out.entropies["move"] + 1),
        r"entropies\['move'\]: expected entropies of log_probs",
    ),
    "side effects": (counts_calls, r"expected no side effects, it changed \['calls'\]"),
    "randomness of its own": (draws, "it drew from torch's generator"),
    "frames mixed": (looks_at_others, "alone differs from that in a batch|the values of forward"),
    "no gradients": (
        lambda s, out, *_: out._replace(
            logprobs={n: p.detach() for n, p in out.logprobs.items()},
            entropies={n: p.detach() for n, p in out.entropies.items()},
            values={n: p.detach() for n, p in out.values.items()},
        ),
        "gradients: raised|expected gradients",
    ),
    "an exception": (lambda s, out, *_: 1 / 0, "outputs: raised ZeroDivisionError"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_reported(fault: str) -> None:
    change, message = FAULTS[fault]
    with pytest.raises(AgentError, match=message):
        check_agent(Changed(change), SPACE, ACTIONS)


def test_invalid_networks_are_refused() -> None:
    with pytest.raises(AgentError, match=r"expected a torch.nn.Module, got object"):
        check_agent(object(), SPACE, ACTIONS)  # type: ignore[arg-type]
    with pytest.raises(AgentError, match="values: expected a method"):
        check_agent(nn.Linear(1, 1), SPACE, ACTIONS)  # type: ignore[arg-type]


def test_state_outside_of_the_state_dict_is_found() -> None:
    class Forgets(Changed):
        offset = 0.0

        def values(self, batch: EntityBatch) -> dict[str, Tensor]:
            return {"value": self.net.values(batch)["value"] + self.net.calls}  # type: ignore[operator]

    net = Forgets(lambda s, out, b, a: out._replace(values=s.values(b)))
    net.net.register_buffer("calls", torch.ones(()), persistent=False)
    with torch.no_grad():
        net.net.calls = torch.tensor(2.0)
    check_agent(net, SPACE, ACTIONS)  # a constant that the class brings along is no state

    class Moves(Forgets):
        def update_input_stats(self, batch: EntityBatch) -> None:
            with torch.no_grad():
                next(self.net.parameters()).add_(1)

    moves = Moves(lambda s, out, b, a: out._replace(values=s.values(b)))
    moves.net.register_buffer("calls", torch.ones(()))
    with pytest.raises(AgentError, match="update_input_stats: expected it to leave parameters"):
        check_agent(moves, SPACE, ACTIONS)


def test_the_documented_network_is_checked_trained_resumed_and_acts(tmp_path: Path) -> None:
    module = own_network()
    env = module.MultiArmedBandit()
    network = module.Averages(env)
    check_agent(network, env.obs_space(), env.action_space())
    options: dict[str, Any] = {"env": module.MultiArmedBandit, "checkpoint_dir": tmp_path / "run"}
    run_small(tmp_path, "total_timesteps=48", agent=network, **options)
    resumed = run_small(tmp_path, agent=module.Averages(env), **options)
    assert resumed.state.step == 72
    acting = load_agent(tmp_path / "run", agent=module.Averages(env))
    assert set(acting.act(env.reset()).actions) == set(env.action_space())
    assert isinstance(acting.obs_space, ObsSpace)
