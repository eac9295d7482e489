"""Runs that enn_trainer 0.1.16 made, of several worlds, act and learn on as that program does.

`tests/golden/published_checkpoints/README.md` says how they were made. All numbers are that
program's own.
"""

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch

from enn_trainer import CheckpointError, State, StateManager, load_agent, train
from enn_trainer.algorithms.ppo.returns import Estimate
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.migrate.evolve import upgrade_checkpoint
from enn_trainer.config.ppo_config import OptimizerConfig
from enn_trainer.experience.collector import Rollout
from entity_env import (
    CategoricalActionMask,
    Environment,
    GlobalCategoricalActionMask,
    Observation,
    SelectEntityActionMask,
)
from entity_env.examples import FloorIsLava, Minefield, RockPaperScissors, TreasureHunt
from entity_env.spaces import GLOBAL
from entity_env.vec.batching import batch_obs
from rogue_net import EntityBatch
from rogue_net.embedding import module_key
from rogue_net.published import from_published, renamed
from rogue_net.ragged import RaggedTensor
from tests.enn_trainer.algorithms.ppo.builders import optimize
from tests.golden.published_checkpoints.harbour import Harbour

GOLDEN = Path(__file__).parents[2] / "golden" / "published_checkpoints"
CONFIGS = GOLDEN.parent / "configs"
WORLDS: dict[str, type[Environment]] = {
    "floor_is_lava": FloorIsLava,
    "harbour": Harbour,
    "hunt_by_type": TreasureHunt,
    "minefield": Minefield,
    "rock_paper_scissors": RockPaperScissors,
    "treasure_hunt": TreasureHunt,
}
NAME = "latest-step000000000512"
MASKS = {
    mask.__name__: mask
    for mask in (CategoricalActionMask, GlobalCategoricalActionMask, SelectEntityActionMask)
}

every_run = pytest.mark.parametrize("name", WORLDS)


def test_published_checkpoints_are_complete_and_small() -> None:
    assert {path.parent.parent.name for path in GOLDEN.glob("*/*/state.ron")} == set(WORLDS)
    for name in WORLDS:
        files = [path for path in (GOLDEN / name).rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in files) < 150_000


def expected_of(name: str) -> dict[str, Any]:
    return dict(json.loads((GOLDEN / name / "expected.json").read_text()))


def observation(frame: Mapping[str, Any]) -> Observation:
    masks = {}
    for action, fields in frame["masks"].items():
        given = {key: value for key, value in fields.items() if key != "kind"}
        masks[action] = MASKS[fields["kind"]](**given)
    return Observation(
        global_features=frame["global_features"],
        features=frame["entities"],
        ids=frame["ids"],
        visible=frame["visible"],
        actions=masks,
    )


# What they say


@every_run
def test_published_agent_reproduces_its_outputs(name: str) -> None:
    agent = load_agent(GOLDEN / name)
    for case in expected_of(name)["cases"]:
        obs = batch_obs([observation(case["frame"])], agent.obs_space, agent.action_space)
        with torch.no_grad():
            out = agent.agent(EntityBatch.of(obs))
        assert out.values["value"].item() == pytest.approx(case["value"], abs=1e-6)
        assert out.entropies.keys() == case["probs"].keys() == agent.action_space.keys()
        for action, probs in case["probs"].items():
            log_probs = out.log_probs[action]
            np.testing.assert_allclose(log_probs.exp().flatten(), np.ravel(probs), atol=1e-6)
            entropy = case["entropy"][action]
            np.testing.assert_allclose(out.entropies[action], entropy, atol=1e-6)


@every_run
def test_published_agent_plays(name: str) -> None:
    agent = load_agent(GOLDEN / name)
    actions, value = agent.act(WORLDS[name]().reset())
    assert actions
    assert math.isfinite(value)


# What they go on with


def moments_of(state: State) -> dict[str, dict[str, torch.Tensor]]:
    names = {parameter: name for name, parameter in state.agent.named_parameters()}
    return {names[p]: entry for p, entry in state.optimizer.state.items()}


def parameters_of_file(save: Path) -> dict[str, int]:
    """The published name of each parameter, and its number in the file of the optimizer."""
    content = msgpack.unpackb((save / "state.agent.msgpack").read_bytes())
    names = [n for n in content if n.endswith(("weight", "bias", "embedding"))]
    names = [n for n in names if ".attn.relpos_encoding." not in n]
    return {name: number for number, name in enumerate(names)}


