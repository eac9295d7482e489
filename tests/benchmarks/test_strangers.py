"""Worlds of others: what `benchmarks/strangers.py` compares, and its files."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from entity_env import EnvList, SelectEntityAction
from tests.entity_env.builders import play

FOLDER = Path(__file__).parents[2] / "benchmarks/strangers"
BEST = "201502131435325424335100202411554034"
"""Jobs in the order of their operations in a shortest schedule of ft06."""
QUICK = ("rollout.num_envs=8", "rollout.steps=40", "optim.bs=160", "optim.update_epochs=1")


@pytest.fixture
def strangers(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(FOLDER)
    return benchmark("strangers")


def dispatched(world: Any, jobs: Any) -> tuple[list[Any], float]:
    """Return all frames of an episode and the sum of its rewards."""
    frames = [world.reset()]
    for job in jobs:
        frames.append(world.act({"dispatch": SelectEntityAction([("shop", 0)], [("job", job)])}))
    return frames, sum(frame.reward for frame in frames)


def simulated(order: Any, durations: Any, jobs: Any) -> tuple[list[int], list[int], list[int]]:
    """Return the next operation and the end of each job, and the end of each machine."""
    number, ready, free = [0] * len(order), [0] * len(order), [0] * order.shape[1]
    for job in jobs:
        machine = order[job, number[job]]
        end = max(ready[job], free[machine]) + durations[job, number[job]]
        ready[job] = free[machine] = end
        number[job] += 1
    return number, ready, free


def test_third_party_environments_are_short_files() -> None:
    """They are written as a user would: at most 60 lines, and no private name of ours."""
    files = sorted(FOLDER.glob("*.py"))
    assert len(files) > 5
    for file in files:
        text = file.read_text()
        assert len(text.splitlines()) <= 60, file.name
        ours = re.findall(r"^(?:from|import) ((?:entity_env|enn_trainer|rogue_net)\S*)", text, re.M)
        assert {*ours} <= {
            "entity_env",
            "entity_env.adapters.from_gymnasium",
            "entity_env.adapters.from_gymnasium_vector",
            "entity_env.adapters.from_pettingzoo",
            "entity_env.adapters.mapping",
            "entity_env.adapters.to_gymnasium",
        }


def test_both_sides_have_the_same_budget(strangers: Any, tmp_path: Path) -> None:
    """Environments, steps, minibatches and epochs, so that frames mean the same."""
    assert len(strangers.WORLD_OF) == len(strangers.WORLDS)
    for world in strangers.WORLDS:
        config = strangers.manager_of(world, 1, 1000, str(tmp_path)).config
        rollout, optim = config.rollout, config.optim
        ours = rollout.num_envs, rollout.steps, optim.bs, optim.update_epochs
        sb3 = [world.sb3[name] for name in ("n_envs", "n_steps", "batch_size", "n_epochs")]
        assert list(ours) == sb3, world.name
        assert config.ppo.gamma == world.sb3.get("gamma", 0.99), world.name
        assert json.loads(config.env.kwargs) == world.kwargs
        assert len({one.name for one in world.plays}) == len(world.plays)


def test_published_job_shop_has_makespan_55(benchmark: Any, strangers: Any) -> None:
    world = strangers.load("job_shop:JobShop")(ft06=True)
    frames, total = dispatched(world, map(int, BEST))
    assert frames[-1].terminated
    assert [frame.terminated for frame in frames[:-1]] == [False] * 36
    assert total == pytest.approx(-5.5)
    # Job 0 begins on machine 2 for 1, then 0 for 3, 1 for 6, 3 for 7, 5 for 3 and 4 for 6.
    first = np.array([[0, 2, 0, 0.1, 2.5], [0, 0, 0.1, 0.3, 2.2], [0, 1, 0.4, 0.6, 1.6]])
    np.testing.assert_allclose(frames[0].features["job"][0], first[0])
    np.testing.assert_allclose(frames[0].features["later"][:2], first[1:])
    np.testing.assert_allclose(frames[0].features["machine"][2], [2, 0, 2.6])  # 1+5+4+9+1+... = 26
    assert len(frames[0].features["later"]) == 30


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(jobs=st.integers(1, 5), machines=st.integers(1, 5), data=st.data())
def test_job_shop_matches_a_simulation(strangers: Any, jobs: int, machines: int, data: Any) -> None:
    world = strangers.load("job_shop:JobShop")(jobs, machines)
    world.seed(data.draw(st.integers(0, 2**32)))
    chosen = data.draw(st.permutations([j for j in range(jobs) for _ in range(machines)]))
    frames, total = dispatched(world, chosen)
    order, durations = world.order, world.durations
    assert sorted(order.ravel()) == sorted([*range(machines)] * jobs)
    for i, frame in enumerate(frames):
        number, ready, free = simulated(order, durations, chosen[:i])
        waits = [n < machines for n in number]
        np.testing.assert_array_equal(frame.actions["dispatch"].mask[0], waits)
        assert frame.terminated == (i == jobs * machines)
        starts = [
            max(ready[j], free[order[j, number[j]]]) if waits[j] else ready[j] for j in range(jobs)
        ]
        now = min([s for s, w in zip(starts, waits, strict=True) if w], default=max(ready))
        for j in np.flatnonzero(waits):
            tail = durations[j, number[j] + 1 :].sum()
            row = [starts[j] - now, durations[j, number[j]], tail]
            expected = [j, order[j, number[j]], *(np.array(row) / 10)]
            np.testing.assert_allclose(frame.features["job"][j], expected)
        assert len(frame.features["later"]) == sum(max(machines - n - 1, 0) for n in number)
        left = [sum(durations[j, number[j] :][order[j, number[j] :] == m]) for j in range(jobs)
                for m in range(machines)]  # fmt: skip
        work = np.reshape(left, (jobs, machines)).sum(axis=0)
        np.testing.assert_allclose(frame.features["machine"][:, 2], work / 10)
        waited = [max(f - now, 0) / 10 for f in free]
        np.testing.assert_allclose(frame.features["machine"][:, 1], waited)
    assert total == pytest.approx(-max(simulated(order, durations, chosen)[1]) / 10)


@pytest.mark.slow
def test_our_agent_learns_a_job_shop_and_generalises(strangers: Any) -> None:
    """The whole run of one side, with few frames."""
    world = strangers.WORLD_OF["job shop"]
    quick = world._replace(ours=(*world.ours, *QUICK), episodes=4, num_envs=4)
    result = strangers.run(quick, "ours", seed=1, frames=640)
    assert (result["frames"], result["asked"], result["side"]) == (640, 640, "ours")
    assert [*result["plays"]] == [one.name for one in world.plays]
    ft06 = result["plays"]["ft06, makespan"]
    assert 55 <= round(ft06["best"], 3) < ft06["sampled"] < 200
    assert 55 <= round(ft06["greedy"], 3) < 200
    assert result["curve"][0][1] > 40  # of makespans, not returns


@pytest.mark.slow
def test_default_settings_generalise_to_other_sizes(strangers: Any) -> None:
    world = strangers.WORLD_OF["job shop"]._replace(episodes=4, num_envs=4)
    result = strangers.run(world, "defaults", seed=1, frames=5760)
    assert (result["frames"], result["side"]) == (5760, "defaults")
    assert [*result["plays"]] == [one.name for one in world.plays]


@pytest.mark.slow
def test_greedy_play_is_the_same_for_all_seeds(
    benchmark: Any, strangers: Any, tmp_path: Path
) -> None:
    from enn_trainer import Trainer

    world = strangers.WORLD_OF["job shop"]._replace(ours=QUICK)
    shop = strangers.load(world.entities)
    with Trainer(strangers.manager_of(world, 1, 640, str(tmp_path)), shop) as trainer:

        def returns(seed: int, greedy: bool) -> npt.NDArray[np.float64]:
            envs = EnvList(lambda: shop(ft06=True), 4)
            measure = benchmark("learning_measure").measure
            found: npt.NDArray[np.float64] = measure(
                envs, trainer.state.agent, None, seed, 4, greedy=greedy
            )
            return found

        assert len({*returns(1, True), *returns(2, True)}) == 1
        assert len({*returns(1, False), *returns(2, False)}) > 1


def test_finished_runs_are_not_repeated(
    strangers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Other frames are other runs; results of all seeds are in the table."""
    world = strangers.WORLD_OF["job shop"]
    asked: list[tuple[str, ...]] = []

    def run_all(script: str, todo: Any, kept: Path, jobs: int) -> None:
        asked.extend(todo)
        for name, side, seed, frames in todo:
            plays = {one.name: {"sampled": 90.5, "greedy": 80.0} for one in world.plays}
            plays["ft06, makespan"]["best"] = 57.0
            if side == "sb3":
                plays["10x6, makespan"] = None  # type: ignore[assignment]
            result = {"world": name, "side": side, "seed": int(seed), "asked": int(frames)}
            result |= {"frames": 4096, "seconds": 2.0, "plays": plays, "commit": "abc"}
            result |= {"curve": [[2048, 97.0], [4096, 90.0]]}
            with kept.open("a") as file:
                file.write(json.dumps(result) + "\n")

    monkeypatch.setattr(strangers, "run_all", run_all)
    monkeypatch.setattr(strangers.World, "missing", lambda self, sides: [])
    results = tmp_path / "out.md"
    for frames, num_new in (("4000", 6), ("4000", 0), ("5000", 6)):
        command = ["strangers.py", "job shop", "--seeds", "2", "--frames", frames]
        monkeypatch.setattr("sys.argv", [*command, "--results", str(results)])
        asked.clear()
        strangers.main()
        assert len(asked) == num_new
    page = results.read_text()
    row = "| job shop | ft06, makespan | enn-trainer | 90.5, 90.5 | 80, 80 | 57, 57 | 4,096 |"
    assert row in page
    assert "| job shop | 10x6, makespan | Stable-Baselines3 | cannot | cannot |" in page
    drawn = ET.fromstring(results.with_suffix(".svg").read_text())
    lines = [p for p in drawn.iter() if p.tag.endswith("polyline")]
    assert len(lines) == 6  # three sides with two seeds each, without bars
    names = [p.text for p in drawn.iter() if p.tag.endswith("tspan")]
    assert names == ["enn-trainer in job shop", "defaults", "sb3"]
    assert "80" in capsys.readouterr().out


