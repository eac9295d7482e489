"""Dependent actions: joint probabilities against an enumeration of all outcomes."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from enn_trainer.check_agent import check_agent
from entity_env import (
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousActionMask,
    ContinuousActionSpace,
    EnvList,
    Observation,
)
from rogue_net import RogueNet, RogueNetConfig
from rogue_net.actions.heads import HEADS
from rogue_net.actions.parts import joint, mask_given_parent, parent_rows, parents_first
from rogue_net.config import MemoryConfig
from rogue_net.native import backend
from rogue_net.ragged import EntityBatch
from tests.enn_trainer.chains_world import Camp
from tests.rogue_net.actions.chains_case import ACTIONS, FRAME, SPACE, batch_of, network


def outcomes(actor: int) -> list[dict[str, int]]:
    """Return all decisions that an actor may make, with -1 for parts that are not taken."""
    do_mask: Any = FRAME.actions["do"].mask  # type: ignore[attr-defined]
    whom_mask: Any = FRAME.actions["whom"].mask  # type: ignore[attr-defined]
    how_mask: Any = FRAME.actions["how"].mask  # type: ignore[attr-defined]
    found = []
    for do in np.flatnonzero(do_mask[actor]).tolist():
        if do == 0:
            found.append({"do": 0, "whom": -1, "how": -1, "pace": -1})
        elif do == 3:
            found += [{"do": 3, "whom": -1, "how": -1, "pace": pace} for pace in (0, 1)]
        else:
            whom = np.flatnonzero(whom_mask[actor][do - 1]).tolist()
            how = np.flatnonzero(how_mask[actor]).tolist()
            found += [
                {"do": do, "whom": one, "how": other, "pace": -1}
                for one, other in product(whom, how)
            ]
    return found


def tensors_of(decisions: list[dict[str, int]], batch: EntityBatch) -> dict[str, Tensor]:
    """Return the choices of two actors as a network takes them."""
    return {
        name: torch.tensor([decisions[k][name] for k in action.actors.values.tolist()])
        for name, action in batch.actions.items()
    }


def log_probs(net: RogueNet, batch: EntityBatch, chosen: Mapping[str, Tensor]) -> Tensor:
    with torch.no_grad():
        out = net(batch, actions=chosen)
    return joint(out.logprobs, batch.actions)["do"]


def test_joint_probabilities_sum_to_one_and_give_the_joint_entropy() -> None:
    net, batch = network().double(), batch_of(FRAME)
    features = {
        name: replace(rows, values=rows.values.double()) for name, rows in batch.features.items()
    }
    batch = replace(batch, features=features)
    other = outcomes(1)[0]
    for actor in (0, 1):
        whole, mean = [], []
        for decision in outcomes(actor):
            both = [decision, other] if actor == 0 else [outcomes(0)[0], decision]
            chosen = tensors_of(both, batch)
            with torch.no_grad():
                out = net(batch, actions=chosen)
            whole.append(joint(out.logprobs, batch.actions)["do"][actor])
            mean.append(joint(out.entropies, batch.actions)["do"][actor])
        p = torch.stack(whole).exp()
        assert p.sum().item() == pytest.approx(1, abs=1e-6)
        # H(whole) = E[sum of the entropies of parts, given those before]
        expected = -(p * p.log()).sum()
        torch.testing.assert_close((p * torch.stack(mean)).sum(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_samples_are_legal_and_match_the_probabilities() -> None:
    net, n = network(), 4000
    batch = batch_of(*[FRAME] * n)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        out = net(batch, generator=generator)
    judged = net(batch, actions=out.actions)
    rows = {name: out.actions[name].new_full((2 * n,), -1) for name in batch.actions}
    for name, action in batch.actions.items():
        actor = 2 * torch.from_numpy(action.actors.frame_of_row()) + action.actors.values
        rows[name][actor] = out.actions[name]
        torch.testing.assert_close(judged.logprobs[name], out.logprobs[name], rtol=0, atol=1e-6)
    for actor in (0, 1):
        counts = {tuple(sorted(one.items())): 0 for one in outcomes(actor)}
        for frame in range(n):
            decision = {name: int(rows[name][2 * frame + actor]) for name in rows}
            counts[tuple(sorted(decision.items()))] += 1  # KeyError: an illegal one
        both = [dict(key) for key in counts]
        for decision, count in zip(both, counts.values(), strict=True):
            pair = [decision, outcomes(1)[0]] if actor == 0 else [outcomes(0)[0], decision]
            alone = batch_of(FRAME)
            p = log_probs(net, alone, tensors_of(pair, alone))[actor].exp().item()
            assert abs(count / n - p) < 4 * (p * (1 - p) / n) ** 0.5 + 1e-9


def test_single_frames_give_the_output_of_the_batch() -> None:
    net = network()
    envs = EnvList(Camp, 6)
    envs.seed(2)
    spaces = envs.obs_space(), envs.action_space()
    camp = network(*spaces)
    batch = EntityBatch.of(envs.reset(spaces[0]))
    uniforms = {
        name: torch.rand(len(a.actors.values), a.num_draws).squeeze(1)
        for name, a in batch.actions.items()
    }
    with torch.no_grad():
        together = camp(batch, uniforms=uniforms)
    for i in range(6):
        alone = batch.take(np.array([i]))
        by_rank = {}
        for name, action in batch.actions.items():
            first = int(action.actors.starts[i])
            by_rank[name] = uniforms[name][first : first + int(action.actors.lengths[i])]
        with torch.no_grad():
            out = camp(alone, uniforms=by_rank)
        for name, action in batch.actions.items():
            first = int(action.actors.starts[i])
            rows = slice(first, first + int(action.actors.lengths[i]))
            torch.testing.assert_close(
                out.actions[name], together.actions[name][rows], equal_nan=True
            )
            torch.testing.assert_close(out.logprobs[name], together.logprobs[name][rows])
    assert net.action_space == ACTIONS


def test_embedding_of_the_parent_choice_is_initially_zero() -> None:
    torch.manual_seed(1)
    net = RogueNet(RogueNetConfig(d_model=16), SPACE, ACTIONS, {"value": 1})
    names = [name for name, _ in net.named_parameters() if ".after." in name]
    assert len(names) == 4  # labels twice, and weight and bias for who was selected
    assert not any(net.get_parameter(name).any() for name in names)


@pytest.mark.parametrize("memory", [None, MemoryConfig(inputs=["action", "reward"])])
def test_check_agent_accepts_networks_with_dependent_actions(memory: MemoryConfig | None) -> None:
    world = Camp()
    spaces = world.obs_space(), world.action_space()
    check_agent(network(*spaces, memory=memory), *spaces)


def test_compiled_and_torch_paths_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    net, batch = network(), batch_of(FRAME, FRAME)
    uniforms = {
        name: torch.linspace(0, 0.9, len(a.actors.values)) for name, a in batch.actions.items()
    }
    fast = net(batch, uniforms=uniforms)
    monkeypatch.setattr(backend, "run", lambda *args, **options: None)
    plain = net(batch, uniforms=uniforms)
    for name in batch.actions:
        assert torch.equal(fast.actions[name], plain.actions[name])
        torch.testing.assert_close(fast.logprobs[name], plain.logprobs[name])


def test_joint_sums_a_chain_at_its_first_action() -> None:
    batch = batch_of(FRAME)
    assert parents_first(batch.actions) == ["do", "whom", "pace", "how"]
    parts = {
        name: torch.arange(1.0, 1 + len(action.actors.values)) * 10**k
        for k, (name, action) in enumerate(batch.actions.items())
    }
    # how 1, 2; whom 10, 20; do 100, 200; pace 1000 of the first actor alone
    assert batch.actions["pace"].actors.values.tolist() == [0]
    assert joint(parts, batch.actions)["do"].tolist() == [1111, 222]
    assert joint(parts, batch.actions).keys() == {"do"}


def test_mask_given_parent_selects_the_rows_of_the_chosen_label() -> None:
    batch = batch_of(FRAME)
    do = torch.tensor([2, 1])
    rows = parent_rows(batch.actions["whom"], batch.actions)
    part, active = mask_given_parent(batch.actions["whom"], do[rows])
    assert active.tolist() == [True, True]
    assert part.mask is not None
    assert part.mask.values.view(2, 4).tolist() == [
        [False, True, True, True],
        [True, False, False, False],
    ]
    part, active = mask_given_parent(batch.actions["whom"], torch.tensor([0, 2]))
    assert active.tolist() == [False, True]
    assert part.mask is not None
    assert part.mask.values.view(2, 4)[0].all()  # of no consequence, but never without a choice


def test_continuous_choices_of_inactive_actors_are_nan() -> None:
    actions: dict[str, Any] = {
        "do": CategoricalActionSpace(["no", "yes"]),
        "much": ContinuousActionSpace({"a": (0, 1), "b": (0, 1)}, after="do", when=["yes"]),
    }
    frame = Observation(
        features={"Unit": [[0.5], [-1.0]]},
        actions={
            "do": CategoricalActionMask(actor_types=["Unit"], mask=[[True, False], [False, True]]),
            "much": ContinuousActionMask(actor_types=["Unit"]),
        },
    )
    batch = batch_of(frame, actions=actions)
    # The first may not say yes, so that it never chooses numbers.
    assert batch.actions["much"].actors.values.tolist() == [1]
    free = replace(frame.actions["do"], mask=None)  # type: ignore[type-var]
    frame.actions = {**frame.actions, "do": free}
    batch, net = batch_of(frame, actions=actions), network(actions=actions)
    out = net(batch, uniforms={"do": torch.tensor([0.0, 0.999]), "much": torch.rand(2, 2)})
    active = out.actions["do"] == 1
    assert out.actions["much"].isnan().all(dim=1).tolist() == (~active).tolist()
    assert (
        out.distribution("much").to_env(out.actions["much"]).isnan().any(dim=1).tolist()
        == (~active).tolist()
    )
    terms = torch.cat([*joint(out.logprobs, batch.actions).values(), *out.entropies.values()])
    gradients = torch.autograd.grad(terms.sum(), [*net.action_heads.parameters()])
    assert all(one.isfinite().all() for one in gradients)
    assert HEADS[ContinuousActionSpace].uniform(actions["much"], batch.actions["much"])
