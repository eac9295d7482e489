"""`enn watch`: the page that it writes."""

import io
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from enn_trainer.checkpoints.saved_run import read_saved_run
from enn_trainer.cli import run
from enn_trainer.viewer.replay import Answers, Replay
from enn_trainer.viewer.replay_format import read_replay
from entity_env.examples import MineSweeper, Shells
from entity_env.recording.entity_gym_samples import open_entity_gym_samples
from entity_env.seeding import derive_seed
from entity_env.vec.serial import EnvList
from tests.enn_trainer.builders import MINES, SMALL, make_read_only, run_small
from tests.enn_trainer.viewer.replays import differences
from tests.entity_env.builders import SAMPLES


def watched(tmp_path: Path, *arguments: str) -> Replay:
    page = tmp_path / "page.html"
    assert run(["watch", *arguments, "--out", str(page)]) == 0
    return read_replay(page)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--seed", "5"], ["nmines=4", "--num-envs", "2"]])
def test_watched_episodes_equal_evaluated_episodes(
    options: list[str], mines_run: Path, tmp_path: Path
) -> None:
    output = watched(tmp_path, str(mines_run), *options)
    report = tmp_path / "report.json"
    arguments = [str(mines_run), *options, "--episodes", "3", "--out", str(report)]
    assert run(["eval", *arguments]) == 0
    played = json.loads(report.read_text())["suites"][""]["metrics"]
    returns = [float(episode.obs.reward.sum()) for episode in output.episodes]
    lengths = [len(episode.obs) for episode in output.episodes]
    assert len(output.episodes) == 3
    assert np.mean(returns) == pytest.approx(played["episodic_reward"]["mean"], abs=1e-6)
    assert np.mean(lengths) == played["episode_length"]["mean"]


