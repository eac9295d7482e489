"""What a run sets for the GPU holds while the run lasts, and no longer."""

from pathlib import Path
from typing import Any

import pytest
import torch

from enn_trainer import ConfigError, TrainConfig
from enn_trainer.cuda_settings import (
    cache_emptied_after_steps,
    choose_device,
    cudnn_deterministic,
)
from enn_trainer.settings.config_io import load_config
from tests.enn_trainer.builders import run_small
from tests.enn_trainer.worlds import Meadow


class Asks(Meadow):
    """Notes what is set while it is reset. Only for tests."""

    seen: set[bool] = set()  # noqa: RUF012 (of the class, as `train` makes the objects)

    def reset(self) -> Any:
        Asks.seen.add(torch.backends.cudnn.deterministic)
        return super().reset()


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_cudnn_is_deterministic_during_the_run_alone(
    tmp_path: Path, before: bool, asked: bool
) -> None:
    with cudnn_deterministic(before):
        Asks.seen.clear()
        overrides = [f"torch_deterministic={str(asked).lower()}", "total_timesteps=24"]
        run_small(tmp_path, *overrides, env=Asks)
        assert Asks.seen == {asked}
        assert torch.backends.cudnn.deterministic == before


def test_cudnn_is_restored_after_a_run_that_fails(tmp_path: Path) -> None:
    class Fails(Meadow):
        def act(self, actions: Any) -> Any:
            raise ZeroDivisionError

    with cudnn_deterministic(False):
        with pytest.raises(ZeroDivisionError):
            run_small(tmp_path, env=Fails)
        assert not torch.backends.cudnn.deterministic


def test_gpu_is_used_if_it_is_wanted_and_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for there in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert choose_device(True).type == ("cuda" if there else "cpu")
        assert choose_device(False).type == "cpu"


def test_cache_is_emptied_after_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    with cache_emptied_after_steps(optimizer):
        optimizer.step()
        optimizer.step()
        assert len(emptied) == 2
    optimizer.step()
    assert len(emptied) == 2


def test_a_cache_that_is_not_used_cannot_be_emptied() -> None:
    with pytest.raises(ConfigError, match=r"^cuda_empty_cache: expected cuda=true"):
        load_config(TrainConfig, None, ["cuda=false", "cuda_empty_cache=true"])


def test_a_machine_without_gpu_runs_with_the_settings_for_one(tmp_path: Path) -> None:
    """Configurations travel between machines."""
    assert run_small(tmp_path, "cuda=true", "cuda_empty_cache=true").state.step == 72
