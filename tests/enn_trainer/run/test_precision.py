"""`net.precision=auto`: chosen when a run starts, saved, and kept by the runs that continue it."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from enn_trainer import StateManager, TrainConfig, Trainer, clone, load_agent, train
from enn_trainer.base.group import Group
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.migrate.evolve import evolve
from enn_trainer.checkpoints.saved_state import read_config
from enn_trainer.cli import run as enn
from enn_trainer.config.load import dump_config, load_config
from enn_trainer.runtime.torch_group import current_group
from enn_trainer.selfplay.league import League
from entity_env.examples import Minefield, Xor
from rogue_net import precision
from tests.enn_trainer.builders import SMALL, run_pool
from tests.enn_trainer.demonstrated import config as clone_config
from tests.enn_trainer.demonstrated import record
from tests.enn_trainer.run.small_runs import SMALL as RANKS
from tests.enn_trainer.run.thread_group import in_ranks

WIDE = ["net.d_model=72", "net.precision=auto", "cuda=false"]
AUTO = [*SMALL, *WIDE]
CHOSEN = "net.precision=bfloat16: d_model=72 is at least 65, and bfloat16 is fast with avx512_bf16"

Processor: TypeAlias = Callable[[str | None], None]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Processor:
    """Return a function that sets the bfloat16 instructions of the processor."""

    def replace(instructions: str | None) -> None:
        monkeypatch.setattr(precision, "fast_bfloat16_instructions", lambda: instructions)

    return replace


@pytest.fixture
def auto_run(processor: Processor) -> Path:
    """Return a run that chose bfloat16, on a processor that has since lost it."""
    processor("avx512_bf16")
    trained("run", AUTO)
    processor(None)
    return Path("run")


def trained(folder: str, settings: list[str], init_from: Path | None = None) -> list[str]:
    """Start or resume a run in a folder, and return the messages of its manager."""
    manager = StateManager(overrides=settings, checkpoint_dir=folder, init_from=init_from)
    return messages_of(manager)


def messages_of(manager: StateManager) -> list[str]:
    """Train, and return the messages of the manager."""
    said: list[str] = []
    manager.say = said.append
    train(manager, Xor)
    return said


def saved(folder: Path | str) -> TrainConfig:
    return read_config(find(Path(folder)))


@pytest.mark.parametrize(
    ("instructions", "expected", "message"),
    [
        ("avx512_bf16", "bfloat16", CHOSEN),
        (None, "float32", "net.precision=float32: no fast bfloat16 products on this device"),
    ],
)
def test_new_run_chooses_saves_and_prints_the_precision(
    processor: Processor, instructions: str | None, expected: str, message: str
) -> None:
    processor(instructions)
    said = trained("run", AUTO)
    assert [line for line in said if "precision" in line] == [message]
    assert saved("run").net.precision == expected
    assert load_agent("run").agent.config.precision == expected


def test_default_is_float32_without_a_message(processor: Processor) -> None:
    processor("avx512_bf16")
    said = trained("run", [*SMALL, "net.d_model=72"])
    assert not [line for line in said if "precision" in line]
    assert saved("run").net.precision == "float32"


def test_networks_choose_by_their_own_widths(processor: Processor) -> None:
    processor("avx512_bf16")
    said = trained("run", [*AUTO, 'vf_net=(d_model: 8, n_layer: 1, precision: "auto")'])
    config = saved("run")
    assert config.vf_net is not None
    assert (config.net.precision, config.vf_net.precision) == ("bfloat16", "float32")
    assert CHOSEN in said
    assert "vf_net.precision=float32: d_model=8 is below 65" in said


def from_command_line() -> StateManager:
    return StateManager(overrides=[*AUTO, "total_timesteps=96"], checkpoint_dir="run")


def from_environment_variable() -> StateManager:
    return StateManager(
        overrides=["total_timesteps=96"],
        environment={"ENN_NET__PRECISION": "auto"},
        checkpoint_dir="run",
    )


def from_file() -> StateManager:
    Path("auto.ron").write_text(dump_config(load_config(TrainConfig, None, AUTO)))
    return StateManager(
        init_path="auto.ron", overrides=["total_timesteps=96"], checkpoint_dir="run"
    )


def from_python() -> StateManager:
    config = load_config(TrainConfig, None, AUTO)
    return StateManager(config, overrides=["total_timesteps=96"], checkpoint_dir="run")


def after_reading() -> StateManager:
    manager = StateManager(overrides=["total_timesteps=96"], checkpoint_dir="run")
    manager.config.net.precision = "auto"
    return manager


@pytest.mark.parametrize(
    "resumed",
    [from_command_line, from_environment_variable, from_file, from_python, after_reading],
)
def test_resumed_run_keeps_the_choice_on_another_processor(
    auto_run: Path, resumed: Callable[[], StateManager]
) -> None:
    manager = resumed()
    said = messages_of(manager)
    assert (manager.state.step, manager.state.restart) == (96, 1)
    assert not [line for line in said if "precision" in line or "changed from" in line]
    assert saved(auto_run).net.precision == "bfloat16"
    assert manager.state.agent.config.precision == "bfloat16"


def test_resumed_run_keeps_float32_on_a_faster_processor(processor: Processor) -> None:
    processor(None)
    trained("run", AUTO)
    processor("avx512_bf16")
    trained("run", [*AUTO, "total_timesteps=96"])
    assert saved("run").net.precision == "float32"


def test_explicit_precision_of_a_resumed_run_is_reported(auto_run: Path) -> None:
    said = trained("run", [*AUTO, "net.precision=float32", "total_timesteps=96"])
    assert 'changed from the save: net.precision "bfloat16" -> "float32"' in said
    assert saved(auto_run).net.precision == "float32"


def test_source_of_the_choice_of_a_resumed_run_is_its_checkpoint(auto_run: Path) -> None:
    manager = StateManager(overrides=AUTO, checkpoint_dir=auto_run)
    assert manager.config.net.precision == "bfloat16"
    assert manager.sources.of("net.precision").startswith("checkpoint ")


def test_run_with_the_weights_of_another_chooses_for_itself(auto_run: Path) -> None:
    trained("new", AUTO, auto_run)
    assert saved("new").net.precision == "float32"


def test_ranks_use_the_choice_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where their processors differ."""

    def instructions() -> str | None:
        return "avx512_bf16" if current_group().leads else None

    monkeypatch.setattr(precision, "fast_bfloat16_instructions", instructions)

    def work(group: Group) -> list[str]:
        manager = StateManager(overrides=[*RANKS, *WIDE])
        manager.say = lambda line: None
        with Trainer(manager, Minefield) as trainer:
            return [trainer.config.net.precision, trainer.state.agent.config.precision]

    assert in_ranks(2, work) == [["bfloat16"] * 2] * 2