@pytest.mark.slow
def test_unfinished_episode_is_shown_until_its_last_step(
    mines_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = watched(tmp_path, str(mines_run), "--max-steps", "1")
    assert [len(episode.obs) for episode in output.episodes] == [1, 1, 1]
    unfinished = [e for e in output.episodes if not (e.terminated or e.truncated)]
    assert f"{len(unfinished)} unfinished" in capsys.readouterr().out


@pytest.mark.slow
def test_page_of_a_read_only_folder_is_written_to_the_current_folder(
    mines_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, current = shutil.copytree(mines_run, tmp_path / "run"), tmp_path / "here"
    current.mkdir()
    monkeypatch.chdir(current)
    make_read_only(folder, monkeypatch)
    assert run(["watch", str(folder)]) == 0
    assert f"{current / 'replay.html'}: 3 episodes" in capsys.readouterr().out
    assert len(read_replay(current / "replay.html").episodes) == 3
    assert not [*folder.glob("*.html")]
    make_read_only(current, monkeypatch)
    assert run(["watch", str(folder)]) == 2
    assert "--out: expected a file in a folder to write to" in capsys.readouterr().err


@pytest.mark.slow
def test_page_is_written_to_the_run_folder_and_reproducible(
    mines_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.html", "b.html"):
        assert run(["watch", str(mines_run), "--out", str(tmp_path / name)]) == 0
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert "a.html: 3 episodes, " in capsys.readouterr().out
    page = mines_run / "replay.html"
    try:
        assert run(["watch", str(mines_run)]) == 0
        assert page.read_bytes() == (tmp_path / "a.html").read_bytes()
    finally:
        page.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("opponent", [[], ["--opponent", "random"]])
def test_all_sides_of_a_match_are_shown(
    opponent: list[str], duel_run: Path, tmp_path: Path
) -> None:
    output = watched(tmp_path, str(duel_run), "--episodes", "2", *opponent)
    assert output.sides == 2
    assert len(output.episodes) == 2
    for episode in output.episodes:
        rewards = episode.obs.reward.reshape(-1, 2)
        assert (rewards.sum(axis=1) == 0).all(), "one wins what the other one loses"
        assert episode.obs.identity["Ally"].items() == episode.obs.features["Ally"].items()
        values = episode.answers.values.reshape(-1, 2)
        assert (values[:, 1] == 0).all() == bool(opponent), "random players have no values"


@pytest.mark.slow
def test_view_of_the_environment_is_in_the_page(mines_run: Path, tmp_path: Path) -> None:
    custom = watched(tmp_path, str(mines_run)).view
    assert custom is not None
    assert custom["entities"]["Robot"]["position"] == ["x", "y"]
    other = watched(tmp_path, str(mines_run), "--positions", "y,x").view
    assert other is not None
    assert other["entities"]["Robot"]["position"] == ["y", "x"]


class Blind(MineSweeper):
    """A world that does not render."""

    def render(self, **kwargs: Any) -> Any:
        raise NotImplementedError("nobody looks")


@pytest.mark.slow
def test_pictures_are_rendered_by_the_environment(mines_run: Path, tmp_path: Path) -> None:
    plain = watched(tmp_path, str(mines_run))
    output = watched(tmp_path, str(mines_run), "--pictures")
    assert not any(e.pictures for e in plain.episodes)
    for reference, episode in zip(plain.episodes, output.episodes, strict=True):
        assert [*episode.pictures] == [*range(len(episode.obs))]
        assert not [*differences(reference.obs, episode.obs)]
    # The first frame of the first episode, as an evaluation seeds it.
    world = EnvList(partial(MineSweeper, **MINES), 1)  # type: ignore[arg-type]
    config = read_saved_run(mines_run).config
    world.seed(derive_seed(config.seed, "eval"))
    world.reset(world.obs_space())
    picture = Image.open(io.BytesIO(output.episodes[0].pictures[0]))
    np.testing.assert_array_equal(np.asarray(picture), world.render(mode="rgb_array")[0])


@pytest.mark.slow
def test_recording_is_shown(mines_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.rec"
    kwargs = f"env.kwargs={json.dumps(MINES)}"
    options = [*SMALL, kwargs, f"capture_samples={file}", "capture_logits=true"]
    into = ["--checkpoint-dir", str(tmp_path / "run")]
    assert run(["train", "MineSweeper", *options, *into]) == 0
    output = watched(tmp_path, str(file), "--episodes", "2")
    assert len(output.episodes) == 2
    for episode in output.episodes:
        assert np.isfinite(episode.answers.values).all()
        assert set(episode.answers.probs) == set(output.action_space)
        assert episode.beside is None
    cut = watched(tmp_path, str(file), "--episodes", "2", "--max-steps", "3")
    assert [len(e.obs) for e in cut.episodes] == [min(len(e.obs), 3) for e in output.episodes]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["full", "subsampled"])
def test_recording_of_entity_gym_is_shown(name: str, tmp_path: Path) -> None:
    file = SAMPLES / f"{name}.bin"
    recorded = [*open_entity_gym_samples(file).episodes()]
    output = watched(tmp_path, str(file), "--episodes", "99", "--agent", "random")
    assert len(output.episodes) == len([item for item in recorded if len(item.steps)]) > 0
    for episode in output.episodes:
        assert np.isnan(episode.obs.reward).all() == (name == "subsampled")
        assert episode.beside is not None
    if name == "subsampled":
        assert any(item.steps is not None for item in output.episodes)
    else:
        returns = sorted(float(item.obs.reward.sum()) for item in output.episodes)
        assert returns == pytest.approx(sorted(item.episodic_reward for item in recorded))


@pytest.mark.slow
def test_agent_is_evaluated_on_recorded_frames(tmp_path: Path) -> None:
    file = tmp_path / "mine.rec"
    once = ["eval.episodes=2", "eval.interval=9999", "eval.run_on_first_step=false"]
    kwargs = f"env.kwargs={json.dumps(MINES)}"
    options = [*SMALL, kwargs, *once, f"eval.capture_samples={file}"]
    into = ["--checkpoint-dir", str(tmp_path / "run")]
    assert run(["train", "MineSweeper", *options, *into]) == 0
    output = watched(tmp_path, str(file), "--episodes", "2", "--agent", str(tmp_path / "run"))
    assert len(output.episodes) == 2
    for episode in output.episodes:  # which it played itself
        assert_same_answers(episode.answers, episode.beside)
        assert len(episode.attention) == len(episode.influence) == len(episode.obs)


@pytest.mark.slow
def test_agents_with_memory_carry_their_state_through_a_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, custom = tmp_path / "shells.rec", tmp_path / "run"
    once = ["eval.episodes=2", "eval.interval=9999", "eval.run_on_first_step=false"]
    memory = ['net.memory=(inputs: ["action"])', "ppo.seq_len=4", "optim.lr=0.02", "env.id=Shells"]
    options = [*memory, *once, f"eval.capture_samples={file}"]
    run_small(tmp_path, *options, env=Shells, checkpoint_dir=custom)
    for arguments in ([str(custom), "--beside", str(custom)], [str(file), "--agent", str(custom)]):
        for episode in watched(tmp_path, *arguments).episodes:
            assert_same_answers(episode.answers, episode.beside)
            assert len(episode.attention) == len(episode.influence) == len(episode.obs)

    # Of frames that were left out nothing can be remembered, and without ids no entity is.
    whole, half = tmp_path / "whole.rec", tmp_path / "half.rec"
    run_small(tmp_path, "env.id=Shells", f"capture_samples={whole}", env=Shells)
    output = watched(tmp_path, str(whole), "--agent", str(custom))
    assert output.about["second agent"] == f"{custom}, without memory of entities: no ids recorded"
    options = [f"capture_samples={half}", "capture_samples_subsample=2"]
    run_small(tmp_path, "env.id=Shells", *options, env=Shells)
    capsys.readouterr()
    assert run(["watch", str(half), "--agent", str(custom), "--out", str(tmp_path / "a.html")]) == 2
    assert "error: --agent: expected an agent without memory" in capsys.readouterr().err


def assert_same_answers(item: Answers, other: Answers | None) -> None:
    assert other is not None
    np.testing.assert_allclose(item.values, other.values, atol=1e-5)
    assert set(item.probs) == set(other.probs)
    for name, probs in item.probs.items():
        np.testing.assert_allclose(probs.values, other.probs[name].values, atol=1e-5)


@pytest.mark.slow
def test_second_agent_is_evaluated_on_the_same_frames(
    mines_run: Path, duel_run: Path, tmp_path: Path
) -> None:
    alone = watched(tmp_path, str(mines_run))
    for other in (str(mines_run), "random"):
        output = watched(tmp_path, str(mines_run), "--beside", other)
        if other != "random":
            assert not [moment for moment in output.moments if moment.kind == "disagreement"]
        for reference, episode in zip(alone.episodes, output.episodes, strict=True):
            assert not [*differences(reference.answers, episode.answers)], "the first one acts"
            assert reference.beside is None
            assert episode.beside is not None
            if other != "random":
                assert_same_answers(episode.answers, episode.beside)
            else:
                assert not episode.beside.values.any()
    sides = watched(tmp_path, str(duel_run), "--beside", str(duel_run))
    for episode in sides.episodes:
        assert_same_answers(episode.answers, episode.beside)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nothing"], "nothing"),
        (["MINES", "--env", "Xor"], "--env: Xor has other spaces"),
        (["MINES", "--max-mb", "0.000001"], "--max-mb: expected more than"),
        (["MINES", "--out", "NOTES"], "exists and is no replay"),
        (["MINES", "--positions", "x,z"], "--positions: expected features among"),
        (["NOTES"], "is not a recording"),
        (["MINES", "--beside", "nothing"], "--beside: nothing: expected a checkpoint"),
        (["MINES", "--beside", "DUEL"], "--beside: "),
        (["MINES", "--agent", "MINES"], "--agent: expected a recording"),
        (["NOTES", "--beside", "MINES"], "--beside: expected a run to play"),
        (["NOTES", "--pictures"], "--pictures: expected a run to play"),
        (["NOTES", "--opponent", "random"], "--opponent: expected a run to play"),
        (["NOTES", "--seed", "0"], "--seed: expected a run to play"),
        (["NOTES", "nmines=3"], "--env-kwargs: expected a run to play"),
        (
            ["MINES", "nmines=2", "--env", f"{__name__}:Blind", "--pictures"],
            "--pictures: expected an environment that renders, Blind does not",
        ),
    ],
)
def test_usage_errors_print_one_line(
    arguments: list[str],
    expected: str,
    mines_run: Path,
    duel_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    notes = tmp_path / "notes.rec"
    notes.write_text("nobody wants to lose these")
    places = {"MINES": str(mines_run), "DUEL": str(duel_run), "NOTES": str(notes)}
    assert run(["watch", *[places.get(a, a) for a in arguments]]) == 2
    *progress, error = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ")
    assert expected in error
    assert all(line.startswith(("as trained: ", "explaining: ")) for line in progress)
    assert notes.read_text() == "nobody wants to lose these"
    assert not (mines_run / "replay.html").exists()
