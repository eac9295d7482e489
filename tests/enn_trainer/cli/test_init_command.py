"""`enn init`: what it writes can be checked, tested and trained in; the rest is refused."""

import errno
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enn_trainer import State, StateManager, TrainConfig, load_checkpoint
from enn_trainer.cli import init_command, run
from enn_trainer.cli.starters.adapter import adapter_source
from entity_env import EnvList, Match
from entity_env.adapters.from_gymnasium import FromGymnasium
from entity_env.adapters.mapping import Rows
from entity_env.named_world import find_world
from entity_env.testing.random_play import differences, fields_of, random_choices
from tests.enn_trainer.one_line import refused
from tests.entity_env.adapters.worlds import SEEN_FROM_ME, VIEW, Show

ROOT = Path(__file__).parents[3]
CART_POLE = "gymnasium:CartPole-v1"
JUNCTION = "gymnasium:highway_env:intersection-v2"
ROCK_PAPER_SCISSORS = "pettingzoo:classic.rps_v2"
KINDS: dict[str, list[str]] = {
    "world": [],
    "match": ["--match"],
    "turns": ["--turns"],
    "cart pole": ["--from", CART_POLE],
    "pendulum": ["--from", "gymnasium:Pendulum-v1"],
    "rock, paper, scissors": ["--from", ROCK_PAPER_SCISSORS],
}
FILES = ["README.md", "settings.ron", "test_world.py", "world.py"]
TWO_GROUPS = """
from tests.entity_env.adapters.worlds import Hunt


def parallel_env():
    return Hunt({"wolf_0": 3, "wolf_1": 2, "deer_0": -4}, kinds=True)
"""
ALL_KINDS = """
import gymnasium
import numpy as np
from gymnasium import spaces

from tests.entity_env.adapters.worlds import Show

SPACE = spaces.Dict(
    action_mask=spaces.Box(0, 1, (3,), np.int8),
    card=spaces.Box(0, 1, (3, 2), np.float32),
    kind=spaces.Discrete(3),
    me=spaces.Box(-1, 1, (12,), np.float32),
    road=spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (1,))),
    seen=spaces.Sequence(spaces.Box(-9, 9, (2,), np.float32), stack=True),
)


class Observed(Show):
    def __init__(self):
        push = spaces.Box(-1, 1, (3, 2))
        super().__init__(SPACE, spaces.Dict(pick=spaces.Discrete(3), push=push))

    def reset(self, **kwargs):
        value, info = super().reset(**kwargs)
        value["action_mask"][:] = [1, 1, 0]
        return value, info

    def step(self, action):
        result = super().step(action)
        result[0]["action_mask"][:] = [1, 0, 1]
        return result


gymnasium.register("AllKinds-v0", Observed)
"""
TURNS = """
import gymnasium
from gymnasium import spaces

from tests.entity_env.adapters.worlds import Show, Turns

gymnasium.register("Turns-v0", Turns)
BOTH = spaces.Tuple([spaces.Box(-1, 1, (2,))] * 2), spaces.Tuple([spaces.Discrete(2)] * 2)
gymnasium.register("Pair-v0", lambda: Show(*BOTH))


class Broken(Turns):
    def reset(self):
        raise RuntimeError("boom")


gymnasium.register("Broken-v0", Broken)
"""
WHOLE_NUMBERS = """
import gymnasium
from gymnasium.spaces import Box, Discrete

from tests.entity_env.adapters.worlds import Show

gymnasium.register("Whole-v0", lambda: Show(Discrete(2), Box(0, 3, (2,), int)))
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])


def typed(command: Sequence[str]) -> None:
    """Run a program in the folder `mine`, as a user would."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd="mine",
        env=environment,
        timeout=200,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_generated_environments_have_no_problems(
    kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["init", "mine", *KINDS[kind]]) == 0
    assert sorted(path.name for path in Path("mine").iterdir()) == FILES
    monkeypatch.chdir("mine")
    capsys.readouterr()
    assert run(["check", "world.py:World", "--episodes", "2"]) == 0
    assert "nothing found wrong" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_generated_files_pass_their_test(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["init", "mine", *KINDS[kind]]) == 0
    if kind == "world":  # as a user types it
        typed(["pytest", "-q", "-p", "no:cacheprovider"])
        return
    monkeypatch.syspath_prepend("mine")
    monkeypatch.delitem(sys.modules, "world", raising=False)
    tests = runpy.run_path("mine/test_world.py")
    monkeypatch.delitem(sys.modules, "world")
    tests["test_nothing_is_wrong_with_the_world"]()


