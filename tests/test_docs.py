"""Documentation: examples beyond their own blocks, blocks that are not run, tables and places."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from enn_trainer import Callback, TrainConfig, load_checkpoint
from enn_trainer.config.load import load_config
from enn_trainer.stop_conditions import Steps
from entity_env import ActionSpace, PlainState
from entity_env.named_world import find_world
from rogue_net.actions.distributions import ActionDistribution
from rogue_net.actions.heads import ActionHead
from tests.doc_blocks import blocks, comparable, pages, run_command
from tests.enn_trainer.builders import SMALL, run_small, weights
from tests.fork_server import ENN, run_program

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_readme_environment_resumes_in_the_middle_of_episodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that what it promises of resuming holds for its own world."""
    world = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    (tmp_path / "orchard.py").write_text(world)
    orchard = find_world("orchard.py:Orchard", tmp_path)
    assert issubclass(orchard, PlainState)
    run_small(tmp_path, env=orchard, checkpoint_dir=tmp_path / "run", stop=Steps(48))
    capsys.readouterr()
    resumed = run_small(tmp_path, env=orchard, checkpoint_dir=tmp_path / "run")
    straight = run_small(tmp_path, env=orchard)
    shown = capsys.readouterr().out
    assert "at step 48; " in shown
    assert "episodes restart" not in shown
    assert torch.equal(weights(resumed), weights(straight))


@pytest.mark.slow
def test_demonstration_of_a_trained_agent_runs(tmp_path: Path) -> None:
    where = [f"data_dir={tmp_path}", "--checkpoint-dir", "run"]
    run_program([*ENN, "train", "env.id=MoveToOrigin", *SMALL, *where], cwd=tmp_path, check=True)
    printed = run_script(str(ROOT / "docs/act.py"), "run", "2", folder=tmp_path)
    assert "episode 1: 32 steps, return" in printed


def run_script(path: str, *arguments: str, folder: Path) -> str:
    """Run `python PATH ARGUMENTS` in a folder and return what it printed."""
    start = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    done = run_program(["-c", start, path, *arguments], cwd=folder, check=True)
    return str(done.stdout.decode())


def write_extensions(folder: Path) -> None:
    """Write the programs of `docs/extending.md` to files."""
    for name, block in zip(("rails", "lower_rate", "centred"), extensions(), strict=True):
        (folder / f"{name}.py").write_text(block)


def extensions() -> list[str]:
    """Return the blocks of code of `docs/extending.md`."""
    text = (ROOT / "docs/extending.md").read_text()
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_documented_extensions_are_short() -> None:
    network = (ROOT / "docs/own_network.py").read_text()
    for code, limit in zip([*extensions(), network], (30, 30, 30, 60), strict=True):
        lines = [line for line in code.splitlines() if line.strip()]
        assert len(lines) <= limit, code


@pytest.mark.slow
def test_documented_callback_is_saved_and_resumed(tmp_path: Path) -> None:
    """A run in two parts ends like one that went straight on, with a lower learning rate."""
    write_extensions(tmp_path)

    def train(run: str, *options: str) -> Any:
        constant = ("optim.anneal_lr=false", "ppo.anneal_entropy=false")
        where = ("--checkpoint-dir", run)
        run_script("lower_rate.py", *SMALL, *constant, *where, *options, folder=tmp_path)
        return load_checkpoint(tmp_path / run).state

    straight = train("straight", "total_timesteps=720")
    half = train("parts", "total_timesteps=240")
    resumed = train("parts", "total_timesteps=720", "--resume")
    states = [state.memory["callbacks"]["lower_rate"] for state in (straight, half, resumed)]
    assert states[0] == states[2] != states[1]
    assert states[0]["factor"] < 1
    for name, tensor in straight.agent.state_dict().items():
        assert torch.equal(tensor, resumed.agent.state_dict()[name]), name


@pytest.mark.slow
def test_documented_reward_transform_is_saved_and_resumed(tmp_path: Path) -> None:
    write_extensions(tmp_path)

    def train(run: str, *options: str) -> dict[str, torch.Tensor]:
        constant = ("optim.anneal_lr=false", "ppo.anneal_entropy=false")
        where = ("--checkpoint-dir", run)
        run_script("centred.py", *SMALL, *constant, *where, *options, folder=tmp_path)
        newest = max((tmp_path / run).glob("step-*"))
        files = ("state.agent.safetensors", "state.loss.safetensors")
        return {n: x for name in files for n, x in load_file(newest / name).items()}

    straight = train("straight", "total_timesteps=144")
    train("parts", "total_timesteps=72")
    resumed = train("parts", "total_timesteps=144", "--resume")
    assert straight["centred/mean"] != 0
    assert straight.keys() == resumed.keys()
    for name, tensor in straight.items():
        assert torch.equal(tensor, resumed[name]), name