def numbers(tensor: Any) -> torch.Tensor:
    data = np.frombuffer(tensor[b"data"], dtype=tensor[b"dtype"])
    return torch.from_numpy(data.copy()).reshape(tensor[b"shape"])


# With a projection of relative positions for each type, the published network used the sum of them
# for the first type. It cannot be told which of the others learnt what.
UNUSED = {
    f"relpos.{which}_projection.{module_key(name)}.{parameter}"
    for which in ("key", "value")
    for name in ("Treasure", GLOBAL)
    for parameter in ("weight", "bias")
}


@every_run
def test_published_moments_are_loaded_by_name(name: str) -> None:
    save = GOLDEN / name / NAME
    content = msgpack.unpackb(
        (save / "state.optimizer.msgpack").read_bytes(), strict_map_key=False
    )["state"]
    restored = moments_of(StateManager(init_path=save).state)
    published = parameters_of_file(save)
    assert set(content) <= set(published.values())
    for key in ("exp_avg", "exp_avg_sq"):
        tensors = {n: numbers(content[i][key]) for n, i in published.items() if i in content}
        assert all(tensor.abs().sum() > 0 for n, tensor in tensors.items() if "Whale" not in n)
        ours = renamed(tensors)
        assert ours.keys() == restored.keys()
        for parameter in ours.keys() - UNUSED:
            assert torch.equal(restored[parameter][key], ours[parameter]), (parameter, key)
    steps = {float(numbers(entry["step"])) for entry in content.values()}
    assert {float(restored[n]["step"]) for n in restored.keys() - UNUSED} == steps
    assert steps <= set(range(1, 25))  # four updates of 3 * 2 steps at most


def test_moments_of_unused_projections_restart() -> None:
    """Row B36. With moments of 0 after many steps, their first steps would be far too large."""
    state = StateManager(init_path=GOLDEN / "hunt_by_type").state
    moments = moments_of(state)
    for name, parameter in state.agent.named_parameters():
        if name in UNUSED:
            assert not parameter.any()
            assert [float(value.abs().sum()) for value in moments[name].values()] == [0.0, 0.0, 0.0]
    assert moments.keys() >= UNUSED
    names = [name for name in moments if "_projection" in name and name not in UNUSED]
    assert len(names) == 4
    assert all(moments[name]["step"] == 24 and moments[name]["exp_avg"].any() for name in names)


@every_run
def test_published_step_counters_are_loaded(name: str) -> None:
    state = StateManager(init_path=GOLDEN / name).state
    world = WORLDS[name]()
    assert (state.step, state.restart) == (512, 0)
    assert state.next_eval_step == (400 if name == "minefield" else None)
    assert (state.obs_space, state.action_space) == (world.obs_space(), world.action_space())


# Everything decayed in the published program; see docs/old_runs.md.
ALL_DECAYS = 'optim.groups=[(pattern: "*", weight_decay: 0.01)]'


@pytest.mark.parametrize("name", sorted(WORLDS.keys() - {"hunt_by_type"}))
def test_next_optimizer_step_equals_that_of_the_published_program(name: str) -> None:
    """Of the same minibatch, with the statistics of the features held fixed in both.

    Where one projection has the place of several, as with `hunt_by_type`, it takes one step where
    each of them took one.
    """
    overrides = [ALL_DECAYS] if name == "minefield" else []
    manager = StateManager(init_path=GOLDEN / name, overrides=overrides)
    state, expected = manager.state, expected_of(name)
    minibatch, size = expected["minibatch"], len(expected["cases"])
    frames = [observation(case["frame"]) for case in expected["cases"]]
    before = {key: tensor.clone() for key, tensor in state.agent.state_dict().items()}
    for group in state.optimizer.param_groups:
        group["lr"] = minibatch["lr"]
    losses = optimize(
        state.agent,
        state.optimizer,
        rollout_of(state, frames, minibatch),
        Estimate(one_by_one(minibatch["returns"]), one_by_one(minibatch["advantages"])),
        ppo=manager.config.ppo,
        optim=one_step_of(manager, size),
        ent_coef=minibatch["ent_coef"],
        seed=1,
    )
    for ours, theirs in {
        "losses/policy_loss": "policy_loss",
        "losses/value_loss": "value_loss",
        "losses/entropy": "entropy",
        "losses/gradnorm": "grad_norm",
    }.items():
        assert losses[ours] == pytest.approx(minibatch[theirs], rel=1e-4, abs=1e-5), ours
    content = msgpack.unpackb((GOLDEN / name / "next.agent.msgpack").read_bytes())
    after = from_published({key: numbers(tensor) for key, tensor in content.items()})
    moved = 0.0
    for parameter, tensor in state.agent.named_parameters():
        moved = max(moved, (after[parameter] - before[parameter]).abs().max().item())
        np.testing.assert_allclose(tensor.detach(), after[parameter], atol=2e-6, err_msg=parameter)
    assert moved > 1e-3