@pytest.mark.slow
def test_generated_files_are_linted_and_formatted() -> None:
    """For a line of 88 characters, which is usual, and of 100, which is ours."""
    Path("mine").mkdir()
    folders = [name.replace(", ", "_").replace(" ", "_") for name in KINDS]
    for folder, arguments in zip(folders, KINDS.values(), strict=True):
        assert run(["init", f"mine/{folder}", *arguments]) == 0
    for length in ("88", "100"):
        ruff = ["--isolated", "--no-cache", "--line-length", length]
        custom = ["--config", f"src={folders}"]  # each imports a module of its own folder
        rules = ["--select", "E,F,W,I,B,UP,N,SIM"]
        typed(["ruff", "check", *ruff, *rules, *custom, "."])
        typed(["ruff", "format", *ruff, "--check", "."])


def test_starter_environment_is_about_forty_lines_of_code() -> None:
    for name in ("world.py", "match.py", "turns.py"):
        file = Path(init_command.__file__).with_name("starters") / name
        lines = [line.strip() for line in file.read_text().splitlines()]
        assert 35 <= len([line for line in lines if line and line[0] not in '#"']) <= 45


def test_printed_commands_match_the_readme(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["init", "mine"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "wrote world.py, test_world.py, settings.ron, README.md in mine\n\nnext:\n"
    )
    _, cd, *lines = out.splitlines()[2:]
    assert cd == "  cd mine"
    readme = Path("mine/README.md").read_text()
    assert len(lines) == 5
    assert all(f"- `{line.strip()}` to " in readme for line in lines)


@pytest.mark.parametrize("kind", KINDS)
def test_generated_settings_have_the_current_version(kind: str) -> None:
    assert run(["init", "mine", *KINDS[kind]]) == 0
    text = Path("mine/settings.ron").read_text()
    assert f"version: {TrainConfig.version()}," in text
    config = StateManager(init_path=Path("mine/settings.ron")).config
    assert config.env.id == "world.py:World"


def trained(*settings: str) -> State:
    """Train with the written configuration and evaluate once, at the end."""
    measure = ["eval.interval=100000", "eval.run_on_first_step=false", "eval.num_envs=64"]
    where = ["--config", "settings.ron", "--checkpoint-dir", "runs/first"]
    assert run(["train", *where, *measure, *settings]) == 0
    state: State = load_checkpoint("runs/first").state
    return state


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "best"), [("world", 1.0), ("match", None), ("turns", 0.85)])
def test_starter_environment_is_learned_within_30_000_frames(
    kind: str, best: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best of the match is the return of the greedy player against random play.

    With turns it is 0.92; the deviation of a mean of 256 games is 0.03.
    """
    assert run(["init", "mine", *KINDS[kind]]) == 0
    monkeypatch.chdir("mine")
    state = trained("eval.episodes=256")
    assert state.step < 31_000
    returned = state.metrics["eval/episodic_reward.mean"]
    assert returned > 0.9 * (greedy_return() if best is None else best)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "least"), [("world", 0.9), ("match", 0.6), ("turns", 0.5)])
def test_starter_environment_improves_within_5_000_frames(
    kind: str, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random play scores 0.4 in the environment and at most 0.1 in games, greedy play 0.9 there."""
    assert run(["init", "mine", *KINDS[kind]]) == 0
    monkeypatch.chdir("mine")
    state = trained("total_timesteps=5000", "eval.episodes=64")
    assert state.metrics["eval/episodic_reward.mean"] > least


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--turns"], ["--match", "--turns"]])
def test_sides_of_the_starter_with_turns_act_one_after_the_other(options: list[str]) -> None:
    assert run(["init", "mine", *options]) == 0
    world = find_world("mine/world.py:World")()
    world.seed(0)
    frames, movers = world.reset(), []
    while not frames[0].done:
        [mover] = [side for side, frame in enumerate(frames) if frame.actions]
        actions = [{"take": Taken(max(world.coins))} if side == mover else {} for side in (0, 1)]
        frames, movers = world.act(actions), [*movers, mover]
    assert len(movers) in (6, 8, 10)
    assert all(first != second for first, second in pairwise(movers))
    assert [frame.actions for frame in frames] == [{}, {}]


@pytest.mark.parametrize("kind", ["world", "match", "turns"])
def test_starter_settings_train_for_30_000_frames(kind: str) -> None:
    assert run(["init", "mine", *KINDS[kind]]) == 0
    assert StateManager(init_path=Path("mine/settings.ron")).config.total_timesteps == 30_000


def greedy_return(games: int = 400) -> float:
    """Return the mean return of a greedy player of the generated match."""
    world, rng, total = find_world("world.py:World")(), np.random.default_rng(0), 0.0
    for seed in range(games):
        world.seed(seed)
        world.reset()
        obs = None
        while obs is None or not obs.done:
            largest = max(world.coins, key=world.coins.get)
            other = int(rng.choice([*world.coins]))
            obs, _ = world.act([{"take": Taken(largest)}, {"take": Taken(other)}])
        total += obs.reward
    return total / games


class Taken:
    """The action of one entity that selects another."""

    def __init__(self, actee: int) -> None:
        self.actees = [actee]


# Adapters.


@pytest.mark.parametrize(
    "named",
    [
        CART_POLE,
        pytest.param(JUNCTION, marks=pytest.mark.soak),
        ROCK_PAPER_SCISSORS,
        "pettingzoo:two_groups",
        "gymnasium:all_kinds:AllKinds-v0",
    ],
)
def test_explicit_mapping_equals_the_inferred_mapping(named: str) -> None:
    Path("two_groups.py").write_text(TWO_GROUPS)
    Path("all_kinds.py").write_text(ALL_KINDS)
    assert run(["init", "mine", "--from", named]) == 0
    written, inferred = find_world("mine/world.py:World"), find_world(named)
    env, other = written(), inferred()
    assert env.obs_space() == other.obs_space()
    assert env.action_space() == other.action_space()
    sides = env.num_sides if isinstance(env, Match) else 1
    first, second = frames(written, sides), frames(inferred, sides)
    assert not differences(first, second)


def frames(create_env: Any, sides: int) -> dict[str, Any]:
    """Return everything that two environments show and allow in 20 steps of random play."""
    envs, rng, output = EnvList(create_env, 2 * sides), np.random.default_rng(0), {}
    envs.seed(3)
    batch = envs.reset(envs.obs_space())
    for step in range(20):
        output |= {f"{step} {name}": value for name, value in fields_of(batch).items()}
        batch = envs.act(random_choices(batch, envs.action_space(), rng), envs.obs_space())
    envs.close()
    return output


def test_multi_agent_environment_becomes_a_match_with_a_side_per_agent() -> None:
    """Tuple spaces have an item per agent if each has a reward, else they are of one agent."""
    Path("turns.py").write_text(TURNS)
    assert run(["init", "mine", "--from", "gymnasium:turns:Turns-v0"]) == 0
    assert "class World(FromGymnasiumAgents):" in Path("mine/world.py").read_text()
    assert find_world("mine/world.py:World")().num_sides == 2
    assert run(["check", "mine/world.py:World", "--episodes", "1"]) == 0
    assert run(["init", "pair", "--from", "gymnasium:turns:Pair-v0"]) == 0
    assert "class World(FromGymnasium):" in Path("pair/world.py").read_text()


def test_turn_based_environment_uses_its_adapter_class() -> None:
    Path("rounds.py").write_text("from tests.entity_env.adapters.rounds import Rounds as env")
    assert run(["init", "mine", "--from", "pettingzoo:rounds"]) == 0
    assert "class World(FromPettingZooTurns):" in Path("mine/world.py").read_text()
    assert run(["check", "mine/world.py:World", "--episodes", "1"]) == 0


def test_minigrid_view_becomes_cells_with_a_viewpoint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("minigrid")
    assert run(["init", "mine", "--from", "gymnasium:MiniGrid-LavaGapS5-v0"]) == 0
    world = find_world("mine/world.py:World")()
    assert [*world.obs_space().entities] == ["me", "cell"]
    assert world.translators[0].complete.rows()["me"][0].features == {"row": 3, "column": 6}
    assert world.action_space()["do"].labels[:3] == ["left", "right", "forward"]
    config = StateManager(init_path=Path("mine/settings.ron")).config
    assert config.net.relpos_encoding.extent == [6, 6]
    assert run(["check", "mine/world.py:World"]) == 0, capsys.readouterr()


def test_settings_of_an_adapter_are_the_defaults() -> None:
    assert run(["init", "mine", "--from", CART_POLE]) == 0
    written = StateManager(init_path=Path("mine/settings.ron")).config
    expected = TrainConfig(total_timesteps=100_000)
    expected.env.id = "world.py:World"
    assert written == expected


def test_mapping_with_all_kinds_of_fields_is_generated() -> None:
    """Inferred mappings have none of them, but the source of any mapping can be asked for."""
    numbered = Rows("image", columns=["row", "column", "object", "open"], numbered=True)
    seen = SEEN_FROM_ME.entities["cell"]
    assert isinstance(seen, Rows)
    entities = {
        **SEEN_FROM_ME.entities,
        "other": replace(numbered, constants={"side": 0.5}),
        "thing": replace(seen, leave_out={"object": ["empty"]}),
        "theirs": replace(
            numbered, constants={"side": "theirs"}, kinds={"side": ["ours", "theirs"]}
        ),
    }
    world = FromGymnasium(lambda: Show(VIEW), replace(SEEN_FROM_ME, entities=entities))
    source = adapter_source("View-v0", world)
    for words in (
        '"me": Place(row=1, column=2),',
        'one_hot={"object": ["unseen", "empty", "wall"]}',
        'If numbers of a column stand for labels, name them: kinds={"open": [...]}.',
        'leave_out={"object": ["empty"]}',
        '"side": "theirs"',
        'kinds={"side": ["ours", "theirs"]}',
    ):
        assert words in " ".join(source.replace("# ", "").split()), words
    assert "={}" not in source
    written: dict[str, Any] = {}
    exec(source, written)
    assert written["MAPPING"].rows() == world.translators[0].complete.rows()


def test_comments_explain_each_field_and_possible_changes() -> None:
    Path("all_kinds.py").write_text(ALL_KINDS)
    assert run(["init", "mine", "--from", "gymnasium:all_kinds:AllKinds-v0"]) == 0
    text = " ".join(Path("mine/world.py").read_text().replace("# ", "").split())
    for words in (
        '"card", Box(3, 2): each row is an entity of the type card. Its columns are named by',
        '"kind", Discrete(3): features that belong to no entity. One of them is 1 for each choice. '
        'To name the choices write Globals("kind", kinds={"kind": [...]}).',
        '"me", Box(12,): features that belong to no entity. They are named by position: give them '
        'names. If they describe several things alike, write entities={"thing": Rows("me", '
        'columns=["x", "y"])} instead',
        "each row is an entity of the type road.nodes.",
        '"road.edges": Rows(',
        "each row is an entity of the type seen.",
        '"pick", Discrete(3): one choice among 3 in a step. Its labels are numbers: give them ',
        'If it is the number of a row of card, select that entity: Select("pick", actees="card").',
        '"push", Box(3, 2): 6 chosen in a step, within their bounds. Numbers are named by '
        "position: give them names. If each row of card chooses its own, write "
        'Number("push", actors="card"). To choose among a list write Choice("push", values=[...]).',
        '"push": Number("push", names=["0.0", "0.1", "1.0", "1.1", "2.0", "2.1"]),',
        'action_mask="action_mask"',
    ):
        assert words in text, words


def test_suggested_changes_are_valid() -> None:
    assert run(["init", "mine", "--from", CART_POLE]) == 0
    path = Path("mine/world.py")
    before, _, rest = path.read_text().partition("    global_features=[")
    _, _, after = rest.partition("\n    ],\n")
    changed = '    entities={"thing": Rows("", columns=["x", "y"])},\n'
    path.write_text((before + changed + after).replace("Globals", "Rows"))
    assert find_world("mine/world.py:World")().obs_space().entities["thing"].features == ["x", "y"]


# Rejected arguments.


def test_non_empty_folder_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine").mkdir()
    for name in "abcde":
        (Path("mine") / name).touch()
    error = refused(["init", "mine"], capsys)
    assert "DIR: expected a new or empty folder, got mine, with a, b, c and 2 more" in error
    assert len([*Path("mine").iterdir()]) == 5
    Path("file").touch()
    assert "got the file file" in refused(["init", "file"], capsys)


def test_empty_folder_and_current_folder_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine").mkdir()
    monkeypatch.chdir("mine")
    assert run(["init", "."]) == 0
    assert sorted(path.name for path in Path().iterdir()) == FILES
    assert Path("README.md").read_text().startswith("# mine\n")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("my-world", "my_world"),
        ("3d", "my_3d"),
        ("class", "my_class"),
        ("a b", "a_b"),
        ("...", "world"),
        ("there/x.y", "there/x_y"),
    ],
)
def test_unimportable_name_is_rejected_with_a_suggestion(
    name: str, nearest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(["init", name], capsys)
    assert f"got '{name.rpartition('/')[2]}'; try {nearest}\n" in error
    assert not [*Path().iterdir()]


def test_folder_that_cannot_be_created_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "DIR: expected a folder" in refused(["init", "nowhere/mine"], capsys)
    if os.geteuid() != 0:  # root can write everywhere
        Path("closed").mkdir(mode=0o500)
        assert "Permission denied" in refused(["init", "closed/mine"], capsys)


@pytest.mark.parametrize("is_there", [False, True])
def test_failure_while_writing_leaves_no_files(
    is_there: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = Path.write_text

    def fail(path: Path, *args: Any, **kwargs: Any) -> int:
        if path.name == "settings.ron":
            path.touch()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, *args, **kwargs)

    if is_there:
        Path("mine").mkdir()
    monkeypatch.setattr(Path, "write_text", fail)
    assert "No space left" in refused(["init", "mine"], capsys)
    assert Path("mine").exists() == is_there
    assert not [*Path().glob("mine/*")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--match", "--from", CART_POLE], ["--match and --from", "one of them"]),
        (["--turns", "--from", CART_POLE], ["--turns and --from", "one of them"]),
        (["--from", "Xor"], ["--from: expected gymnasium:ID or pettingzoo:MODULE, got 'Xor'"]),
        (["--from", "gymnasium:CartPol-v1"], ["--from: ", "did you mean CartPole-v1?"]),
        (
            ["--from", "gymnasium:whole:Whole-v0"],
            ["--from: gymnasium:whole:Whole-v0", "values=[.."],
        ),
        (
            ["--from", "gymnasium:turns:Broken-v0"],
            ["--from: gymnasium:turns:Broken-v0: TypeError: "],
        ),
        (["--from", "pettingzoo:no.such_v1"], ["--from: importing no.such_v1"]),
    ],
)
def test_environments_that_cannot_be_adapted_print_one_line_and_write_nothing(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("whole.py").write_text(WHOLE_NUMBERS)
    Path("turns.py").write_text(TURNS)
    error = refused(["init", "mine", *arguments], capsys)
    for word in words:
        assert word in error
    assert not Path("mine").exists()