def test_tables_of_extensions_have_every_member() -> None:
    text = (ROOT / "docs/extending.md").read_text()

    def members(heading: str) -> list[str]:
        table = text.partition(heading)[2].partition("\n| --- ")[2].partition("\n\n")[0]
        return [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", cell(row))]

    def cell(row: str) -> str:
        return row.partition("|")[2].partition("|")[0]

    hooks = [name for name in vars(Callback) if name.startswith("on_")]
    assert members("## A callback") == hooks
    for base in (ActionSpace, ActionHead, ActionDistribution):
        documented = members(f"### `{base.__name__}`")
        own = {**vars(base), **base.__annotations__}
        assert sorted(documented) == sorted(n for n in own if not n.startswith("_")), base


REASONS = {
    "a person plays": 4,
    "for a checkout of the sources": 3,
    "it ends with Ctrl-C": 1,
    "needs MiniGrid": 3,
    "needs Stable-Baselines3": 1,
    "needs a service with an account": 1,
    "starts several processes": 2,
    "takes twenty minutes": 2,
}
"""Reasons for which blocks of the documentation are not run, and the number of these blocks."""


def test_blocks_that_are_not_run_are_few_and_have_a_reason() -> None:
    marked = [block.options for path in pages() for block in blocks(path.read_text())]
    assert Counter(options["not run"] for options in marked if "not run" in options) == REASONS
    assert sum("slow" in options for options in marked) <= 4


def test_no_line_installs_the_release_of_the_package_index() -> None:
    """An ancestor of this project is published under its name, with other modules."""
    packages = [ROOT / name for name in ("docs", "entity_env", "rogue_net", "enn_trainer")]
    paths = [path for folder in packages for path in folder.rglob("*.*")]
    paths = [path for path in paths if path.suffix in (".md", ".py", ".txt")]
    assert {ROOT / "docs/install.md", ROOT / "enn_trainer/cli/starters/README.md"} <= {*paths}
    by_name = re.compile(r"pip3? install [^`\n]*(?<![\w/])enn[-_.]trainer(?!-\d)")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *paths):
        assert not by_name.findall(path.read_text()), path


def test_blocks_of_a_page_are_found() -> None:
    text = """# Page

    enn train env.id=Xor

prints

    a table, no command

<!-- not run: needs a GPU -->

    enn train cuda=true

<!-- setup: enn eval runs/xor
enn plot runs/xor -->

Save this as `world.py`:

```python
class World: ...
```

```text
not code
```
"""
    found = [(block.language, block.source, block.options) for block in blocks(text)]
    assert found == [
        ("shell", "enn train env.id=Xor\n", {}),
        ("shell", "enn train cuda=true\n", {"not run": "needs a GPU"}),
        ("shell", "enn eval runs/xor\nenn plot runs/xor", {}),
        ("python", "class World: ...\n", {"file": "world.py"}),
    ]


def test_output_is_compared_without_numbers() -> None:
    printed = "step 512/1024 (50%)  return -0.25 ± 1e-3\n"
    assert comparable(printed) == comparable("step 8/16 (7%) return 3.5 ± .1")
    assert comparable(printed) != comparable("step 512/1024 (50%)  length -0.25 ± 1e-3")


def test_a_command_whose_output_differs_fails(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    run_command("enn envs --help", "usage: ...", slow=False, is_short=True)
    with pytest.raises(AssertionError, match="printed"):
        run_command("enn envs --help", "something else", slow=False, is_short=True)
    with pytest.raises(AssertionError, match="ended with 2"):
        run_command("enn train seeed=1", None, slow=False, is_short=True)


def test_every_shipped_configuration_can_be_read() -> None:
    paths = sorted((ROOT / "configs").glob("*.ron"))
    assert len(paths) >= 7
    for path in paths:
        assert isinstance(load_config(TrainConfig, path), TrainConfig), path


@pytest.mark.parametrize(("page", "least"), [("architecture.md", 50), ("extending.md", 15)])
def test_places_in_the_code_exist(page: str, least: int) -> None:
    text = (ROOT / "docs" / page).read_text()
    places = re.findall(r"`([\w/]+\.py)(?::(\w+)(?:\.(\w+))?)?`", text)
    places = [place for place in places if "/" in place[0]]
    assert len(places) > least
    for path, name, method in places:
        code = (ROOT / path).read_text()
        if name:
            assert re.search(rf"^(def|class) {name}\b|^{name}\b.* =", code, re.M), (path, name)
        if method:
            assert re.search(rf"^    def {method}\b", code, re.M), (path, name, method)


def test_every_folder_of_code_is_in_the_architecture() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    for package in ("entity_env", "rogue_net", "enn_trainer"):
        for path in (ROOT / package).rglob("__init__.py"):
            assert f"| `{path.parent.relative_to(ROOT)}/` |" in text, path.parent
