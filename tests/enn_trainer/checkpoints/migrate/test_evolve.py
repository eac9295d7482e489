"""Runs whose world changes: resumed, upgraded, and taken as a beginning."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from enn_trainer import StateManager, load_agent, train
from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.migrate.evolve import EvolvedRun, evolve, evolved_state
from enn_trainer.checkpoints.migrate.evolve_rules import Rules
from enn_trainer.checkpoints.state import init_train_state
from enn_trainer.checkpoints.state_files import to_files
from enn_trainer.checkpoints.writer import save
from enn_trainer.cli import run as enn
from enn_trainer.command import run_command
from entity_env import CategoricalActionSpace, Entity, Observation, ObsSpace
from entity_env.environment import Environment
from entity_env.spaces import Spaces
from rogue_net.rogue_net import RogueNet
from tests.enn_trainer.builders import SMALL, run_small, weights
from tests.enn_trainer.worlds import Clockwork


class Turned(Clockwork):
    """The same with all names in another order."""

    def obs_space(self) -> ObsSpace:
        return ObsSpace(["hour"], {"peg": Entity([]), "gear": Entity(["x"])})

    def action_space(self) -> dict[str, object]:
        grip_and_turn = dict(reversed(super().action_space().items()))
        return {**grip_and_turn, "turn": CategoricalActionSpace(["right", "left"])}


class Oiled(Clockwork):
    """Gears have an age, there is oil, and a gear may stand still."""

    def __init__(self, age: float = 3.0) -> None:
        super().__init__()
        self.age = age

    def obs_space(self) -> ObsSpace:
        types = {"oil": Entity(["x"]), "gear": Entity(["age", "x"]), "peg": Entity([])}
        return ObsSpace(["hour"], types)

    def action_space(self) -> dict[str, object]:
        turn = CategoricalActionSpace(["stay", "left", "right"])
        return {**super().action_space(), "turn": turn}

    def _observe(self, reward: float) -> Observation:
        obs = super()._observe(reward)
        gears = [[self.age, row[0]] for row in obs.features["gear"]]
        obs.features = {**obs.features, "gear": gears, "oil": [[1.0]]}
        return obs


@pytest.fixture(scope="module")
def saved_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("saved")
    run_small(folder, env=Clockwork, checkpoint_dir=folder / "run")
    return folder / "run"


def evolved_to(env: Environment, saved_run: Path, **options: Any) -> EvolvedRun:
    saved = find(saved_run)
    return evolve(saved, env.obs_space(), env.action_space(), **options)


@pytest.mark.slow
def test_resumed_run_ignores_the_order_of_names(saved_run: Path, tmp_path: Path) -> None:
    """B6: it is wired by name; its optimizer as well."""
    before = StateManager(init_path=saved_run).state
    manager = StateManager(
        init_path=saved_run,
        checkpoint_dir=tmp_path / "on",
        overrides=["total_timesteps=72", f"data_dir={tmp_path}", "eval.steps=2"],
    )
    train(manager, Turned)  # is over at once, and measured
    after = manager.state
    assert after.action_space["turn"] == CategoricalActionSpace(["right", "left"])
    key = "action_heads./turn.project.weight"
    one, other = (state.agent.state_dict()[key] for state in (before, after))
    assert torch.equal(one[[1, 0]], other)
    moments = [state.optimizer.state for state in (before, after)]
    heads = [dict(state.agent.named_parameters())[key] for state in (before, after)]
    one, other = (m[h]["exp_avg"] for m, h in zip(moments, heads, strict=True))
    assert torch.equal(one[[1, 0]], other)
    longer = StateManager(
        init_path=saved_run, overrides=["total_timesteps=96", f"data_dir={tmp_path}"]
    )
    assert train(longer, Turned).step == 96


@pytest.mark.slow
def test_agent_acts_with_names_in_another_order(saved_run: Path) -> None:
    plain, turned = load_agent(saved_run), load_agent(saved_run, env=Turned())
    said, other = (a.act(Clockwork().reset()) for a in (plain, turned))
    one, two = said.actions["turn"], other.actions["turn"]
    assert one.index_to_label == two.index_to_label[::-1]  # type: ignore[union-attr]
    torch.testing.assert_close(one.probs, two.probs[:, ::-1].copy())  # type: ignore[union-attr]
    assert said.value == pytest.approx(other.value)
    with pytest.raises(
        CheckpointError, match="does not fit the environment: labels of turn: added"
    ):
        load_agent(saved_run, env=Oiled())


def test_another_environment_is_refused_with_all_differences_and_a_remedy(saved_run: Path) -> None:
    manager = StateManager(init_path=saved_run)
    with pytest.raises(CheckpointError) as error:
        train(manager, Oiled)
    message = str(error.value)
    assert "entity types: added ['oil']; features of gear: added ['age']" in message
    assert "labels of turn: added ['stay']; start a new run with --init-from" in message


def test_upgraded_run_continues(saved_run: Path, tmp_path: Path) -> None:
    """The step and the moments of the optimizer go with it."""
    evolved = evolved_to(Oiled(), saved_run)
    evolved.save(tmp_path / "run")
    manager = StateManager(
        checkpoint_dir=tmp_path / "run", overrides=["total_timesteps=96", f"data_dir={tmp_path}"]
    )
    assert manager.state.step == 72
    assert manager.state.run_name == ""
    assert torch.equal(weights(manager), weights_of(evolved.state.agent))
    result = train(manager, Oiled)
    assert result.step == 96
    assert manager.state.run_name  # trackers write to a folder of their own
    with pytest.raises(CheckpointError, match="expected a folder for a new run, got one with"):
        evolved.save(tmp_path / "run")


def weights_of(network: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in network.parameters()])


def test_moments_follow_their_parameters(saved_run: Path) -> None:
    """What is new has none; sizes of gradients begin with what the others have."""
    old, new = StateManager(init_path=saved_run).state, evolved_to(Oiled(), saved_run).state
    key = "embedding.by_type./gear.linear.weight"
    before, after = (s.optimizer.state[dict(s.agent.named_parameters())[key]] for s in (old, new))
    assert torch.equal(after["exp_avg"][:, 1:], before["exp_avg"])  # age, x, hour
    assert not after["exp_avg"][:, 0].any()
    assert torch.equal(after["exp_avg_sq"][:, 1:], before["exp_avg_sq"])
    torch.testing.assert_close(after["exp_avg_sq"][:, 0], before["exp_avg_sq"].mean(dim=1))
    assert after["step"] == before["step"]
    fresh = dict(new.agent.named_parameters())["embedding.by_type./oil.linear.weight"]
    assert fresh not in new.optimizer.state


@pytest.mark.slow
@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adafactor", "ASGD", "RMSprop", "Rprop"])
def test_moments_of_any_optimizer_follow(tmp_path: Path, name: str) -> None:
    run_small(tmp_path, f"optim.name={name}", env=Clockwork, checkpoint_dir=tmp_path / "run")
    # Of pegs there is one input, the hour; as oil they have another one.
    evolved = evolved_to(Oiled(), tmp_path / "run", rules=Rules({("type", "peg"): "oil"}))
    assert evolved.report.moments_dropped == []
    evolved.save(tmp_path / "new")
    overrides = ["total_timesteps=96", f"data_dir={tmp_path}"]
    assert train(StateManager(checkpoint_dir=tmp_path / "new", overrides=overrides), Oiled).step


def test_report_lists_the_fate_of_every_tensor(saved_run: Path) -> None:
    evolved = evolved_to(Oiled(), saved_run)
    old = StateManager(init_path=saved_run).state.agent.state_dict()
    moved = {one.key: one for one in evolved.report.tensors}
    assert {*moved} == {*old} | {*evolved.state.agent.state_dict()}
    gear = moved["embedding.by_type./gear.linear.weight"]
    assert (gear.fate, gear.before, gear.now) == ("grown", (8, 2), (8, 3))
    assert moved["embedding.by_type./oil.linear.bias"].fate == "new"
    assert moved["embedding.by_type./peg.linear.weight"].fate == "kept"
    back = evolve_back(evolved)
    assert back["embedding.by_type./gear.linear.weight"] == "cut"
    assert back["embedding.by_type./oil.linear.bias"] == "dropped"
    text = str(evolved.report)
    assert ["embedding.by_type./gear.linear.weight", "grown", "8x2", "8x3"] in [
        line.split() for line in text.splitlines()
    ]
    assert "entity types: added ['oil']" in text


def evolve_back(evolved: EvolvedRun) -> dict[str, str]:
    world = Clockwork()
    spaces = Spaces.of(world)
    _, report = evolved_state(evolved.state, evolved.config, evolved.config, spaces, Rules())
    return {one.key: one.fate for one in report.tensors}


def test_head_without_common_labels_is_new(saved_run: Path) -> None:
    """It has nothing of the save, nor has its optimizer."""
    world = Clockwork()
    actions = {**world.action_space(), "turn": CategoricalActionSpace(["cw", "ccw", "stay"])}
    evolved = evolve(find(saved_run), world.obs_space(), actions)
    moved = {one.key: one for one in evolved.report.tensors}
    weight = moved["action_heads./turn.project.weight"]
    assert (weight.fate, weight.before, weight.now) == ("new", None, (3, 8))
    head = dict(evolved.state.agent.named_parameters())["action_heads./turn.project.weight"]
    assert head not in evolved.state.optimizer.state
    assert head.detach().any()


def test_optimizer_groups_without_matches_are_reported(tmp_path: Path) -> None:
    group = 'optim.groups=[(pattern: "*/gear*", lr_factor: 0.5)]'
    run_small(tmp_path, group, env=Clockwork, checkpoint_dir=tmp_path / "run")
    world = Clockwork()
    space = world.obs_space()
    types = {"wheel" if name == "gear" else name: one for name, one in space.entities.items()}
    renamed = ObsSpace(space.global_features, types)
    rules = Rules({("type", "gear"): "wheel"})
    with pytest.raises(ConfigError) as error:
        evolve(find(tmp_path / "run"), renamed, world.action_space(), rules=rules)
    assert "--set optim.groups=" in str(error.value)
    assert "*/gear*" in str(error.value)
    assert len(str(error.value)) < 200


def test_entropy_targets_of_removed_actions_are_dropped(tmp_path: Path) -> None:
    targets = ['ppo.ent_targets={"turn": 0.5}', "ppo.ent_target_lr=0.2", "ppo.ent_coef=0.01"]
    run_small(tmp_path, *targets, env=Clockwork, checkpoint_dir=tmp_path / "run")
    saved = find(tmp_path / "run")
    world = Clockwork()
    actions = world.action_space()
    spun = {"spin" if name == "turn" else name: space for name, space in actions.items()}
    gone = evolve(saved, world.obs_space(), spun)
    assert gone.config.ppo.ent_targets == {}
    assert gone.state.ent_tunings == {}
    gone.save(tmp_path / "gone")
    assert StateManager(init_path=tmp_path / "gone").state.step == 72
    kept = evolve(saved, world.obs_space(), spun, rules=Rules({("action", "turn"): "spin"}))
    assert kept.config.ppo.ent_targets == {"spin": 0.5}


def test_rename_to_an_unknown_name_is_refused(
    saved_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rename = ["--env", f"{__name__}:Oiled", "--rename", "peg=oill"]
    new = ["--to", str(tmp_path / "new")]
    for command in (["diff", str(saved_run), *rename], ["evolve", str(saved_run), *rename, *new]):
        assert enn(["checkpoints", *command]) == 2
        assert capsys.readouterr().err.endswith("got 'oill'; did you mean oil?\n")
    assert not (tmp_path / "new").exists()
    overrides = [*SMALL, f"data_dir={tmp_path}"]
    manager = StateManager(overrides=overrides, init_from=saved_run, init_renames=["peg=oill"])
    with pytest.raises(ConfigError, match=r"got 'oill'; did you mean oil\?"):
        train(manager, Oiled)


def test_other_parts_of_a_network_are_refused(saved_run: Path) -> None:
    for override in ("net.d_model=16", "net.pooling=mean", "vf_net.d_model=8"):
        manager = StateManager(overrides=[*SMALL, override])
        with pytest.raises(CheckpointError, match=rf"{override.split('=')[0][:6]}.*expected"):
            evolved_to(Clockwork(), saved_run, config=manager.config)


def test_run_begins_with_the_weights_and_statistics_of_another(
    saved_run: Path, tmp_path: Path
) -> None:
    """At step 0, with its own configuration; nothing is learnt or seen before it is asked for."""
    old = StateManager(init_path=saved_run).state.agent
    said: list[str] = []
    manager = StateManager(
        overrides=[*SMALL, f"data_dir={tmp_path}", "total_timesteps=24", "optim.lr=0.5"],
        init_from=saved_run,
        checkpoint_dir=tmp_path / "run",
    )
    manager.say = said.append
    manager.set_deserialize_ctx("obs_space", Oiled().obs_space())
    manager.set_deserialize_ctx("action_space", Oiled().action_space())
    state = manager.state
    assert state.step == 0
    assert isinstance(state.agent, RogueNet)
    norm = "embedding.by_type./gear.norm.mean"
    assert torch.equal(state.agent.state_dict()[norm][1:], old.state_dict()[norm])
    assert not state.optimizer.state
    assert "features of gear: added ['age']" in said[0]
    assert train(manager, Oiled).step == 24
    again = StateManager(checkpoint_dir=tmp_path / "run", init_from=saved_run)
    again.say = said.append
    assert again.state.step == 24
    assert said[-1].endswith("is not used")


def test_statistics_start_from_the_first_frames_unless_loaded(
    saved_run: Path, tmp_path: Path
) -> None:
    norm = "embedding.by_type./gear.norm.count"
    old = StateManager(init_path=saved_run).state.agent.state_dict()[norm]
    counts = {}
    for parts in (("policy", "norm"), ("policy", "value")):
        manager = StateManager(
            overrides=[*SMALL, f"data_dir={tmp_path}", "max_train_time=0"],
            init_from=saved_run,
            init_parts=parts,
        )
        train(manager, Clockwork)
        counts["norm" in parts] = manager.state.agent.state_dict()[norm]
    assert torch.equal(counts[True], old)
    assert counts[False].tolist() == [12, 12]


ALL = ("policy", "value", "norm")


@pytest.mark.parametrize(
    ("was_scaled", "scales", "parts", "own_network", "deviation", "line"),
    [
        (True, True, ALL, False, 4.0, ""),
        (True, True, ALL, True, 4.0, ""),
        (True, True, ("policy", "norm"), False, 1.0, ""),
        (False, False, ALL, False, None, ""),
        (True, False, ALL, False, None, "ppo.reward_scaling=true keeps their unit"),
        (False, True, ALL, True, 1.0, "ppo.reward_scaling=false keeps their unit"),
    ],
)
def test_reward_scale_is_loaded_with_the_values(
    was_scaled: bool,
    scales: bool,
    parts: tuple[str, ...],
    own_network: bool,
    deviation: float | None,
    line: str,
    tmp_path: Path,
) -> None:
    # A save whose returns have a standard deviation of 4.
    spaces = {"obs_space": Clockwork().obs_space(), "action_space": Clockwork().action_space()}
    before = StateManager(overrides=[*SMALL, f"ppo.reward_scaling={str(was_scaled).lower()}"])
    state = init_train_state(before.config, spaces)
    if was_scaled:
        state.reward_scaling.begin(torch.tensor([1.0, 9.0]))
    save(tmp_path, 0, to_files(before.config, state), "made")

    manager = StateManager(
        overrides=[*SMALL, f"ppo.reward_scaling={str(scales).lower()}"],
        init_from=tmp_path,
        init_parts=parts,
    )
    said: list[str] = []
    manager.say = said.append
    for key, value in {**spaces, "agent": state.agent if own_network else None}.items():
        manager.set_deserialize_ctx(key, value)
    scaling = manager.state.reward_scaling
    assert (None if scaling is None else scaling.deviation().item()) == deviation
    assert [text for text in said if "reward_scaling" in text] == ([] if not line else said[1:])
    assert said[-1].endswith(line)


def test_invalid_init_from_arguments_are_refused(saved_run: Path, tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"init_parts": ["policies"]}, "--init-parts: expected some of policy,value,norm"),
        ({"init_parts": ["value"]}, "--init-parts: expected policy along with value"),
        ({"init_path": saved_run}, "--init-from and --resume-from: expected one of them"),
        ({"init_renames": ["gears=wheel"]}, "rename: expected .* did you mean gear"),
        ({"init_from": None, "init_parts": ["norm"]}, "--rename: expected --init-from"),
    ]
    for options, message in cases:
        with pytest.raises(ConfigError, match=message):
            train(
                StateManager(
                    overrides=[] if "init_path" in options else [*SMALL, f"data_dir={tmp_path}"],
                    **{"init_from": saved_run, **options},
                ),
                Clockwork,
            )
    with pytest.raises(CheckpointError, match="expected a checkpoint directory, got none"):
        train(StateManager(overrides=SMALL, init_from=tmp_path / "none"), Clockwork)


def test_commands_show_the_diff_and_write_the_upgraded_save(
    saved_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = f"{__name__}:Oiled"
    assert enn(["checkpoints", "diff", str(saved_run), "--env", world]) == 1
    assert "labels of turn: added ['stay']" in capsys.readouterr().out
    assert enn(["checkpoints", "diff", str(saved_run), "--env", f"{__name__}:Turned"]) == 0
    assert "reordered ['left', 'right'] to ['right', 'left']" in capsys.readouterr().out
    kwargs = ["--env-kwargs", "age=4"]
    evolving = ["checkpoints", "evolve", str(saved_run), "--env", world, "--rename", "peg=oil"]
    evolving += kwargs
    assert enn([*evolving, "--to", str(tmp_path / "new"), "--set", "net.n_layer=2"]) == 0
    out = capsys.readouterr().out
    assert "entity types: added ['peg']" in out
    assert "no effect at first" in out
    saved = StateManager(init_path=tmp_path / "new")
    assert (saved.state.step, saved.config.net.n_layer) == (72, 2)
    assert "setting: net.n_layer 1 -> 2" in out
    options = f"resume {tmp_path / 'new'} env.id={world}"
    assert "; to continue: " in out
    assert out.endswith(f"{options} total_timesteps=144\n")  # it was over
    assert saved.config.env.id == world
    assert json.loads(saved.config.env.kwargs) == {"age": 4}
    on = [*shlex.split(options), "total_timesteps=96"]
    assert enn([*on, f"data_dir={tmp_path}"]) == 0
    assert enn([*evolving, "--to", str(tmp_path / "other"), "--set", "env.id=elsewhere"]) == 0
    assert StateManager(init_path=tmp_path / "other").config.env.id == "elsewhere"


@pytest.mark.slow
def test_command_line_begins_with_the_weights_of_another_run(
    saved_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also when it is only tried, and with renames from a file."""
    (tmp_path / "renames").write_text("peg=oil\n")
    begin = [*SMALL, f"data_dir={tmp_path}", "--init-from", str(saved_run)]
    renames = ["--rename-file", str(tmp_path / "renames"), "--rename", "gear.x=age"]

    def run_oiled(manager: StateManager) -> None:
        train(manager, Oiled)

    assert run_command([*begin, *renames, "--dry-run"], "train", run_oiled) == 0
    out = capsys.readouterr().out
    assert "entity types: added ['peg']" in out
    assert "features of gear: added ['x']" in out
    assert "dry run: all is well" in out
    assert run_command([*begin, "--init-parts", "brain"], "train", run_oiled) == 2
    assert capsys.readouterr().err == (
        "error: --init-parts: expected some of policy,value,norm, got brain\n"
    )
