"""Saves of a network of the user's own: what cannot be done with them is said."""

import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from enn_trainer import StateManager, train
from enn_trainer.base.errors import CheckpointError
from enn_trainer.checkpoints.format import Checkpoint
from enn_trainer.checkpoints.migrate import evolve
from enn_trainer.cli import run as enn
from entity_env import (
    ActionSpace,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
)
from entity_env.environment import Environment
from rogue_net import NetOutput
from rogue_net.answer import answer
from tests.enn_trainer.builders import SMALL, run_small


class Hourly(Environment):
    """A world with global actions alone."""

    features: ClassVar = ["hour", "minute"]
    labels: ClassVar = ["wait", "ring"]

    def obs_space(self) -> ObsSpace:
        return ObsSpace([*self.features])

    def action_space(self) -> dict[str, ActionSpace]:
        return {"do": GlobalCategoricalActionSpace([*self.labels])}

    def reset(self) -> Observation:
        mask = GlobalCategoricalActionMask()
        return Observation(global_features=[1.0, 2.0], actions={"do": mask})

    def act(self, actions: Any) -> Observation:
        return self.reset()


class MinutesFirst(Hourly):
    features: ClassVar = ["minute", "hour"]


class RingFirst(Hourly):
    labels: ClassVar = ["ring", "wait"]


class Simple(torch.nn.Module):
    """A network of the user's own, of linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.choose, self.value = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)

    def forward(self, batch: Any, actions: Any = None, uniforms: Any = None) -> NetOutput:
        (rows,) = batch.features.values()
        log_probs = {"do": self.choose(rows.values).log_softmax(dim=1)}
        return answer(log_probs, self.values(batch), actions, uniforms)

    def values(self, batch: Any) -> dict[str, torch.Tensor]:
        (rows,) = batch.features.values()
        return {"value": self.value(rows.values)}

    def update_input_stats(self, batch: Any) -> None:
        """There are none."""


@pytest.fixture(scope="module")
def own_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("own")
    run_small(folder, env=Hourly, agent=Simple(), checkpoint_dir=folder / "run")
    return folder / "run"


@pytest.mark.parametrize(
    ("world", "difference"),
    [
        (MinutesFirst, r"global features: reordered \['hour', 'minute'\]"),
        (RingFirst, r"labels of do: reordered \['wait', 'ring'\]"),
    ],
)
def test_custom_network_refuses_init_weights_with_names_in_another_order(
    own_run: Path, tmp_path: Path, world: type[Hourly], difference: str
) -> None:
    """Its tensors cannot be moved by name, and their shapes do not tell."""
    overrides = [*SMALL, f"data_dir={tmp_path}", "total_timesteps=24"]
    with pytest.raises(CheckpointError, match=f"--init-from: .* another environment: {difference}"):
        train(StateManager(overrides=overrides, init_from=own_run), world, agent=Simple())
    same = StateManager(overrides=overrides, init_from=own_run)
    train(same, Hourly, agent=Simple())
    assert same.state.step == 24


def test_custom_network_reads_its_initial_weights_once(
    own_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run of the save may go on, and delete it after it was found."""
    folder, find = shutil.copytree(own_run, tmp_path / "run"), evolve.find

    def then_delete(path: Path) -> Checkpoint:
        found = find(path)
        for save in folder.glob("step-*"):
            shutil.rmtree(save)
        return found

    monkeypatch.setattr(evolve, "find", then_delete)
    overrides = [*SMALL, f"data_dir={tmp_path}", "total_timesteps=24"]
    train(StateManager(overrides=overrides, init_from=folder), Hourly, agent=Simple())


def test_save_of_a_custom_network_is_reported_as_such(
    own_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = ["--env", f"{__name__}:Hourly"]
    for command in (["diff", str(own_run)], ["evolve", str(own_run), "--to", str(tmp_path / "a")]):
        assert enn(["checkpoints", *command, *world]) == 2
        assert "got weights of a custom network" in capsys.readouterr().err
    overrides = [*SMALL, f"data_dir={tmp_path}"]
    with pytest.raises(CheckpointError, match=r"of a custom network, with choose\.bias"):
        train(StateManager(overrides=overrides, init_from=own_run), Hourly)