def test_dry_run_prints_the_choice_once(
    processor: Processor, capsys: pytest.CaptureFixture[str]
) -> None:
    processor("avx512_bf16")
    assert enn(["train", "Xor", *AUTO, "--dry-run"]) == 0
    assert capsys.readouterr().out.count("precision") == 1


def test_clone_chooses_and_saves_the_precision(processor: Processor, tmp_path: Path) -> None:
    processor("avx512_bf16")
    recording = record(tmp_path / "expert.rec", steps=8, logits=True)
    settings = clone_config(*WIDE, "clone.epochs=1")
    said: list[str] = []
    clone(recording, settings, tmp_path / "clone", say=said.append)
    assert CHOSEN in said
    assert saved(tmp_path / "clone").net.precision == "bfloat16"
    assert settings.net.precision == "auto"


def test_upgraded_run_keeps_the_choice(auto_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evolving = ["checkpoints", "evolve", str(auto_run), "--env", "Xor", "--to", "new"]
    assert enn([*evolving, "--set", "net.precision=auto"]) == 0
    assert "setting: net" not in capsys.readouterr().out
    assert saved("new").net.precision == "bfloat16"


def test_upgrade_leaves_the_configuration_of_the_caller(auto_run: Path) -> None:
    config = load_config(TrainConfig, None, AUTO)
    evolved = evolve(find(auto_run), Xor().obs_space(), Xor().action_space(), config)
    assert evolved.config.net.precision == "bfloat16"
    assert config.net.precision == "auto"


def test_members_of_a_pool_use_the_choice(processor: Processor) -> None:
    processor("avx512_bf16")
    settings = [*WIDE, "total_timesteps=432"]
    league = run_pool(Path("run"), *settings).state.part(League)
    assert league is not None
    texts = [member.config for member in league.members if member.config]
    assert texts
    assert all('precision: "bfloat16"' in text for text in texts)
