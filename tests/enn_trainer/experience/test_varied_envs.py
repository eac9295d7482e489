"""Arguments that vary in training, and their metrics."""

from pathlib import Path

import pytest

from enn_trainer import ConfigError, StateManager
from enn_trainer.run.trainer import Trainer
from entity_env.adapters.from_gymnasium import FromGymnasium
from entity_env.examples.minefield import Minefield
from entity_env.recording.read_recording import Recording
from entity_env.seeding import derive_seed
from entity_env.vec.variation import Variation
from tests.entity_env.adapters.worlds import Fall

SETTINGS = ("rollout.num_envs=4", "rollout.steps=32", "optim.bs=64", "cuda=false")
VARY = 'env.vary.max_mines="int 0 20"'
SHORT = 'env.kwargs={"max_steps": 5}'


def drawn(tmp_path: Path, *settings: str) -> list[dict[str, float]]:
    """Return the metrics of arguments in three updates, with a change after the first."""
    manager = StateManager(overrides=[*SETTINGS, SHORT, f"data_dir={tmp_path}", *settings])
    with Trainer(manager, Minefield) as trainer:
        updates = [trainer.step()]
        trainer.set_parameters({"max_mines": "7"})
        updates += [trainer.step(), trainer.step()]
        assert manager.state.parts["curriculum"].state_dict() == {"parameters": {"max_mines": "7"}}
    return [{t: v for t, v in m.items() if t.startswith("parameters/")} for m in updates]


@pytest.mark.slow
def test_arguments_do_not_depend_on_processes(tmp_path: Path) -> None:
    one, two = (drawn(tmp_path, VARY, f"rollout.processes={n}") for n in (1, 2))
    assert one == two
    tag = "parameters/max_mines"
    assert one[0][f"{tag}.min"] < one[0][f"{tag}.mean"] < one[0][f"{tag}.max"] <= 20
    assert one[2] == {f"{tag}.mean": 7, f"{tag}.min": 7, f"{tag}.max": 7}


def test_arguments_that_cannot_vary_raise(tmp_path: Path) -> None:
    for setting, problem in [
        ('env.vary.max_mine="1"', "env.vary: .*did you mean max_mines"),
        ('env.vary.max_mines="int 9 1"', "env.vary.max_mines: character 7"),
        ('env.vary.max_steps="9"', "vary: expected arguments that are not in kwargs"),
    ]:
        with pytest.raises(ConfigError, match=problem):
            drawn(tmp_path, "rollout.processes=1", setting)


class Sized(Minefield):
    """Minefield with an argument that has no default value."""

    def __init__(self, size: int) -> None:
        super().__init__(max_mines=size)


def test_arguments_that_vary_need_a_default_value(tmp_path: Path) -> None:
    settings = ["env.kwargs={}", 'env.vary.size="1"', f"data_dir={tmp_path}"]
    expected = "env.kwargs: missing .* 'size'; .*; a varied argument needs a default value"
    with pytest.raises(ConfigError, match=expected):
        Trainer(StateManager(overrides=settings), Sized)


def test_options_of_gymnasium_environments_vary(tmp_path: Path) -> None:
    fall = FromGymnasium.of(Fall, options=["gravity"], height=2.0)
    settings = [*SETTINGS, "rollout.processes=1", f"data_dir={tmp_path}"]
    vary = 'env.vary.gravity="uniform 1 20"'
    with Trainer(StateManager(overrides=[*settings, vary]), fall) as trainer:
        metrics = trainer.step()
    tag = "parameters/gravity"
    assert 1 <= metrics[f"{tag}.min"] < metrics[f"{tag}.max"] <= 20
    bad = StateManager(overrides=[*settings, 'env.vary.graviti="1"'])
    with pytest.raises(ConfigError, match=r"env\.vary: .*did you mean gravity"):
        Trainer(bad, fall)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_recordings_have_the_arguments_of_each_episode(tmp_path: Path, processes: int) -> None:
    settings = [*SETTINGS, SHORT, VARY, f"rollout.processes={processes}", "capture_samples=a.rec"]
    manager = StateManager(checkpoint_dir=tmp_path / "run", overrides=settings)
    with Trainer(manager, Minefield) as trainer:
        trainer.step()
        trainer.set_parameters({"max_mines": "30"})
        trainer.step()
    variation = Variation.of({"max_mines": "int 0 20"})
    drawn: dict[int, list[int]] = {}
    for one in sorted(Recording.open(tmp_path / "run/a.rec").episodes(), key=lambda e: e.number):
        assert one.env is not None
        drawn.setdefault(one.env, []).append(one.parameters["max_mines"])
    for env, values in drawn.items():
        first = values.index(30)  # episodes that begin after the change
        seed = derive_seed(1, "rollout", 0)
        expected = [variation.arguments(seed, env, i)["max_mines"] for i in range(first)]
        assert values == [*expected, *[30] * (len(values) - first)]
        assert first >= 6
