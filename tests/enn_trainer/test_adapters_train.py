"""Training in worlds of Gymnasium and PettingZoo."""

from pathlib import Path
from typing import Any

import gymnasium
import pytest

from enn_trainer import StateManager, train
from entity_env.adapters.from_gymnasium import FromGymnasium
from entity_env.adapters.from_gymnasium_vector import FromGymnasiumVector
from entity_env.adapters.from_pettingzoo import FromGymnasiumAgents, FromPettingZoo
from tests.entity_env.adapters.worlds import FORAGING, FORAGING_ID, KAZ, KAZ_TEAMS, make_kaz

SMALL = [
    "rollout.num_envs=4",
    "rollout.steps=4",
    "rollout.processes=1",
    "optim.bs=8",
    "net.d_model=8",
    "net.n_layer=1",
    "total_timesteps=32",
]


def vectorised(env_id: str) -> Any:
    def factory(config: Any, num_envs: int, processes: int, first_env_index: int) -> Any:
        vec_env = gymnasium.make_vec(env_id, num_envs)
        return FromGymnasiumVector(vec_env, first_env_index=first_env_index)

    return factory


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*intersection-v0 is out of date:DeprecationWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: FromGymnasium.of("highway_env:intersection-v0"),
        lambda: FromGymnasiumAgents.of(FORAGING_ID, FORAGING),
        lambda: FromPettingZoo.of(make_kaz, KAZ, line_death=True),
        lambda: FromPettingZoo.of(make_kaz, KAZ, KAZ_TEAMS, line_death=True),
        lambda: vectorised("CartPole-v1"),
        lambda: vectorised("Pendulum-v1"),
    ],
    ids=["intersection", "foragers", "knights", "knights_in_teams", "vectorised", "numbers"],
)
def test_adapted_environments_train(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    manager = StateManager(overrides=[*SMALL, f"data_dir={tmp_path}"])
    train(manager, make())
    assert manager.state.step == 32
