"""What was wrong where hyperstate saves and loads, one test a defect that no other file has.

Those of configurations are in `settings/`, of the store in `test_checkpoint.py`, of schedules in
`test_schedules.py`.
"""

# hyperstate's type reader knows only these forms.
# ruff: noqa: UP045

import ast
import contextlib
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Optional

import pytest
import torch

import enn_trainer
from enn_trainer import ConfigError, StateManager, TrainConfig, load_agent, train
from enn_trainer.checkpoints import format as saves
from enn_trainer.checkpoints import writer
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.config.load import load_config
from enn_trainer.config.rewrite_rules import CheckValue, RejectValues, RewriteRule
from enn_trainer.config.schema import schema_changes, schema_of
from enn_trainer.config.versioned import Versioned
from rogue_net import RogueNet, RogueNetConfig
from tests.enn_trainer.builders import SMALL, run_small
from tests.enn_trainer.checkpoints.published import Trap
from tests.enn_trainer.worlds import Meadow


@pytest.mark.slow
def test_saving_again_without_progress_keeps_the_save(tmp_path: Path) -> None:
    """hyperstate deleted the only checkpoint when `step()` came twice at one step, also when the
    second time was after a resume."""
    where = tmp_path / "run"
    manager = run_small(tmp_path, checkpoint_dir=where)
    manager.save_interval_s = 0.0
    kept = {path.name for path in RunDir(where).saved_paths()}
    for _ in range(3):
        manager.step()
    again = StateManager(checkpoint_dir=where)
    again.save_interval_s = 0.0
    assert again.state.step == 72
    again.step()
    assert {path.name for path in RunDir(where).saved_paths()} == kept
    for path in RunDir(where).saved_paths():
        saves.verify(path)
    assert StateManager(checkpoint_dir=where).state.step == 72


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["best-step000000999999", "latest-run000000999999", "old000000999999"]
)
def test_directory_of_another_name_does_not_restart_the_run(name: str, tmp_path: Path) -> None:
    """hyperstate took any that ends in twelve digits, loaded nothing, and began at 0."""
    run_small(tmp_path, checkpoint_dir=tmp_path / "run")
    (tmp_path / "run" / name).mkdir()
    assert StateManager(checkpoint_dir=tmp_path / "run").state.step == 72


@pytest.mark.slow
def test_incomplete_newest_save_is_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = tmp_path / "run"
    run_small(tmp_path, "total_timesteps=48", checkpoint_dir=where)
    run_small(tmp_path, checkpoint_dir=where)
    (where / "step-000000000072/state.ron").unlink()
    assert StateManager(checkpoint_dir=where).state.step == 48
    assert "skipped a damaged checkpoint, using step-000000000048" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["TrainConfig(seed: 3)", "TrainConfig(version: 99)"])
def test_manager_refuses_the_versions_that_loading_refuses(text: str, tmp_path: Path) -> None:
    """hyperstate's manager asked of a class whether it is an instance, and so took any version."""
    (tmp_path / "config.ron").write_text(text)
    with pytest.raises(ConfigError, match="version: expected"):
        StateManager(init_path=tmp_path / "config.ron").config  # noqa: B018 (read when asked for)
    with pytest.raises(ConfigError, match="version: expected"):
        load_config(TrainConfig, tmp_path / "config.ron")


@dataclass
class Before(Versioned):
    """Takes three kinds."""

    kind: Literal["a", "b", "c"] = "a"

    @classmethod
    def version(cls) -> int:
        """The first one."""
        return 0


def after(*rules: RewriteRule) -> Any:
    """The class with two kinds."""

    @dataclass
    class After(Versioned):
        kind: Literal["a", "b"] = "a"

        @classmethod
        def version(cls) -> int:
            return 1

        @classmethod
        def upgrade_rules(cls) -> dict[int, list[RewriteRule]]:
            return {0: list(rules)}

    return After


@pytest.mark.parametrize(
    "rule", [RejectValues(("kind",), {"c"}), CheckValue(("kind",), {"a", "b"})]
)
def test_rule_that_rejects_values_keeps_the_others_and_explains_the_schema(
    rule: RewriteRule,
) -> None:
    """hyperstate took the allowed values away, and failed an assertion on the schema."""
    cls = after(rule)
    assert load_config(cls, None, text="(version: 0, kind: b)").kind == "b"
    assert load_config(cls, None, text="(version: 0)").kind == "a"
    with pytest.raises(ConfigError, match="Value 'c' is deprecated"):
        load_config(cls, None, text="(version: 0, kind: c)")
    assert schema_changes(schema_of(Before), after())
    assert schema_changes(schema_of(Before), cls) == []


def test_unknown_fields_are_refused_at_every_depth_and_cannot_be_ignored() -> None:
    """`ignore_extra_fields` held for the outermost section only."""
    text = (
        "(version: 5, extra: 1, net: (extra: 2, relpos_encoding: (extra: 3, extent: [1], "
        "position_features: [])), vf_net: (translation: (extra: 4, reference_entity: a, "
        "position_features: [])))"
    )
    with pytest.raises(ConfigError) as caught:
        load_config(TrainConfig, None, text=text)
    unknown = [problem.split("=")[0] for problem in caught.value.problems]
    assert {
        "extra",
        "net.extra",
        "net.relpos_encoding.extra",
        "vf_net.translation.extra",
    } <= set(unknown)
    with pytest.raises(ConfigError, match="ignore_extra_fields"):
        StateManager(ignore_extra_fields=True)


