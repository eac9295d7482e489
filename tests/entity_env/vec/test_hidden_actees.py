"""Entities hidden from the policy are excluded from the actees of an action."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_env import (
    Action,
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    EnvList,
    InvalidObservation,
    Observation,
    ObsSpace,
    PlainState,
    SelectEntityActionMask,
    SelectEntityActionSpace,
    VecObs,
    batch_obs,
    check_env,
)
from entity_env.testing.random_play import random_choices
from entity_env.vec.batching import unbatch_actions

SPACE = ObsSpace(entities={"Coin": Entity(["x"]), "Me": Entity([]), "Key": Entity(["x"])})
ACTIONS: dict[str, ActionSpace] = {
    "how": CategoricalActionSpace(["a", "b", "c"]),
    "pick": SelectEntityActionSpace(),
    "then": SelectEntityActionSpace(after="how", when=["c", "a"]),
}


@st.composite
def frames(draw: st.DrawFn) -> tuple[Observation, Observation]:
    """A frame that names actees by type, or all, and one that names those visible by id."""
    counts = {name: draw(st.integers(0, 3)) for name in SPACE.entities}
    flags = st.booleans()
    visible = {n: [draw(flags) for _ in range(counts[n])] for n in ("Coin", "Key")}
    with_ids = draw(flags)
    ids = {n: [f"{n}{i}" if with_ids else (n, i) for i in range(k)] for n, k in counts.items()}
    named = draw(st.sampled_from([None, ["Key"], ["Key", "Coin"], ["Coin", "Me"]]))
    seen = {"Me": [True] * counts["Me"], **visible}
    actees = [
        (one, is_seen)
        for n in named or SPACE.entities
        for one, is_seen in zip(ids[n], seen[n], strict=True)
    ]
    left = [i for i, (_, is_seen) in enumerate(actees) if is_seen]

    def masks(labels: int) -> tuple[Any, Any]:
        shape = (counts["Me"], labels, len(actees)) if labels > 1 else (counts["Me"], len(actees))
        mask: Any = None
        if draw(flags):
            size = int(np.prod(shape))
            mask = np.array(draw(st.lists(flags, min_size=size, max_size=size)), bool).reshape(
                shape
            )
        by_id = [actees[i][0] for i in left]
        columns = None if mask is None else mask[..., left]
        return (
            SelectEntityActionMask(actor_types=["Me"], actee_types=named, mask=mask),
            SelectEntityActionMask(actor_types=["Me"], actee_ids=by_id, mask=columns),
        )

    pick, then = masks(1), masks(2)
    how = CategoricalActionMask(actor_types=["Me"])
    features = {
        n: [[float(i)] * len(e.features) for i in range(counts[n])]
        for n, e in SPACE.entities.items()
    }
    return tuple(  # type: ignore[return-value]
        Observation(
            features=features,
            ids=ids if with_ids else None,
            visible=visible,
            actions={"how": how, "pick": pick[k], "then": then[k]},
        )
        for k in range(2)
    )


@pytest.mark.slow
@given(st.lists(frames(), min_size=1, max_size=4), st.integers(0, 9))
def test_actees_by_type_equal_the_visible_ones_by_id(
    pairs: list[tuple[Observation, Observation]], seed: int
) -> None:
    """In batches, in the actions of the environment, and back."""
    by_type, by_id = ([pair[k] for pair in pairs] for k in range(2))
    batch, batch_by_id = (batch_obs(obs, SPACE, ACTIONS) for obs in (by_type, by_id))
    for name in ACTIONS:
        assert full(batch, name) == full(batch_by_id, name)
    chosen = random_choices(batch, ACTIONS, np.random.default_rng(seed))
    actions_by_type = unbatch_actions(chosen, batch, by_type, SPACE, ACTIONS)
    actions_by_id = unbatch_actions(chosen, batch_by_id, by_id, SPACE, ACTIONS)
    assert repr(actions_by_type) == repr(actions_by_id)
    picks, mask = [actions.get("pick") for actions in actions_by_type], batch.action_masks["pick"]
    again = ACTIONS["pick"].encode("pick", picks, mask, by_type, SPACE)
    assert again.values.tolist() == chosen["pick"].values.tolist()


def full(batch: VecObs, name: str) -> list[Any]:
    mask = batch.action_masks[name]
    rows = [mask.actors, mask.full_mask(ACTIONS[name].mask_columns)]
    acting = mask.actors.lengths > 0
    if mask.actees is not None:  # where nobody acts, they do not matter
        rows.append(mask.actees.take(np.flatnonzero(acting)))
    rows += [] if mask.after is None else [mask.after.rows]
    return [(one.values.tolist(), one.lengths.tolist()) for one in rows]


def test_hidden_actees_named_by_id_are_rejected() -> None:
    mask = SelectEntityActionMask(actor_types=["Me"], actee_ids=["b"])
    obs = Observation(
        entities={"Coin": ([[0.0], [1.0]], ["a", "b"]), "Me": [[]]},
        visible={"Coin": [True, False]},
        actions={"pick": mask},
    )
    good = Observation(
        entities=obs.features, actions={"pick": SelectEntityActionMask(actor_types=["Me"])}
    )
    with pytest.raises(
        InvalidObservation, match=r"^environment 1: .*actees: entity 1 .* invisible"
    ):
        batch_obs([good, obs], SPACE, ACTIONS)


class Fog(PlainState, Environment):
    """Coins, some of them hidden; picking a hidden one gives a reward of -1."""

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Coin": Entity(["x"]), "Me": Entity([])})

    def action_space(self) -> dict[str, ActionSpace]:
        return {"pick": SelectEntityActionSpace()}

    def reset(self) -> Observation:
        self.t = 0
        return self.observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        picked: Any = actions.get("pick")
        hidden = any(not self.seen[self.names.index(one)] for one in picked.actees)
        self.t += 1
        return self.observe(reward=-float(hidden), done=self.t == 4)

    def observe(self, **outcome: Any) -> Observation:
        count = self.rng.randint(0, 4)
        self.names = [f"c{self.rng.randrange(10**6)}" for _ in range(count)]
        self.seen = [self.rng.random() < 0.5 for _ in range(count)]
        return Observation(
            entities={"Coin": ([[float(i)] for i in range(count)], self.names), "Me": [[]]},
            visible={"Coin": self.seen},
            actions={"pick": SelectEntityActionMask(actor_types=["Me"], actee_types=["Coin"])},
            **outcome,
        )


def test_environments_with_hidden_actees_pass_check_env_and_resume() -> None:
    report = check_env(Fog, episodes=4)
    assert report.ok, report
    envs, rng = EnvList(Fog, 5), np.random.default_rng(0)
    envs.seed(1)
    obs = envs.reset(envs.obs_space())
    hidden = 0
    for _ in range(30):
        hidden += int((~obs.visibility("Coin").values).sum())
        other = EnvList(Fog, 5)
        again = other.set_state(envs.get_state() or {}, other.obs_space())
        assert again is not None
        choices = random_choices(obs, envs.action_space(), rng)
        obs, same = (one.act(choices, envs.obs_space()) for one in (envs, other))
        assert obs.reward.tolist() == same.reward.tolist() == [0.0] * 5
    assert hidden > 20
