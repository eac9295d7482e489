"""A small match with numbers and a chain of actions, and a bot in it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from entity_env import (
    Action,
    ActionSpace,
    Bot,
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousAction,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    GlobalContinuousAction,
    GlobalContinuousActionMask,
    GlobalContinuousActionSpace,
    Match,
    Observation,
    ObsSpace,
    PlainState,
    SelectEntityAction,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)

DO = ["rest", "heal", "attack"]


class Skirmish(PlainState, Match):
    """Each side has units that rest, heal one of their own or attack a foe, with some force."""

    num_sides = 2

    def obs_space(self) -> ObsSpace:
        return ObsSpace(["turn"], {"Own": Entity(["hp"]), "Foe": Entity(["hp"])})

    def action_space(self) -> dict[str, ActionSpace]:
        return {
            "force": ContinuousActionSpace(
                {"f": (0.0, 1.0), "g": (-np.inf, np.inf)}, after="do", when=["attack"]
            ),
            "do": CategoricalActionSpace([*DO]),
            "whom": SelectEntityActionSpace(after="do", when=["heal", "attack"]),
            "bid": GlobalContinuousActionSpace({"b": (0.0, 10.0)}),
        }

    def reset(self) -> list[Observation]:
        self.turn, self.score = 0, [0.0, 0.0]
        self.hp = [[self.rng.random() for _ in range(self.rng.randint(1, 3))] for _ in range(2)]
        return self._observe()

    def act(self, actions: Any) -> list[Observation]:
        self.turn += 1
        for side, of_side in enumerate(actions):
            do, whom, force = of_side["do"], of_side["whom"], of_side["force"]
            wanted = dict(zip(do.actors, do.labels, strict=True))
            assert {*whom.actors} == {a for a, label in wanted.items() if label != "rest"}
            assert {*force.actors} == {a for a, label in wanted.items() if label == "attack"}
            for actor, actee in zip(whom.actors, whom.actees, strict=True):
                assert actee[0] == {"heal": "own", "attack": "foe"}[wanted[actor]]
            self.score[side] += float(force.of("f").sum()) - 0.1 * float(of_side["bid"].of("b"))
        return self._observe()

    def _observe(self) -> list[Observation]:
        done = self.turn == 4
        found = []
        for side in (0, 1):
            own, foes = self.hp[side], self.hp[1 - side]
            ids = {
                "Own": [("own", k) for k in range(len(own))],
                "Foe": [("foe", k) for k in range(len(foes))],
            }
            mask = np.zeros((len(own), 2, len(own) + len(foes)), np.bool_)
            mask[:, 0, : len(own)] = mask[:, 1, len(own) :] = True
            won = float(self.score[side] > self.score[1 - side])
            found.append(
                Observation(
                    global_features=[self.turn],
                    features={"Own": [[x] for x in own], "Foe": [[x] for x in foes]},
                    ids=ids,
                    actions={
                        "do": CategoricalActionMask(actor_types=["Own"]),
                        "whom": SelectEntityActionMask(
                            actor_types=["Own"], actee_types=["Own", "Foe"], mask=mask
                        ),
                        "force": ContinuousActionMask(actor_types=["Own"]),
                        "bid": GlobalContinuousActionMask(),
                    },
                    reward=2 * won - 1 if done else 0.0,
                    done=done,
                    metrics={"win": won} if done else {},
                )
            )
        return found


class Brawler(Bot):
    """Attack with all units, or heal now and then, each as hard as it is healthy."""

    def act(self, observation: Observation) -> Mapping[str, Action]:
        masks: Any = observation.actions
        ids = [*masks["do"].actor_ids]
        wanted = self.rng.choice([1, 2], size=len(ids))
        places = {one: k for k, one in enumerate(masks["whom"].actor_ids)}
        chosen = []
        for one, label in zip(ids, wanted.tolist(), strict=True):
            allowed = masks["whom"].mask[places[one], label - 1]
            chosen.append(masks["whom"].actee_ids[self.rng.choice(np.flatnonzero(allowed))])
        brave = [one for one, label in zip(ids, wanted.tolist(), strict=True) if label == 2]
        force = self.rng.random((len(brave), 2)).astype(np.float32)
        return {
            "do": CategoricalAction(ids, wanted, DO),
            "whom": SelectEntityAction(ids, chosen),
            "force": ContinuousAction(brave, force, ["f", "g"]),
            "bid": GlobalContinuousAction(np.float32([3.0]), ["b"]),
        }