def test_schedule_at_any_depth_has_its_value_when_a_run_resumes(tmp_path: Path) -> None:
    """hyperstate began again at x = 0, and knew two levels."""
    lr = "optim.lr=step: 0.1@0 lin 0.02@80"
    run_small(tmp_path, lr, "total_timesteps=48", checkpoint_dir=tmp_path / "run")
    manager = StateManager(checkpoint_dir=tmp_path / "run")
    assert manager.state.step == 48
    assert float(manager.config.optim.lr) == pytest.approx(0.1 - 0.08 * 48 / 80)


def test_infinity_in_a_configuration_is_saved_and_comes_back(tmp_path: Path) -> None:
    """hyperstate's writer wrote what its reader does not know."""
    manager = run_small(tmp_path, "optim.max_grad_norm=inf", checkpoint_dir=tmp_path / "run")
    assert manager.config.optim.max_grad_norm == float("inf")
    assert StateManager(checkpoint_dir=tmp_path / "run").config.optim.max_grad_norm == float("inf")


class Halves(RogueNet):
    """Has a parameter of sixteen bits, which takes part in the value."""

    def __init__(self, world: Meadow) -> None:
        config = RogueNetConfig(d_model=8, n_layer=1)
        actions: Any = world.action_space()
        super().__init__(config, world.obs_space(), actions, {"value": 1})
        self.sixteen_bits = torch.nn.Parameter(torch.tensor([0.3, -1.5], dtype=torch.bfloat16))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = super().forward(*args, **kwargs)
        return out._replace(values={"value": out.values["value"] + self.sixteen_bits.sum().float()})


@pytest.mark.slow
def test_numbers_of_sixteen_bits_are_saved_and_come_back(tmp_path: Path) -> None:
    """hyperstate's tensors went through numpy, which has no bfloat16."""
    manager = run_small(tmp_path, agent=Halves(Meadow()), checkpoint_dir=tmp_path / "run")
    before = manager.state.agent.sixteen_bits
    assert before.dtype == torch.bfloat16
    again = StateManager(
        overrides=[f"data_dir={tmp_path}", "total_timesteps=96"], checkpoint_dir=tmp_path / "run"
    )
    again.set_deserialize_ctx("agent", Halves(Meadow()))
    assert torch.equal(again.state.agent.sixteen_bits, before)
    moments = again.state.optimizer.state[again.state.agent.sixteen_bits]
    expected = manager.state.optimizer.state[before]
    for key, value in expected.items():
        assert torch.equal(moments[key], value), key
        assert moments[key].dtype == value.dtype
    train(again, Meadow, agent=Halves(Meadow()))
    assert again.state.step == 96


@pytest.mark.slow
def test_no_source_stops_in_a_debugger() -> None:
    """A breakpoint was left in the published reader of schemas."""
    root = Path(enn_trainer.__file__).parents[1]
    for package in ("entity_env", "rogue_net", "enn_trainer"):
        for path in (root / package).rglob("*.py"):
            calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
            names = {ast.unparse(call.func) for call in calls}
            assert not names & {"breakpoint", "pdb.set_trace"}, path


@pytest.mark.slow
def test_pickle_in_the_place_of_a_file_of_a_save_is_not_run(tmp_path: Path) -> None:
    """The published loader unpickled what a state named, if an environment variable said so."""
    run_small(tmp_path, checkpoint_dir=tmp_path / "run")
    saved = find(tmp_path / "run")
    whole = {name: saved.read(name) for name in saved.manifest["files"]}
    for name in whole:
        (tmp_path / name).mkdir()
        files = {**whole, name: pickle.dumps(Trap(tmp_path / "ran"))}
        path = writer.save(tmp_path / name, 72, files, "test").path
        with pytest.raises(ValueError):  # noqa: PT011 (which one, is another test's)
            StateManager(init_path=path).state  # noqa: B018 (it is read where it is asked for)
        with contextlib.suppress(ValueError):  # the moments are nothing that plays
            load_agent(path)
    assert not (tmp_path / "ran").exists()


def test_option_with_an_unreadable_value_fails() -> None:
    """`sys.exit(0)` came after a bad override, and continuous integration passed."""
    with pytest.raises(ConfigError, match=r"optim\.lr: expected float"):
        StateManager(overrides=[*SMALL, "optim.lr=fast"]).config  # noqa: B018


def test_optional_text_of_the_command_line_may_be_a_path() -> None:
    overrides = ["wandb_entity=a/b c", "eval.opponent=runs/a", "eval.steps=1"]
    config = StateManager(overrides=overrides).config
    assert config.wandb_entity == "a/b c"
    assert config.eval is not None
    opponent: Optional[str] = config.eval.opponent
    assert opponent == "runs/a"
