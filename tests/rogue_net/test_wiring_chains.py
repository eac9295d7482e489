"""Dependent actions of networks with reordered labels or unknown entity types."""

import math
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from enn_trainer.experience.collector import Collector, play
from enn_trainer.experience.players import AgentPlayer
from entity_env import (
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousActionMask,
    Entity,
    EnvList,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from rogue_net import EntityBatch, RogueNet, RogueNetConfig
from rogue_net.config import MemoryConfig
from rogue_net.wiring import Wired
from tests.enn_trainer.chains_world import Camp

ENVS = 16
SPACES = Camp().obs_space(), Camp().action_space()


class TurnedCamp(Camp):
    """The same environment with reordered labels."""

    def action_space(self) -> dict[str, ActionSpace]:
        return super().action_space() | {
            "whom": SelectEntityActionSpace(after="do", when=["attack", "heal"]),
            "do": CategoricalActionSpace(["attack", "rest", "heal"]),
            "shout": CategoricalActionSpace(["ha", "hey", "ho"], after="whom"),
            "trade": GlobalCategoricalActionSpace(["sell", "no", "buy"]),
        }

    def observe(self, reward: float) -> Observation:
        obs: Any = super().observe(reward)
        obs.actions["whom"].mask = obs.actions["whom"].mask[:, ::-1]
        obs.actions["shout"].mask = np.array(obs.actions["shout"].mask)[:, [2, 0, 1]]
        return obs  # type: ignore[no-any-return]


class StrangeCamp(Camp):
    """Strangers act like medics, and may be healed."""

    types = ("Medic", "Ill", "Foe", "Stranger")

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={name: Entity(["x"]) for name in self.types})

    def act(self, actions: Mapping[str, Any]) -> Observation:
        self.step += 1
        return self.observe(0.0)

    def observe(self, reward: float) -> Observation:
        obs: Any = super().observe(reward)
        medics, ill, foes = (len(self.ids[name]) for name in ("Medic", "Ill", "Foe"))
        strangers = random.Random(self.step + 10 * medics + ill).randint(0, 2)
        features = {**obs.features, "Stranger": [[0.5]] * strangers}
        who = ["Medic", "Stranger"]
        mask = np.zeros((medics + strangers, 2, ill + foes + strangers), np.bool_)
        mask[:, 0, :ill] = mask[:, 1, ill : ill + foes] = mask[:, 0, ill + foes :] = True
        return Observation(
            features={name: features[name] for name in self.types},
            ids={**self.ids, "Stranger": [("s", k) for k in range(strangers)]},
            actions={
                **obs.actions,
                "do": CategoricalActionMask(actor_types=who),
                "whom": SelectEntityActionMask(
                    actor_types=who, actee_types=["Ill", "Foe", "Stranger"], mask=mask
                ),
                "force": ContinuousActionMask(actor_types=who),
                "shout": CategoricalActionMask(
                    actor_types=who,
                    mask=[[True, 0 < k < medics, True] for k in range(medics + strangers)],
                ),
            },
            done=obs.done,
        )


class StrangersFirst(StrangeCamp):
    """The same in another order of types."""

    types = ("Stranger", "Foe", "Medic", "Ill")


class Both(TurnedCamp, StrangersFirst):
    """Strangers, and labels in another order."""


def network(**settings: Any) -> RogueNet:
    torch.manual_seed(0)
    net = RogueNet(RogueNetConfig(d_model=8, n_layer=1, **settings), *SPACES, {"value": 1})
    with torch.no_grad():
        for parameter in net.action_heads.parameters():
            parameter.normal_(0, 0.5)
    return net.eval()


def wired(net: RogueNet, world: Any) -> Wired:
    return Wired(net, world().obs_space(), world().action_space())


def batch_in(world: Any) -> EntityBatch:
    envs = EnvList(world, ENVS)
    envs.seed(2)
    return EntityBatch.of(envs.reset(envs.obs_space()))


