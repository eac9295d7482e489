"""On a GPU, which computes while Python goes on, learning asks for no number before an update ends.

Here the CPU takes its place, which can do all of that and answers at once.
"""

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from enn_trainer import NotFiniteError, OptimizerConfig, PPOConfig, load_checkpoint, train
from enn_trainer.algorithms.ppo import ppo as optimize_module
from enn_trainer.algorithms.ppo.entropy_targets import initial_tuning
from enn_trainer.algorithms.ppo.returns import advantages
from enn_trainer.experience.collector import Rollout
from rogue_net import RogueNet
from tests.enn_trainer.algorithms.ppo.builders import OPTIONS, a_rollout, double, optimize
from tests.enn_trainer.builders import Exploding, manager_of
from tests.enn_trainer.resuming import assert_same

WAITING_METHODS = ["item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__"]
WAITING_OPERATIONS = {
    *("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten.bincount"),
    *("aten._unique2", "aten.equal", "aten.repeat_interleave"),
}


class Operations(TorchDispatchMode):
    """Counts those whose result has a size, or goes to Python, that a GPU has to say first."""

    def __init__(self, waits: Counter[str]) -> None:
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(self, of: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(of.overloadpacket)
        by_mask = name.startswith("aten.index") and any(
            isinstance(arg, list) and any(i is not None and i.dtype == torch.bool for i in arg)
            for arg in args
        )
        if by_mask or name in WAITING_OPERATIONS:
            self.waits[name] += 1
        return of(*args, **(kwargs or {}))


@contextmanager
def waits_counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    waits: Counter[str] = Counter()

    def counted(name: str) -> Any:
        method = getattr(torch.Tensor, name)

        def count(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            waits[name] += 1
            return method(self, *args, **kwargs)

        return count

    with monkeypatch.context() as patch:
        for name in WAITING_METHODS:
            patch.setattr(torch.Tensor, name, counted(name))
        with Operations(waits):
            yield waits


def learn(net: RogueNet, rollout: Rollout, ppo: PPOConfig, bs: int, longest: float = 0.5) -> None:
    optimize(
        net,
        torch.optim.SGD(net.parameters(), lr=1e-3),
        rollout,
        advantages(rollout, ppo),
        ppo=ppo,
        optim=OptimizerConfig(bs=bs, update_epochs=2, max_grad_norm=longest),
        ent_coef=0.1,
        seed=3,
        ent_tunings={name: initial_tuning(0.1).double() for name in ppo.ent_targets},
    )


@pytest.fixture
def like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimize_module, "_is_synchronous", lambda device: False)


@pytest.mark.slow
@pytest.mark.usefixtures("like_a_gpu")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_minibatches_do_not_synchronise(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    ppo = PPOConfig(**options)
    net, rollout = a_rollout(num_envs=8, ppo=ppo)
    net, rollout = net.double(), double(rollout)
    counted = []
    for bs in (48, 8):  # 2 minibatches, 12 minibatches
        with waits_counted(monkeypatch) as waits:
            learn(net, rollout, ppo, bs)
        counted.append(waits)
    assert counted[0] == counted[1]
    assert counted[0]["item"]  # what is reported in the end


def test_synchronisations_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    net, rollout = a_rollout(num_envs=8)
    with waits_counted(monkeypatch) as waits:
        learn(net.double(), double(rollout), PPOConfig(), bs=8)
    assert waits["__float__"] >= 12  # the CPU is asked for the norm of each gradient


@pytest.mark.parametrize("longest", [1e-3, 1e3])
def test_asynchronous_update_equals_synchronous_one(
    monkeypatch: pytest.MonkeyPatch, longest: float
) -> None:
    net, rollout = a_rollout(num_envs=8)
    learnt = []
    for is_near in (True, False):
        one = copy.deepcopy(net).double()
        with monkeypatch.context() as patch:
            patch.setattr(optimize_module, "_is_synchronous", lambda _, near=is_near: near)
            learn(one, double(rollout), PPOConfig(), bs=8, longest=longest)
        learnt.append(one.state_dict())
    torch.testing.assert_close(learnt[0], learnt[1], rtol=0, atol=0)


@pytest.mark.usefixtures("like_a_gpu")
def test_nan_is_detected_at_the_end_of_the_update(tmp_path: Path) -> None:
    Exploding.frames = 0
    settings = ["ppo.value_norm=false", "ppo.value_loss=mse"]
    manager = manager_of(tmp_path, *settings, checkpoint_dir=tmp_path / "run")
    with pytest.raises(NotFiniteError, match=r"the update: .*the value loss is"):
        train(manager, Exploding)
    saved = load_checkpoint(tmp_path / "run").state
    assert saved.step > 0
    assert_same(saved, manager.state)
    assert all(p.isfinite().all() for p in manager.state.agent.parameters())