def rollout_of(state: State, frames: list[Observation], minibatch: Mapping[str, Any]) -> Rollout:
    """One step of as many environments as there are frames, as another policy played it."""
    obs = batch_obs(frames, state.obs_space, state.action_space)
    lengths = {name: np.array(counts) for name, counts in minibatch["actors"].items()}
    nothing = torch.zeros(1, len(frames))
    return Rollout(
        batch=EntityBatch.of(obs),
        actions={
            n: RaggedTensor(torch.tensor(minibatch["chosen"][n]), lengths[n]) for n in lengths
        },
        logprobs={
            n: RaggedTensor(torch.tensor(minibatch["old_logprobs"][n]), lengths[n]) for n in lengths
        },
        entropies={},
        values=one_by_one(minibatch["old_values"]),
        rewards=nothing,
        terminated=nothing.bool(),
        truncated=nothing.bool(),
        last_values=nothing[0],
        final_values=torch.zeros(0),
        metrics={},
        next_obs=obs,
    )


def one_by_one(values: list[float]) -> torch.Tensor:
    return torch.tensor(values)[None]


def one_step_of(manager: StateManager, size: int) -> OptimizerConfig:
    """The optimizer's settings, with all frames in one minibatch, once."""
    return replace(manager.config.optim, bs=size, update_epochs=1, micro_bs=None, shuffle=False)


def continued(
    tmp_path: Path, name: str, path: Path, *overrides: str, **places: Any
) -> StateManager:
    """The run after two more updates of 64 frames."""
    manager = StateManager(
        init_path=path,
        overrides=[
            "total_timesteps=640",
            "rollout.steps=4",
            f"data_dir={tmp_path}",
            *overrides,
        ],
        **places,
    )
    count = max(entry["step"].item() for entry in moments_of(manager.state).values())
    before = {key: tensor.clone() for key, tensor in manager.state.agent.state_dict().items()}
    train(manager, WORLDS[name])
    state = manager.state
    assert (state.step, state.restart) == (640, 1)
    after = max(entry["step"].item() for entry in moments_of(state).values())
    assert after == count + 2 * 3
    moved = [
        key for key, tensor in state.agent.state_dict().items() if not tensor.equal(before[key])
    ]
    assert moved
    for tensor in state.agent.state_dict().values():
        assert tensor.isfinite().all()
    return manager


@pytest.mark.slow
@every_run
def test_published_run_resumes_for_two_updates(name: str, tmp_path: Path) -> None:
    """Its folder has an older save and something else beside the newest one."""
    old = tmp_path / "old"
    shutil.copytree(GOLDEN / name, old)
    older = shutil.copytree(old / NAME, old / "latest-step000000000384")
    state = (older / "state.ron").read_text()
    (older / "state.ron").write_text(state.replace("step: 512", "step: 384"))
    (old / "best-step000000009999").mkdir()
    continued(tmp_path, name, old, checkpoint_dir=tmp_path / "run")
    assert find(tmp_path / "run").step == 640
    agent = load_agent(tmp_path / "run")
    assert agent.act(WORLDS[name]().reset()).actions