def test_dependent_actions_are_invariant_to_label_order() -> None:
    net, plain, turned = network(), batch_in(Camp), batch_in(TurnedCamp)
    net_out = net(plain, generator=torch.Generator().manual_seed(0))
    chosen, spaces = dict(net_out.actions), TurnedCamp().action_space()
    for name in ("do", "shout", "trade"):
        labels = [spaces[name].labels.index(label) for label in SPACES[1][name].labels]
        new = torch.tensor(labels)[net_out.actions[name].clamp(min=0)]
        chosen[name] = torch.where(net_out.actions[name] < 0, net_out.actions[name], new)
    other = wired(net, TurnedCamp)(turned, chosen)
    torch.testing.assert_close(other.logprobs, net_out.logprobs)
    torch.testing.assert_close(other.entropies, net_out.entropies)
    torch.testing.assert_close(other.values, net_out.values)
    assert (net_out.logprobs["whom"] < 0).any()
    assert (net_out.logprobs["shout"] < 0).any()


def test_unknown_types_do_not_affect_dependent_actions_of_known_types() -> None:
    net, plain, strange = network(), batch_in(Camp), batch_in(StrangeCamp)
    assert strange.features["Stranger"].lengths.any()
    net_out = net(plain, generator=torch.Generator().manual_seed(0))
    actors, chosen, medics = strange.actions, {}, {}
    for name, action in actors.items():
        few = plain.actions[name].actors.lengths
        place = np.arange(len(action.actors.values)) - np.repeat(
            action.actors.starts, action.actors.lengths
        )
        is_medic = torch.from_numpy(place < np.repeat(few, action.actors.lengths))
        medics[name], like = is_medic, net_out.actions[name]
        # Strangers rest.
        rest = math.nan if like.is_floating_point() else 0 if name == "do" else -1
        chosen[name] = like.new_full((len(is_medic), *like.shape[1:]), rest)
        chosen[name][is_medic] = like
    other = wired(net, StrangeCamp)(strange, chosen)
    for name, is_medic in medics.items():
        torch.testing.assert_close(other.logprobs[name][is_medic], net_out.logprobs[name])
        torch.testing.assert_close(other.entropies[name][is_medic], net_out.entropies[name])
    probs = other.log_probs["do"].exp()[~medics["do"]]
    possible = (probs > 0).sum(dim=1, keepdim=True)
    assert {*possible.flatten().tolist()} <= {2, 3}
    torch.testing.assert_close(probs[probs > 0], (1 / possible).expand(-1, 3)[probs > 0])


@pytest.mark.slow
@pytest.mark.parametrize("world", [TurnedCamp, StrangeCamp, StrangersFirst, Both])
def test_choices_are_legal_and_evaluate_to_their_logprobs(world: Any) -> None:
    net = wired(network(), world)
    collector = Collector(EnvList(world, ENVS), AgentPlayer(net, seed=3))
    with torch.no_grad():
        play(collector, world().obs_space(), 8, seed=1)  # the environments refuse what is illegal
        batch = batch_in(world)
        for draws in (None, torch.Generator().manual_seed(1)):
            out = net(batch, generator=draws)
            judged = net(batch, out.actions)
            torch.testing.assert_close(judged.logprobs, out.logprobs, rtol=0, atol=0)
            torch.testing.assert_close(judged.entropies, out.entropies, rtol=0, atol=0)
            for rows in out.logprobs.values():
                assert rows.isfinite().all()


def test_memory_gets_choices_in_the_label_order_of_the_network() -> None:
    memory = MemoryConfig(of="frame", inputs=["action"])
    net, plain, turned = network(memory=memory), batch_in(Camp), batch_in(TurnedCamp)
    net_out = net(plain)
    other = wired(net, TurnedCamp)(turned)
    torch.testing.assert_close(other.memory, net_out.memory)


def test_dependent_action_with_other_parent_labels_is_refused() -> None:
    spaces = SPACES[1] | {"whom": SelectEntityActionSpace(after="do", when=["heal"])}
    with pytest.raises(ValueError, match=r"after and when of 'whom': expected \('do', \['attack'"):
        Wired(network(), SPACES[0], spaces)