def test_environment_with_missing_modules_is_skipped(
    strangers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(strangers, "run_all", lambda script, todo, kept, jobs: print(todo))
    shop = strangers.WORLD_OF["job shop"]
    other = shop._replace(name="elsewhere", needs=("json", "no_such_module"))
    monkeypatch.setattr(strangers, "WORLDS", [shop, other])
    command = ["strangers.py", "--seeds", "1", "--sides", "ours"]
    monkeypatch.setattr("sys.argv", [*command, "--results", str(tmp_path / "out.md")])
    strangers.main()
    out = capsys.readouterr().out
    assert "elsewhere is skipped: no_such_module cannot be imported" in out
    assert f"[('job shop', 'ours', '1', '{shop.frames}')]" in out


def test_last_line_of_each_process_is_stored(benchmark: Any, tmp_path: Path, capsys: Any) -> None:
    """A run that fails leaves the results of the others."""
    script, kept = tmp_path / "script.py", tmp_path / "kept.jsonl"
    script.write_text(
        "import json, os, sys\n"
        "print('before')\n"
        "args = sys.argv[2:]\n"
        "assert args != ['bad', '1']\n"
        "print(json.dumps({'args': args, 'curve': [1], 'threads': os.environ['OMP_NUM_THREADS']}))"
    )
    runs = benchmark("kept_runs")
    assert runs.read_kept(kept) == []
    with pytest.raises(SystemExit, match=r"^bad 1: .* returned non-zero exit status 1"):
        runs.run_all(str(script), [("bad", "1"), ("a", "1"), ("b", "2")], kept, 2)
    found = runs.read_kept(kept)
    assert sorted(one["args"] for one in found) == [["a", "1"], ["b", "2"]]
    assert {one["threads"] for one in found} == {"1"}
    assert "curve" in found[0]
    assert "curve" not in capsys.readouterr().out


def test_a_curve_has_at_most_60_points(benchmark: Any) -> None:
    points = [[10 * i, float(i)] for i in range(1, 151)]
    curve = benchmark("learning_curves").thinned(points, -2.0)
    assert len(curve) == 50
    assert curve[0] == [30, -4.0]  # -2 times the mean of 1, 2 and 3
    assert curve[-1] == [1500, -298.0]


def test_vector_masks_equal_entity_masks(strangers: Any) -> None:
    env_id = "Foraging-5x5-2p-1f-v3"
    flat = strangers.load("foragers:MaskedForaging")(env_id=env_id, num_players=4, seed=3)
    for _ in range(20):
        expected = [strangers.load("foraging:WithMasks")(world)._masks() for world in flat._worlds]
        np.testing.assert_array_equal(flat.action_masks, np.concatenate(expected))
        flat.step(np.array([mask.nonzero()[0][-1] for mask in flat.action_masks]))


def test_the_number_of_players_follows_from_the_id(strangers: Any) -> None:
    for num_players in (2, 3):
        match = strangers.load("foragers:foraging")(f"Foraging-5x5-{num_players}p-1f-v3")
        match.seed(1)
        assert len(match.reset()) == match.num_sides == num_players


def test_relevant_cells_are_entities(strangers: Any) -> None:
    pytest.importorskip("minigrid")
    world = strangers.load("grid_views:Obstacles")(env_id="MiniGrid-Dynamic-Obstacles-6x6-v0")
    world.seed(1)
    for _ in range(5):
        shown = {tuple(row) for row in np.asarray(world.reset().features["cell"]).astype(int)}
        image = world.env.unwrapped.gen_obs()["image"][..., 0]
        expected = set()
        for row, column in np.ndindex(7, 7):
            around = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
            inside = [image[r, c] != 2 for r, c in around if 0 <= r < 7 and 0 <= c < 7]
            kind = image[row, column]
            if kind in (6, 8) or (kind == 2 and any(inside)):
                expected.add((row, column, *(int(kind == k) for k in (2, 6, 8))))
        # Beyond the edge of the view nothing is known, which leaves walls there in.
        assert expected <= shown
        assert all(row[0] in (0, 6) or row[1] in (0, 6) for row in shown - expected)


@pytest.mark.parametrize("name", ["obstacles", "fetch", "spread", "knapsack", "tour"])
def test_both_sides_play_third_party_environments(strangers: Any, name: str) -> None:
    """Random play of ours, and the vectors of Stable-Baselines3."""
    world = strangers.WORLD_OF[name]
    for module in world.needs:
        pytest.importorskip(module)
    from enn_trainer import EnvConfig
    from enn_trainer.experience.envs import env_factory

    config = EnvConfig(kwargs=json.dumps(world.kwargs))
    frames = play(env_factory(strangers.load(world.entities))(config, 6, 1, 0), 30)
    assert all(len(obs.reward) == 6 for obs in frames)
    pytest.importorskip("sb3_contrib")
    import strangers_sb3

    envs = strangers_sb3.make_envs(world, 6, 1, world.kwargs)
    assert len(envs.reset()) == 6
    for _ in range(30):
        masks = envs.env_method("action_masks") if world.is_masked else None
        actions = [mask.argmax() if masks else 0 for mask in masks or range(6)]
        rows, rewards, dones, infos = envs.step(np.array(actions))
        assert rows.shape == (6, *envs.observation_space.shape)
        assert len(rewards) == len(dones) == len(infos) == 6
    envs.close()


def test_vector_model_does_not_play_other_sizes(strangers: Any) -> None:
    pytest.importorskip("sb3_contrib")
    import strangers_sb3

    small = {"n_envs": 2, "n_steps": 36, "batch_size": 36, "n_epochs": 1}
    world = strangers.WORLD_OF["job shop"]._replace(sb3=small, episodes=2, num_envs=2)
    model, seconds, curve = strangers_sb3.train(world, 1, 72)
    assert seconds > 0
    assert [frames for frames, _ in curve] == [72]
    assert 55 <= curve[0][1] < 200
    same, ft06, larger = (strangers_sb3.played(world, model, 1, one) for one in world.plays)
    assert larger is None
    assert same is not None
    assert ft06 is not None
    assert ft06["best"] <= ft06["sampled"]
