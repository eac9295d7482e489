"""A world of dependent actions: what to do, then to whom, and how hard."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from entity_env import (
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    Environment,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    GlobalContinuousActionMask,
    GlobalContinuousActionSpace,
    Observation,
    ObsSpace,
    PlainState,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)


class Camp(PlainState, Environment):
    """Medics rest, heal one who is ill, or attack a foe with some force; a frame may trade."""

    def obs_space(self) -> ObsSpace:
        return ObsSpace(
            entities={"Medic": Entity(["x"]), "Ill": Entity(["x"]), "Foe": Entity(["x"])}
        )

    def action_space(self) -> dict[str, ActionSpace]:
        return {
            "whom": SelectEntityActionSpace(after="do", when=["heal", "attack"]),
            "do": CategoricalActionSpace(["rest", "heal", "attack"]),
            "force": ContinuousActionSpace({"f": (0.0, 1.0)}, after="do", when=["attack"]),
            "shout": CategoricalActionSpace(["hey", "ho", "ha"], after="whom"),
            "trade": GlobalCategoricalActionSpace(["no", "buy", "sell"]),
            "price": GlobalContinuousActionSpace({"p": (1.0, 9.0)}, after="trade", when=["sell"]),
        }

    def reset(self) -> Observation:
        self.step = 0
        return self.observe(0.0)

    def act(self, actions: Mapping[str, Any]) -> Observation:
        self.step += 1
        do, whom, force = actions["do"], actions["whom"], actions["force"]
        wanted = dict(zip(do.actors, do.labels, strict=True))
        assert {*wanted} == {*self.ids["Medic"]}
        assert {*whom.actors} == {a for a, label in wanted.items() if label != "rest"}
        assert {*force.actors} == {a for a, label in wanted.items() if label == "attack"}
        assert {*actions["shout"].actors} == {*whom.actors}
        for actor, actee in zip(whom.actors, whom.actees, strict=True):
            assert actee[0] == {"heal": "i", "attack": "f"}[wanted[actor]]
        assert ("price" in actions) == (actions["trade"].label == "sell")
        reward = float(sum(label == "attack" for label in wanted.values()) + force.values.sum())
        return self.observe(reward)

    def observe(self, reward: float) -> Observation:
        medics, ill, foes = (self.rng.randint(n, 3 - (n == 0)) for n in (1, 0, 0))
        self.ids = {
            "Medic": [("m", k) for k in range(medics)],
            "Ill": [("i", k) for k in range(ill)],
            "Foe": [("f", k) for k in range(foes)],
        }
        mask = np.zeros((medics, 2, ill + foes), np.bool_)
        mask[:, 0, :ill] = mask[:, 1, ill:] = True
        return Observation(
            features={name: [[float(k)] for k in range(len(i))] for name, i in self.ids.items()},
            ids=self.ids,
            actions={
                "do": CategoricalActionMask(actor_types=["Medic"]),
                "whom": SelectEntityActionMask(
                    actor_types=["Medic"], actee_types=["Ill", "Foe"], mask=mask
                ),
                "force": ContinuousActionMask(actor_types=["Medic"]),
                "shout": CategoricalActionMask(
                    actor_types=["Medic"], mask=[[True, k > 0, True] for k in range(medics)]
                ),
                "trade": GlobalCategoricalActionMask(),
                "price": GlobalContinuousActionMask(),
            },
            reward=reward,
            done=self.step == 10,
        )
