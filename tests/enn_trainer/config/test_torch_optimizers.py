"""Optimizers of torch without its compiler: the same steps, and a run that begins sooner."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from enn_trainer.config.torch_optimizers import (
    new_optimizer,
    problems_of_optimizer,
    usable_optimizers,
)
from tests.enn_trainer.builders import SMALL

NAMES = [name for name in usable_optimizers() if name != "LBFGS"]


def steps_of(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], count: int) -> None:
    for i in range(count):
        optimizer.zero_grad()
        for p in parameters:
            p.grad = torch.sin(p.detach() + i)
        optimizer.step()


def weights() -> list[nn.Parameter]:
    values = torch.linspace(-1, 1, 12)
    return [nn.Parameter(values.clone().reshape(3, 4)), nn.Parameter(values[:5].clone())]


@pytest.mark.parametrize("name", NAMES)
def test_steps_and_states_match_torch(name: str) -> None:
    ours, reference = weights(), weights()
    cls: Any = getattr(torch.optim, name)
    optimizer = new_optimizer(name, {}, ours, lr=0.01)
    kwargs = {
        key: optimizer.defaults[key] for key in ("eps", "weight_decay") if key in optimizer.defaults
    }
    expected = cls(reference, lr=0.01, **kwargs)
    steps_of(optimizer, ours, 3)
    steps_of(expected, reference, 3)
    for mine, its in zip(ours, reference, strict=True):
        assert torch.equal(mine, its)
    resumed = new_optimizer(name, {}, ours, lr=0.5)
    resumed.load_state_dict(copy.deepcopy(expected.state_dict()))
    steps_of(resumed, ours, 2)
    steps_of(expected, reference, 2)
    for mine, its in zip(ours, reference, strict=True):
        assert torch.equal(mine, its)
    assert resumed.state_dict()["param_groups"] == expected.state_dict()["param_groups"]
    assert isinstance(optimizer, cls)
    assert repr(optimizer).startswith(f"{name} (")


def test_hooks_of_an_optimizer_are_called() -> None:
    parameters, called = weights(), list[str]()
    optimizer = new_optimizer("AdamW", {}, parameters, lr=0.01)
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    steps_of(optimizer, parameters, 1)
    assert called == ["before", "after"]


def test_step_works_in_any_gradient_mode() -> None:
    parameters = weights()
    steps_of(new_optimizer("AdamW", {}, parameters, lr=0.01), parameters, 1)
    assert torch.is_grad_enabled()
    assert all(p.grad_fn is None and p.requires_grad for p in parameters)


@pytest.mark.slow
def test_a_run_and_loading_its_agent_do_not_import_the_compiler(tmp_path: Path) -> None:
    """It takes longer than everything else until the first update."""
    code = (
        "import sys\n"
        "from enn_trainer import load_agent\n"
        "from enn_trainer.cli import run\n"
        "assert run(sys.argv[1:]) == 0\n"
        "load_agent('run')\n"
        "assert not {'torch._dynamo', 'torch._inductor', 'sympy'} & set(sys.modules)"
    )
    arguments = ["train", "env.id=Xor", *SMALL, "--checkpoint-dir", "run"]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, timeout=120, cwd=tmp_path)


def test_many_unknown_arguments_are_summarized() -> None:
    kwargs = json.dumps({f"betas{i}": 0 for i in range(30)})
    problems = [*problems_of_optimizer("AdamW", kwargs, decays=False)]
    assert len(problems) == 21
    assert problems[-1] == "kwargs: 10 more that are not arguments of AdamW"
