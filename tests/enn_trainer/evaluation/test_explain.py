"""Explanations: attention and influence match the network, and have no side effects."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from enn_trainer import RogueNetAgent
from enn_trainer.evaluation.explain import (
    Explanation,
    attention_of,
    explain,
    influence,
    most_attended,
)
from enn_trainer.experience.players import AgentPlayer
from entity_env import (
    CategoricalActionMask,
    Entity,
    GlobalCategoricalActionSpace,
    Kind,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
    batch_obs,
)
from entity_env.spaces import GLOBAL
from rogue_net import EntityBatch, NetOutput, RogueNet, RogueNetConfig, RogueNetWithValueNet
from rogue_net.actions.distributions import legal_choices
from rogue_net.answer import answer
from rogue_net.wiring import Wired
from tests.enn_trainer.worlds import Meadow
from tests.rogue_net.nets import (
    ACTIONS,
    SPACE,
    batch_of,
    frame,
    net_of,
    options,
    rearranged,
    shows_something,
    types_of,
)
from tests.strategies import World, entities_named, entities_of, worlds

TOLERANCE = {"rtol": 0, "atol": 1e-6}


@st.composite
def named_worlds(draw: st.DrawFn) -> World:
    """Environment of one frame; all entities have ids, and some types a categorical feature.

    Masks use ids, so they stay valid if the rows of a type change.
    """
    world = draw(worlds(max_frames=1).filter(shows_something))
    [obs] = world.frames
    for name, entity in world.obs_space.entities.items():
        if draw(st.booleans()):
            entity.kinds = [Kind("color", ["red", "green", "blue"])]
            rows = [[*row, draw(st.integers(0, 2))] for row in obs.features.get(name, ())]
            obs.features[name] = np.array(rows, np.float32).reshape(-1, len(entity.columns))
    obs.actions = {
        name: named_mask(obs, world.obs_space, mask) for name, mask in obs.actions.items()
    }
    obs.ids = {name: [*map(str, entities_of(obs, [name]))] for name in obs.features}
    return world


def named_mask(obs: Observation, obs_space: ObsSpace, mask: Any) -> Any:
    def ids(given: Any, types: Any) -> list[str]:
        return [*map(str, entities_named(obs, obs_space, given, types))]

    if isinstance(mask, CategoricalActionMask):
        return CategoricalActionMask(ids(mask.actor_ids, mask.actor_types), mask=mask.mask)
    if isinstance(mask, SelectEntityActionMask):
        actors, actees = (mask.actor_ids, mask.actor_types), (mask.actee_ids, mask.actee_types)
        return SelectEntityActionMask(ids(*actors), actee_ids=ids(*actees), mask=mask.mask)
    return mask


def removed(obs: Observation, entity: Any) -> Observation:
    """The frame as an environment would show it without the entity, which has an id."""
    obs = copy.copy(obs)
    obs.features, obs.ids, obs.visible = dict(obs.features), dict(obs.ids), dict(obs.visible)
    for name, ids in obs.ids.items():
        left = [i for i, one in enumerate(ids) if one != entity]
        obs.ids[name] = [ids[i] for i in left]
        obs.features[name] = [obs.features[name][i] for i in left]
        if name in obs.visible:
            obs.visible[name] = [obs.visible[name][i] for i in left]
    obs.actions = {name: masked_without(mask, entity) for name, mask in obs.actions.items()}
    return obs


def masked_without(mask: Any, entity: Any) -> Any:
    if not isinstance(mask, CategoricalActionMask | SelectEntityActionMask):
        return mask
    actors = [i for i, one in enumerate(mask.actor_ids) if one != entity]
    mask = copy.copy(mask)
    if mask.mask is not None:
        mask.mask = [mask.mask[i] for i in actors]
    mask.actor_ids = [mask.actor_ids[i] for i in actors]
    if isinstance(mask, SelectEntityActionMask):
        actees = [i for i, one in enumerate(mask.actee_ids) if one != entity]
        if mask.mask is not None:
            mask.mask = [[row[i] for i in actees] for row in mask.mask]
        mask.actee_ids = [mask.actee_ids[i] for i in actees]
    return mask


def probabilities(explained: Explanation, name: str) -> dict[Any, dict[Any, float]]:
    """Of the choices of each actor."""
    actors, choices, probs, *_ = explained.actions[name]
    assert probs is not None
    return {
        actor: dict(zip(choices, p.tolist(), strict=True))
        for actor, p in zip(actors, probs, strict=True)
    }


def distance(p: dict[Any, float], q: dict[Any, float]) -> float:
    """The total variation distance between the probabilities of the choices of q."""
    total = sum(p[choice] for choice in q)
    return sum(abs(p[choice] / total - q[choice]) for choice in q) / 2 if total > 0 else 1.0


def assert_influence_by_hand(net: Any, world: World) -> Explanation:
    """Compare the influence of each entity with what the agent does in the frame without it."""

    def explained(obs: Observation) -> Explanation:
        batch = batch_of([obs], world.obs_space, world.action_space)
        return explain(net, batch, obs.index_to_id(world.obs_space), world.action_space)

    [obs] = world.frames
    whole = explained(obs)
    assert whole.influence.entities.tolist() == [*range(len(whole.entities))]
    for k, entity in enumerate(whole.entities):
        left = explained(removed(obs, entity))
        assert left.entities == [one for one in whole.entities if one != entity]
        difference = np.float64(whole.value) - left.value
        np.testing.assert_allclose(whole.influence.value[k], difference, rtol=1e-4, atol=1e-4)
        for name, action in whole.actions.items():
            p, q = probabilities(whole, name), probabilities(left, name)
            expected = [distance(p[a], q[a]) if a in q else np.nan for a in action.actors]
            np.testing.assert_allclose(whole.influence.choice[name][k], expected, **TOLERANCE)
    return whole


@pytest.mark.slow
@given(st.data())
def test_influence_equals_difference_to_frame_without_entity(data: st.DataObject) -> None:
    world = data.draw(named_worlds())
    layers = data.draw(st.integers(0, 2))
    chosen = data.draw(options(world.obs_space))
    net = net_of(world.obs_space, world.action_space, n_layer=layers, **chosen).eval()
    net.update_input_stats(batch_of(world.frames, world.obs_space, world.action_space))
    with_attention = layers > 0 and "pooling" not in chosen
    assert (assert_influence_by_hand(net, world).attention is not None) == with_attention


@pytest.mark.parametrize("kind", ["value net", "wired"])
def test_influence_with_a_separate_value_network(kind: str) -> None:
    units, goals = ["u0", "u1", "u2"], ["g0", "g1"]
    obs = frame(3, goals=2, seed=1, ids={"Unit": units, "Goal": goals, "Rock": []})
    obs.actions = {
        "move": CategoricalActionMask(units),
        "pick": SelectEntityActionMask(units, actee_ids=[*goals, "u0"]),
    }
    net: Any
    if kind == "value net":
        net = RogueNetWithValueNet(net_of().config, net_of(n_layer=1).config, SPACE, ACTIONS)
        net.double()
        net.policy.load_state_dict(net_of(heads={}).state_dict())
        own = net_of(action_space={"plan": ACTIONS["plan"]}, seed=4, n_layer=1).state_dict()
        net.value_function.load_state_dict(own, strict=False)
    else:
        known = ObsSpace([], {"Goal": Entity(["x"]), "Unit": Entity(["y"])})
        net = Wired(net_of(known), SPACE)
    net.update_input_stats(batch_of([obs]))
    explained = assert_influence_by_hand(net.eval(), World(SPACE, ACTIONS, [obs]))
    assert explained.attention is not None
    assert len(explained.attention) == 2  # layers of the policy
    assert np.nanmax(explained.influence.choice["pick"]) > 0.01
    assert np.abs(explained.influence.value).max() > 0.01


def test_influence_of_the_only_choice_and_of_all_of_the_probability() -> None:
    """Without its only choice an actor does nothing; one that is certain changes completely."""

    class Certain(nn.Module):
        """Selects the first entity that it may; the value is the number of goals."""

        def forward(self, batch: EntityBatch, *_: Any, **__: Any) -> NetOutput:
            allowed = legal_choices(batch.actions["pick"])
            logits = -1e6 * torch.arange(allowed.shape[1]).expand(allowed.shape)
            log_probs = logits.masked_fill(~allowed, -torch.inf).log_softmax(dim=1)
            value = torch.from_numpy(batch.features["Goal"].lengths).float()
            return answer({"pick": log_probs}, {"value": value[:, None]})

    mask = SelectEntityActionMask(["a", "b"], actee_ids=["x", "y"], mask=[[1, 1], [0, 1]])
    space = ObsSpace(entities={"Unit": Entity([]), "Goal": Entity([])})
    obs = Observation(
        features={"Unit": [[], []], "Goal": [[], []]},
        ids={"Unit": ["a", "b"], "Goal": ["x", "y"]},
        actions={"pick": mask},
    )
    net: Any = Certain()
    agent = RogueNetAgent(net, False, 0, space, {"pick": SelectEntityActionSpace()})
    explained = agent.explain(obs)
    assert explained.attention is None
    nan = np.nan
    np.testing.assert_array_equal(
        explained.influence.choice["pick"], [[nan, 0], [0, nan], [1, 0], [0, nan]]
    )
    assert explained.influence.value.tolist() == [0, 0, 1, 1]


def test_hidden_entities_affect_only_the_value() -> None:
    actions = {"move": CategoricalActionMask(actor_types=["Unit"])}
    visible = {"Rock": [True, False], "Goal": [False, True]}
    obs = frame(3, 2, 2, actions=actions, visible=visible)
    explained = explain(net_of().eval(), batch_of([obs]), obs.index_to_id(SPACE), ACTIONS)
    hidden, seen = [4, 5], [0, 1, 2, 3, 6, 7]
    assert explained.attention is not None
    assert (explained.attention[:, :, seen][..., hidden] == 0).all()
    assert (explained.attention[:, :, hidden] > 0).all()
    changes = explained.influence
    assert (changes.choice["move"][hidden] < 1e-6).all()
    assert (np.nanmax(changes.choice["move"][seen[:-1]], axis=1) > 1e-4).all()
    assert (np.abs(changes.value) > 1e-4).all()


@pytest.mark.slow
@given(st.data())
def test_attention_rows_sum_to_one(data: st.DataObject) -> None:
    world = data.draw(worlds().filter(shows_something))
    net = net_of(world.obs_space, world.action_space, n_layer=2, n_head=2).eval()
    batch = batch_of(world.frames, world.obs_space, world.action_space)
    net.update_input_stats(batch)
    frames = attention_of(net, batch)
    assert frames is not None
    has_global = any(
        isinstance(space, GlobalCategoricalActionSpace) for space in world.action_space.values()
    )
    for i, (weights, obs) in enumerate(zip(frames, world.frames, strict=True)):
        n = len(obs.index_to_id(world.obs_space)) + has_global
        assert weights.shape == (2, 2, n, n)
        assert weights.dtype == np.float32
        np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
        alone = attention_of(net, batch.take(np.array([i])))
        assert alone is not None
        np.testing.assert_allclose(alone[0], weights, **TOLERANCE)


def test_permuted_entities_permute_attention() -> None:
    net, batch = net_of().eval(), batch_of([frame(4, 2, 3)])
    order = [2, 0, 3, 1, 5, 4, 8, 6, 7, 9]
    shuffled = rearranged(batch, types_of(net), [order])
    [weights], [permuted] = attention_of(net, batch) or [], attention_of(net, shuffled) or []
    np.testing.assert_allclose(permuted, weights[..., order, :][..., order], **TOLERANCE)


def test_attention_matches_the_compiled_network() -> None:
    """The weights by which the network of torch mixes values, computed again by their formula."""
    torch.manual_seed(1)
    net = RogueNet(RogueNetConfig(n_layer=1, n_head=2), SPACE, ACTIONS, {"value": 1}).eval()
    obs = batch_obs([frame(3, 1, 2), frame(1)], SPACE, ACTIONS)
    batch = EntityBatch.of(obs)
    frames = attention_of(net, batch)
    assert frames is not None
    for i, n in enumerate((7, 2)):
        one = batch.take(np.array([i]))
        block = net.transformer.blocks[0]
        with torch.no_grad():
            x = net.embedding(net.embedding.inputs(one), net.embedding.label_rows(one))
            qkv = block.attention.query_key_value(block.norm_1(x))
        q, k, _ = qkv.view(n, 3, 2, 16).permute(1, 2, 0, 3)
        expected = (q @ k.transpose(1, 2) / 4).softmax(dim=-1)
        np.testing.assert_allclose(frames[i][0], expected.numpy(), rtol=0, atol=1e-4)


def test_attention_follows_the_order_of_the_environment() -> None:
    known = ObsSpace(["clock"], {"Goal": Entity(["x"]), "Unit": Entity(["x", "y"])})
    net = net_of(known).eval()
    whole, part = frame(2, rocks=1, goals=2), frame(2, goals=2)
    del part.features["Rock"]
    [of_known] = attention_of(net, batch_of([part], known)) or []
    [weights] = attention_of(Wired(net, SPACE, ACTIONS), batch_of([whole])) or []
    # Units, rocks, goals, the global entity; for the network goals, units, the global entity.
    assert weights.shape[-1] == 6
    assert np.isnan(weights[:, :, 2]).all()
    assert np.isnan(weights[..., 2]).all()
    order = [3, 4, 0, 1, 5]
    np.testing.assert_allclose(weights[..., order, :][..., order], of_known, **TOLERANCE)


def test_most_attended_ranks_by_received_weight() -> None:
    weights = np.zeros((2, 1, 4, 4), np.float32)
    weights[..., 0, 0] = 9  # from itself
    weights[..., 0, 3] = 8  # the global entity
    weights[0, :, 0, 2] = 3
    weights[1, :, 2, 1] = 2
    weights[..., 1, 1] = np.nan  # of an unknown type
    assert most_attended(weights, 3, 2).tolist() == [1, 2]
    assert most_attended(weights, 3, 1).tolist() == [2]
    assert most_attended(weights, 3, 5).tolist() == [0, 1, 2]


@pytest.mark.parametrize("pooling", [None, "mean"])
def test_large_frames_explain_some_or_the_named_entities(
    pooling: str | None,
) -> None:
    config = RogueNetConfig(d_model=8, pooling=pooling)  # type: ignore[arg-type]
    agent = RogueNetAgent(RogueNet(config, SPACE, ACTIONS, {"value": 1}))
    obs = frame(40)
    explained = agent.explain(obs)
    removed = explained.influence.entities
    if explained.attention is None:
        assert removed.tolist() == [*range(32)]
    else:
        assert removed.tolist() == most_attended(explained.attention, 40, 32).tolist()
    assert explained.influence.choice["move"].shape == (32, 40)
    two = agent.explain(obs, entities=[("Unit", 39), ("Unit", 3)]).influence
    assert two.entities.tolist() == [39, 3]
    none = agent.explain(obs, entities=[]).influence
    assert none.choice["pick"].shape == (0, 40)
    with pytest.raises(ValueError, match=r"entities: expected ids of the frame, got .'Elf'"):
        agent.explain(obs, entities=["Elf"])


def test_positions_outside_the_frame_are_rejected() -> None:
    net, batch = net_of().eval(), batch_of([frame(2), frame(5)])
    decisions = AgentPlayer(net, None).choose(batch, np.arange(2), 0)
    nothing = np.zeros(0, np.int64)
    none, one = influence(net, batch, decisions, [nothing, np.array([4])])
    assert [len(none.value), len(one.value)] == [0, 1]
    for wrong in (-1, 2):
        with pytest.raises(ValueError, match=r"expected positions from 0 to 1, got \["):
            influence(net, batch, decisions, [np.array([wrong]), nothing])


def test_influence_in_one_frame_of_a_batch() -> None:
    """Influence of acted decisions; tables are padded to the maximal number of actees."""
    net, batch = net_of().eval(), batch_of([frame(4, goals=3), frame(2, goals=1), frame(0)])
    decisions = AgentPlayer(net, None).choose(batch, np.arange(3), 0)
    entities = [np.array([5, 0]), np.arange(3), np.arange(0)]
    found = influence(net, batch, decisions, entities)
    for i, got in enumerate(found):
        one = batch.take(np.array([i]))
        alone = AgentPlayer(net, None).choose(one, np.arange(1), 0)
        [expected] = influence(net, one, alone, [entities[i]])
        assert got.entities.tolist() == entities[i].tolist()
        np.testing.assert_allclose(got.value, expected.value, **TOLERANCE)
        for name, changes in expected.choice.items():
            np.testing.assert_allclose(got.choice[name], changes, **TOLERANCE)


def test_explanation_passes_non_finite_values_through() -> None:
    net = net_of().float().eval()
    with torch.no_grad():
        net.regression_heads["/value"].bias.fill_(torch.inf)
        net.action_heads["/move"].project.bias.fill_(torch.nan)
    explained = RogueNetAgent(net).explain(frame(2, goals=1))
    assert explained.value == np.inf
    assert np.isnan(explained.influence.value).all()  # inf - inf
    assert np.isnan(explained.actions["move"].probs).all()
    assert np.isnan(explained.influence.choice["move"]).all()
    assert np.isfinite(explained.influence.choice["plan"]).all()


def meadow_agent(seed: int = 0, **kwargs: Any) -> tuple[RogueNetAgent, list[Observation]]:
    """An agent of float32, which is compiled where it can be, and frames of its world."""
    env: Any = Meadow()
    torch.manual_seed(seed)
    net = RogueNet(RogueNetConfig(d_model=16), env.obs_space(), env.action_space(), {"value": 1})
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    env.seed(5)
    return RogueNetAgent(net, **kwargs), [env.reset() for _ in range(12)]


def test_explain_matches_act_and_changes_no_state() -> None:
    asked, frames = meadow_agent(seed=2)
    quiet, _ = meadow_agent(seed=2)
    weights = copy.deepcopy(asked.agent.state_dict())
    generator = torch.get_rng_state()
    for obs in frames:
        explained = asked.explain(obs)
        act = asked.act(obs)
        assert explained.value == act.value
        for name, action in act.actions.items():
            probs = explained.actions[name].probs
            assert probs is not None
            assert action.probs is not None
            np.testing.assert_array_equal(probs.reshape(action.probs.shape), action.probs)
            actors = [GLOBAL] if name == "call" else [*action.actors]
            assert explained.actions[name].actors == actors
        assert repr(act) == repr(quiet.act(obs))
    assert torch.equal(generator, torch.get_rng_state())
    for name, tensor in asked.agent.state_dict().items():
        assert torch.equal(tensor, weights[name])


@pytest.mark.parametrize("deterministic", [False, True])
def test_act_batch_of_one_equals_act(deterministic: bool) -> None:
    (one, frames), (other, _) = (meadow_agent(1, deterministic=deterministic) for _ in range(2))
    assert one.act_batch([]) == []
    for obs in frames:
        assert repr(one.act_batch([obs])) == repr([other.act(obs)])


def test_act_batch_has_independent_random_numbers() -> None:
    agent, frames = meadow_agent(1)
    for act, obs in zip(agent.act_batch(frames), frames, strict=True):
        alone = agent.act(obs)
        assert alone.value == pytest.approx(act.value, abs=1e-4)
        assert_close(act.actions, alone.actions)
    obs = max(frames, key=lambda obs: len(obs.actions))
    assert len({repr(act.actions) for act in agent.act_batch([obs] * 20)}) > 1
    best, _ = meadow_agent(1, deterministic=True)
    assert len({repr(act.actions) for act in best.act_batch([obs] * 20)}) == 1


def assert_close(some: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    assert some.keys() == others.keys()
    for name, action in some.items():
        assert action.probs.shape[-1:] == others[name].probs.shape[-1:] or not action.probs.size
        np.testing.assert_allclose(
            action.probs.reshape(-1), others[name].probs.reshape(-1), atol=1e-4
        )
