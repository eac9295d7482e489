"""Behaviours that entity-gym 0.1.10 got wrong; one test for each, named after what must hold."""

from typing import Any

import numpy as np
import pytest

from entity_env import (
    AddMetricsWrapper,
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    EnvList,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    InvalidObservation,
    Observation,
    ObsSpace,
    ParallelEnvList,
    Ragged,
    SelectEntityActionMask,
    SelectEntityActionSpace,
    ValidatingEnv,
    VecSelectEntityActionMask,
    action_index_to_actions,
    batch_obs,
)
from tests.entity_env.worlds import SPACE, Walk

AB = ObsSpace(entities={"A": Entity(["x"]), "B": Entity(["x"])})
MOVE = {"move": CategoricalActionSpace(["left", "right"])}
PLAN = {"plan": GlobalCategoricalActionSpace(["wait", "go", "run"])}
PICK = {"pick": SelectEntityActionSpace()}


def test_b46_types_without_ids_offset_later_positions() -> None:
    obs = Observation(
        entities={"A": [[1.0], [2.0]], "B": ([[3.0], [4.0]], ["b0", "b1"])},
        actions={"move": CategoricalActionMask(actor_ids=["b1", "b0"])},
    )
    assert batch_obs([obs], AB, MOVE).action_masks["move"].actors.values.tolist() == [3, 2]


def test_b47_actions_reach_entities_for_any_order_of_the_observation() -> None:
    obs = Observation(
        entities={"B": ([[3.0]], ["b"]), "A": ([[1.0]], ["a"])},
        actions={"move": CategoricalActionMask()},
    )
    chosen = {"move": Ragged(np.array([0, 1]), np.array([2]))}  # of A's, then of B's entity
    action = action_index_to_actions(AB, MOVE, chosen, obs)["move"]
    assert isinstance(action, CategoricalAction)
    assert dict(zip(action.actors, action.labels, strict=True)) == {"a": "left", "b": "right"}


def test_b48_the_filter_drops_features_globals_and_types() -> None:
    env = Walk()
    env.seed(1)
    shown = ObsSpace(entities={"Goal": Entity(["y"])})
    obs = env.reset_filter(shown)
    np.testing.assert_array_equal(obs.features["Goal"], [[1.0]])
    assert list(obs.features) == ["Goal"]
    assert len(obs.global_features) == 0
    with pytest.raises(InvalidObservation, match=r"features among .'x', 'y'., got .'z'."):
        env.reset_filter(ObsSpace(entities={"Goal": Entity(["z"])}))
    with pytest.raises(InvalidObservation, match=r"types among .'Thing', 'Goal'., got .'Wall'."):
        env.reset_filter(ObsSpace(entities={"Wall": Entity([])}))


def test_b48_the_filter_does_not_hide_features_of_the_wrong_number() -> None:
    class TooWide(Walk):
        def reset(self) -> Observation:
            return Observation(features={"Goal": [[1.0, 2.0, 3.0]]}, global_features=[0.0])

    with pytest.raises(InvalidObservation, match=r"'Goal': expected shape \(1, 2\), got \(1, 3\)"):
        TooWide().reset_filter(ObsSpace(entities={"Goal": Entity(["x"])}))


def test_b49_a_global_action_may_be_offered_on_some_frames_only() -> None:
    offered = Observation(actions={"plan": GlobalCategoricalActionMask()})
    mask = batch_obs([offered, Observation(), offered], AB, PLAN).action_masks["plan"]
    assert mask.actors.lengths.tolist() == [1, 0, 1]
    silent = {"plan": Ragged(np.zeros(0, np.int64), np.array([0]))}
    assert action_index_to_actions(AB, PLAN, silent, Observation()) == {}


@pytest.mark.parametrize("given", [[True, False, True], [[True, False, True]]])
def test_b50_a_global_mask_is_a_row_of_choices(given: Any) -> None:
    obs = Observation(actions={"plan": GlobalCategoricalActionMask(given)})
    mask = batch_obs([obs], AB, PLAN).action_masks["plan"].mask
    assert mask is not None
    assert mask.values.tolist() == [[True, False, True]]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_b51_a_frame_without_visibility_has_all_entities_visible(order: tuple[int, ...]) -> None:
    frames = [
        Observation(features={"A": [[0.0], [1.0]]}, visible={"A": [False, True]}),
        Observation(features={"A": [[2.0]]}),
        Observation(features={}, visible={}),
    ]
    expected = [[False, True], [True], []]
    visible = batch_obs([frames[i] for i in order], AB, {}).visible["A"]
    assert [visible[k].values.tolist() for k in range(3)] == [expected[i] for i in order]