@every_run
def test_upgraded_checkpoint_reproduces_its_outputs(name: str, tmp_path: Path) -> None:
    upgrade_checkpoint(GOLDEN / name, tmp_path / "new")
    expected, got = StateManager(init_path=GOLDEN / name), StateManager(init_path=tmp_path / "new")
    for key, tensor in expected.state.agent.state_dict().items():
        assert torch.equal(got.state.agent.state_dict()[key], tensor)
    moments = moments_of(got.state)
    for parameter, entry in moments_of(expected.state).items():
        assert all(torch.equal(moments[parameter][key], entry[key]) for key in entry)


# What is damaged


@pytest.fixture(params=sorted(WORLDS))
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder of a run with one save of it, which is called as the world is."""
    (tmp_path / request.param).mkdir()
    shutil.copytree(GOLDEN / request.param / NAME, tmp_path / request.param / NAME)
    return tmp_path / request.param


def test_published_run_without_optimizer_plays_but_cannot_resume(run: Path) -> None:
    expected = StateManager(init_path=run).state.agent.state_dict()
    (run / NAME / "state.optimizer.msgpack").unlink()
    assert load_agent(run).act(WORLDS[run.name]().reset()).actions
    with pytest.raises(CheckpointError, match=r"state\.optimizer\.msgpack: cannot be read") as said:
        StateManager(init_path=run).state  # noqa: B018
    assert "\n" not in str(said.value)
    assert str(said.value).endswith("use --init-from to start a new run with the weights alone")
    begun = StateManager(init_path=run / NAME / "config.ron", init_from=run)
    begun.set_deserialize_ctx("obs_space", WORLDS[run.name]().obs_space())
    begun.set_deserialize_ctx("action_space", WORLDS[run.name]().action_space())
    assert begun.state.step == 0
    for name, tensor in begun.state.agent.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("file", ["state.agent.msgpack", "state.optimizer.msgpack"])
def test_every_cut_is_found(file: str, run: Path) -> None:
    whole = (run / NAME / file).read_bytes()
    for size in {*range(0, len(whole), len(whole) // 5), len(whole) - 1}:
        (run / NAME / file).write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=rf"{file}: cannot be read".replace(".", r"\.")):
            StateManager(init_path=run / NAME).state  # noqa: B018


@pytest.mark.parametrize("file", ["config.ron", "state.ron"])
def test_every_cut_of_the_text_is_found(file: str, run: Path) -> None:
    whole = (run / NAME / file).read_text()
    for size in {*range(0, len(whole), len(whole) // 5), len(whole) - 1}:
        (run / NAME / file).write_text(whole[:size])
        with pytest.raises(CheckpointError):
            load_agent(run / NAME)


def test_configuration_of_another_network_is_refused(run: Path) -> None:
    """Of version 0, made for another run: it has its own sizes."""
    other = "multisnake_2snakes11len" if run.name == "minefield" else "minefield"
    shutil.copy(CONFIGS / f"{other}.ron", run / NAME / "config.ron")
    for use in (load_agent, lambda path: StateManager(init_path=path).state):
        with pytest.raises(CheckpointError) as said:
            use(run / NAME)
        assert str(run / NAME) in str(said.value)
        assert "\n" not in str(said.value)


def test_newest_valid_published_checkpoint_is_used_if_the_newest_is_damaged(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = shutil.copytree(run / NAME, run / "latest-step000000000640")
    data = (newer / "state.agent.msgpack").read_bytes()
    (newer / "state.agent.msgpack").write_bytes(data[:-7])
    assert load_agent(run).act(WORLDS[run.name]().reset()).actions
    said = capsys.readouterr().out
    assert f"using {NAME} instead" in said
    assert "latest-step000000000640/state.agent.msgpack" in said
    assert StateManager(init_path=run).state.step == 512


@pytest.mark.parametrize(
    "odd",
    ["latest-step", "latest-step-00000000900", "latest-step9e9", "latest-step000000000900.tmp"],
)
def test_folder_with_another_name_is_ignored(odd: str, run: Path) -> None:
    shutil.copytree(run / NAME, run / odd)
    (run / odd / "state.ron").unlink()
    assert find(run).path == run / NAME


@pytest.mark.parametrize(
    "odd", ["latest-step1000000000000", "latest-step0", "latest-step\u0665\u0661\u0662"]
)
def test_other_number_formats_are_read(odd: str, run: Path) -> None:
    """Beyond 999,999,999,999 frames a name has more than twelve digits."""
    (run / NAME).rename(run / odd)
    assert find(run).path == run / odd
