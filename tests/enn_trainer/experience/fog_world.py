"""A world of fog. Worker processes import this module, which needs no torch."""

from typing import Any

from entity_env import (
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Match,
    Observation,
    ObsSpace,
    PlainState,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)


class Fog(PlainState, Match):
    """Scouts and beasts in fog; each side sees some of them, and some only its value function."""

    num_sides = 2
    labels = ("left", "right", "stay")

    def obs_space(self) -> ObsSpace:
        return ObsSpace(["turn"], {"Scout": Entity(["x"]), "Beast": Entity(["y", "z"])})

    def action_space(self) -> dict[str, Any]:
        return {
            "go": CategoricalActionSpace([*self.labels]),
            "hunt": SelectEntityActionSpace(),
            "call": GlobalCategoricalActionSpace(["hey", "ho"]),
        }

    def reset(self) -> list[Observation]:
        self.turn, self.length, self.reward = 0, self.rng.randint(3, 11), [0.0, 0.0]
        return self._observe()

    def act(self, actions: Any) -> list[Observation]:
        self.turn += 1
        self.reward = [0.0, 0.0]
        for side, of_side in enumerate(actions):
            for name, action in of_side.items():
                if name == "go":
                    self.reward[side] += 0.1 * len([one for one in action.labels if one == "left"])
                elif name == "hunt":
                    self.reward[side] += sum(0.3 for one in action.actees if one == "b1")
        return self._observe()

    def _observe(self) -> list[Observation]:
        rng, over = self.rng, self.turn == self.length
        shown = []
        for side in (0, 1):
            scouts = rng.sample(range(5), rng.randint(0, 4))
            beasts = rng.sample(range(4), rng.randint(0, 3))
            seen = [rng.random() < 0.7 for _ in beasts]
            actions: dict[str, Any] = {"call": GlobalCategoricalActionMask()}
            if scouts:
                actions["go"] = CategoricalActionMask(actor_types=["Scout"])
            chosen = [f"b{one}" for one, is_seen in zip(beasts, seen, strict=True) if is_seen]
            if scouts and chosen:
                ids = [f"s{scouts[0]}"]
                actions["hunt"] = SelectEntityActionMask(actor_ids=ids, actee_ids=chosen)
            shown.append(
                Observation(
                    global_features=[self.turn],
                    features={
                        "Scout": [[one + rng.random()] for one in scouts],
                        "Beast": [[one, rng.random()] for one in beasts],
                    },
                    ids={
                        "Scout": [f"s{one}" for one in scouts],
                        "Beast": [f"b{one}" for one in beasts],
                    },
                    visible={"Beast": seen},
                    actions={} if over else actions,
                    reward=self.reward[side],
                    terminated=over and self.length % 2 == 0,
                    truncated=over and self.length % 2 == 1,
                    metrics={"win": float(self.reward[side] > 0)} if over else {},
                )
            )
        return shown


class Mist(Fog):
    """The same world with types, features and labels in another order."""

    labels = ("stay", "left", "right")

    def obs_space(self) -> ObsSpace:
        return ObsSpace(["turn"], {"Beast": Entity(["z", "y"]), "Scout": Entity(["x"])})

    def _observe(self) -> list[Observation]:
        shown = super()._observe()
        for obs in shown:
            obs.features["Beast"] = [[z, y] for y, z in obs.features["Beast"]]
        return shown