@pytest.mark.parametrize("given_first", [False, True])
def test_b71_a_frame_without_a_mask_allows_everything(given_first: bool) -> None:
    some = Observation(
        features={"A": [[0.0], [1.0]]},
        actions={"move": CategoricalActionMask(mask=[[True, False], [False, True]])},
    )
    every = Observation(features={"A": [[2.0]]}, actions={"move": CategoricalActionMask()})
    mask = batch_obs([some, every] if given_first else [every, some], AB, MOVE)
    rows = mask.action_masks["move"].mask
    assert rows is not None
    masked, free = (rows[0], rows[1]) if given_first else (rows[1], rows[0])
    assert masked.values.tolist() == [[True, False], [False, True]]
    assert free.values.tolist() == [[True, True]]


def test_b52_each_actor_selects_among_its_own_actees() -> None:
    obs = Observation(
        features={"A": [[0.0], [1.0]], "B": [[2.0], [3.0], [4.0]]},
        actions={
            "pick": SelectEntityActionMask(
                actor_types=["A"],
                actee_types=["B"],
                mask=[[True, False, True], [False, False, False]],
            )
        },
    )
    mask = batch_obs([obs], AB, PICK).action_masks["pick"]
    assert isinstance(mask, VecSelectEntityActionMask)
    assert mask.mask is not None
    assert mask.actors.values.tolist() == [0], "the second can select nothing and is left out"
    assert mask.actees.values.tolist() == [2, 3, 4]
    assert mask.mask.values.tolist() == [True, False, True]


class Recorder(Environment):
    """Returns a configured observation."""

    def __init__(self, obs: Observation) -> None:
        self.obs = obs
        self.closed = False

    def obs_space(self) -> ObsSpace:
        return AB

    def action_space(self) -> dict[str, Any]:
        return {**MOVE, **PLAN, **PICK}

    def reset(self) -> Observation:
        return self.obs

    def act(self, actions: Any) -> Observation:
        return self.obs

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    "wrong",
    [
        Observation(actions={"plan": GlobalCategoricalActionMask([True, False])}),
        Observation(
            features={"A": [[0.0]]}, actions={"pick": SelectEntityActionMask(mask=[[1, 1]])}
        ),
        Observation(features={"A": [[0.0]]}, visible={"A": [True, False]}),
        Observation(features={"A": [[float("nan")]]}),
    ],
    ids=["global mask", "select mask", "visible", "nan"],
)
def test_b53_the_validator_checks_masks_visibility_and_numbers(wrong: Observation) -> None:
    with pytest.raises(InvalidObservation):
        ValidatingEnv(Recorder(wrong)).reset()


def test_b53_the_validator_closes_its_environment() -> None:
    env = Recorder(Observation())
    ValidatingEnv(env).close()
    assert env.closed


def test_b54_the_reset_does_not_count_as_a_step() -> None:
    class TwoSteps(Recorder):
        def act(self, actions: Any) -> Observation:
            self.steps = getattr(self, "steps", 0) + 1
            return Observation(reward=1.0, done=self.steps % 2 == 0)

    envs = AddMetricsWrapper(EnvList(lambda: TwoSteps(Observation()), 1))
    envs.reset(AB)
    nothing = {name: Ragged(np.zeros(0, np.int64), np.array([0])) for name in envs.action_space()}
    lengths = [envs.act(nothing, AB).metrics["episode_length"] for _ in range(4)]
    assert [(metric.count, metric.sum) for metric in lengths] == [(0, 0), (1, 2), (0, 0), (1, 2)]


@pytest.mark.slow
def test_b56_environments_split_unevenly_and_none_is_created_in_the_parent() -> None:
    made = []

    def create() -> Walk:
        made.append(1)
        return Walk()

    workers = ParallelEnvList(create, 5, 3)
    try:
        assert [worker.setup.num_envs for worker in workers._workers] == [2, 2, 1]
        assert len(workers.reset(SPACE)) == 5
    finally:
        workers.close()
    assert made == []


def test_b72_an_actor_without_legal_choices_takes_no_action() -> None:
    obs = Observation(
        entities={"A": ([[0.0], [1.0], [2.0]], ["a", "b", "c"])},
        actions={
            "move": CategoricalActionMask(mask=[[True, True], [False, False], [False, True]]),
            "plan": GlobalCategoricalActionMask([False, False, False]),
        },
    )
    spaces = {**MOVE, **PLAN}
    masks = batch_obs([obs], AB, spaces).action_masks
    assert masks["move"].actors.values.tolist() == [0, 2]
    assert masks["plan"].actors.items() == 0
    chosen = {
        "move": Ragged(np.array([0, 1]), np.array([2])),
        "plan": Ragged(np.zeros(0, np.int64), np.array([0])),
    }
    actions = action_index_to_actions(AB, spaces, chosen, obs)
    assert list(actions) == ["move"]
    assert list(actions["move"].actors) == ["a", "c"]  # type: ignore[union-attr]
