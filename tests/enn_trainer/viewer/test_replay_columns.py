"""Numbers and dependent actions in replays, explanations and live games."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_trainer import replay
from enn_trainer.evaluation.explain import most_probable
from enn_trainer.evaluation.opponents import RandomAgent
from enn_trainer.experience.bot_player import BotPlayer
from enn_trainer.experience.collector import Collector, play
from enn_trainer.experience.players import AgentPlayer
from enn_trainer.viewer.page import page_blocks
from enn_trainer.viewer.replay import Replay
from enn_trainer.viewer.replay_format import read_replay
from enn_trainer.viewer.what_if import FeatureChange, what_if
from entity_env import EnvList
from entity_env.actions.chains import active_actors, has_choice
from entity_env.examples import Duel
from entity_env.spaces import Spaces
from entity_env.vec.batching import batch_obs
from rogue_net.config import MemoryConfig
from rogue_net.ragged import EntityBatch, without
from tests.enn_trainer.builders import run_small
from tests.enn_trainer.chains_world import Camp
from tests.enn_trainer.numbers_world import Targets
from tests.enn_trainer.viewer.live_games import Played, quiet
from tests.enn_trainer.viewer.live_tabs import LiveTab, served
from tests.enn_trainer.viewer.replays import agent_of, differences
from tests.enn_trainer.viewer.tabs import TIMEOUT_MS, Tab
from tests.entity_env.play.random_bots import Lucky, LuckyArcher

WORLDS = [Targets, Camp]
REMEMBERING = MemoryConfig(inputs=["action", "reward"])


@pytest.fixture(scope="module", params=WORLDS)
def shown(request: pytest.FixtureRequest) -> Replay:
    return replay(
        agent_of(request.param),
        request.param,
        episodes=2,
        beside=agent_of(request.param, seed=1),
    )


def test_replays_of_all_action_kinds_round_trip_exactly(shown: Replay, tmp_path: Path) -> None:
    path = shown.write(tmp_path / "replay.html").path  # type: ignore[attr-defined]
    back = read_replay(path)
    assert back.action_space == shown.action_space
    for one, other in zip(shown.episodes, back.episodes, strict=True):
        for name in shown.action_space:
            pairs = [
                (one.chosen[name], other.chosen[name]),
                (one.answers.probs[name], other.answers.probs[name]),
                (one.beside.probs[name], other.beside.probs[name]),  # type: ignore[union-attr]
            ]
            masks = one.obs.action_masks[name], other.obs.action_masks[name]
            if masks[0].bounds is not None:
                pairs.append((masks[0].bounds, masks[1].bounds))
            for wanted, found in pairs:
                assert wanted.values.dtype == found.values.dtype
                assert wanted.values.tobytes() == found.values.tobytes(), name
        assert not list(differences(one.influence, other.influence))
    header = json.loads(page_blocks(path.read_bytes())["header"].unpacked(1 << 24) or b"")
    assert header["version"] == 2


def test_replays_without_continuous_actions_use_the_earlier_format(tmp_path: Path) -> None:
    path = replay(agent_of(Duel), Duel, episodes=1, max_steps=3).write(tmp_path / "r.html").path
    header = json.loads(page_blocks(path.read_bytes())["header"].unpacked(1 << 24) or b"")
    assert header["version"] == 1
    assert header["actions"] == [["attack", "SelectEntityActionSpace", {}]]


def test_small_page_rounds_only_probabilities(shown: Replay, tmp_path: Path) -> None:
    size = shown.write(tmp_path / "replay.html").num_bytes / 1e6  # type: ignore[attr-defined]
    back = read_replay(shown.write(tmp_path / "replay.html", size - 0.001).path)  # type: ignore[attr-defined]
    for name, space in shown.action_space.items():
        one, other = (r.episodes[0].answers.probs[name].values for r in (shown, back))
        np.testing.assert_allclose(one, other, atol=0 if space.components else 1e-2)


def test_inactive_actors_have_no_probabilities(shown: Replay) -> None:
    for episode in shown.episodes:
        for name, space in shown.action_space.items():
            mask, chosen = episode.obs.action_masks[name], episode.chosen[name].values
            taken = has_choice(chosen)
            rows = episode.answers.probs[name].values
            if mask.actees is None:
                assert (np.isnan(rows).any(axis=1) == ~taken).all()
                assert np.isnan(rows[~taken]).all()
            if space.after is not None:
                before = episode.chosen[space.after]
                assert (active_actors(mask, before)[0] == taken).all()
            if space.components:
                low, high = mask.low.values, mask.high.values
                table = rows.reshape(len(rows), -1, 4)[taken]
                assert (table[..., 2] <= table[..., 3]).all()
                assert (table[..., 2] >= low[taken] - 1e-6).all()
                assert (table[..., 3] <= high[taken] + 1e-6).all()
                assert (chosen[taken] >= low[taken]).all()
            elif mask.actees is None:
                np.testing.assert_allclose(rows[taken].sum(axis=1), 1, atol=1e-5)


@pytest.mark.slow
def test_continuous_actions_fall_into_their_interval_at_the_nominal_rate() -> None:
    agent = agent_of(Targets)
    episodes = replay(agent, Targets, episodes=40).episodes
    inside: list[bool] = []
    for episode in episodes:
        for name, chosen in episode.chosen.items():
            rows = episode.answers.probs[name].values
            if chosen.values.ndim == 2:
                table = rows.reshape(len(rows), -1, 4)
                moves = table[..., 1] > 0
                within = (chosen.values >= table[..., 2]) & (chosen.values <= table[..., 3])
                inside += within[moves].tolist()
    assert len(inside) > 1000
    assert abs(np.mean(inside) - 0.9) < 0.03


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("memory", [None, REMEMBERING])
def test_explanations_match_the_agents_actions(world: Any, memory: Any) -> None:
    agent, game = agent_of(world, memory), world()
    game.seed(3)
    obs = game.reset()
    for _ in range(6):
        explained = agent.explain(obs)
        batch = EntityBatch.of(batch_obs([obs], game.obs_space(), game.action_space()))
        assert explained.actions.keys() == game.action_space().keys()
        for name, space in game.action_space().items():
            action = explained.actions[name]
            assert (action.numbers is None) == (not space.components)
            if action.numbers is not None:
                assert action.choices == space.components
                shape = len(action.actors), len(space.components), 4
                assert action.numbers.shape == shape
                assert action.probs is None
            else:
                assert action.probs is not None
                sums = action.probs.sum(axis=1)
                np.testing.assert_allclose(sums[~np.isnan(sums)], 1, atol=1e-5)
            changes = explained.influence.choice[name]
            found = changes[~np.isnan(changes)]
            assert ((found >= -1e-6) & (found <= 1 + 1e-6)).all()
        assert len(explained.influence.value) == int(batch.entities_of_frames()[0])
        obs = game.act(agent.act(obs).actions)


def test_influence_on_continuous_actions() -> None:
    agent, game = agent_of(Targets), Targets()
    game.seed(3)
    obs, found = game.reset(), []
    for _ in range(9):
        found += agent.explain(obs).influence.choice["mean"][:, 0].tolist()
        found += agent.explain(obs).influence.choice["aim"].reshape(-1).tolist()
        obs = game.act(agent.act(obs).actions)
    known = np.array(found)[~np.isnan(found)]
    assert len(known) > 10
    assert (known > 0).all()


def test_parent_choices_without_legal_children_become_illegal() -> None:
    world = Camp()
    space, checked = world.action_space(), 0
    world.seed(4)
    for _ in range(30):
        obs = world.reset()
        counts = [len(obs.ids[name]) for name in ("Medic", "Ill", "Foe")]
        batch = EntityBatch.of(batch_obs([obs], world.obs_space(), space))
        for position in range(sum(counts)):
            left, parts = without(batch, 0, np.array([position]), space)
            without_it = {n: [x for k, x in enumerate(i)] for n, i in obs.ids.items()}
            flat = [(n, x) for n, i in without_it.items() for x in i]
            name, one = flat[position]
            without_it[name].remove(one)
            mask = left.actions["do"].mask
            assert mask is not None or (without_it["Ill"] and without_it["Foe"])
            flags = np.ones((len(without_it["Medic"]), 3), bool)
            flags[:, 1], flags[:, 2] = bool(without_it["Ill"]), bool(without_it["Foe"])
            assert mask is None or (mask.values.numpy() == flags).all()
            assert len(parts["do"].actors) == counts[0]
            assert parts["do"].actors.sum() == len(without_it["Medic"])
            checked += 1
    assert checked > 60


@pytest.mark.parametrize("world", WORLDS)
def test_what_if_is_indexed_by_the_original_frame(world: Any) -> None:
    agent, game = agent_of(world).agent, world()
    game.seed(2)
    spaces = game.obs_space(), game.action_space()
    for _ in range(8):
        frame = batch_obs([game.reset()], *spaces)
        own = most_probable(agent, EntityBatch.of(frame))
        same = what_if(agent, frame, *spaces, [])
        batch = EntityBatch.of(frame)
        for name, table in own.shown_on_host(batch.actions, spaces[1]).items():
            if len(frame.action_masks[name].actors.values):
                rows = np.stack([*same.probs[name].values()])
                np.testing.assert_array_equal(rows.reshape(-1), table.reshape(-1))
        changed = what_if(agent, frame, *spaces, [FeatureChange(0, feature=0, value=9.0)])
        assert changed.value != same.value
        last = int(batch.entities_of_frames()[0]) - 1
        gone = what_if(agent, frame, *spaces, [FeatureChange(last, removed=True)])
        for name, of_actors in gone.probs.items():
            assert of_actors.keys() <= {*frame.action_masks[name].actors.values.tolist()}


def typed(message: dict[str, Any], space: Any, rng: np.random.Generator, game: Any) -> Any:
    """Answer a question with a random legal choice of the first actor that waits."""
    side, a, position = message["actors"][0]
    name = [*space][a]
    hand = game._turn.hand
    row = game._actors(game._episode.frames.obs)[side, a, position][1]
    choice = space[name].random_choices(hand.mask(name, row), rng).values[0].tolist()
    step = {"type": "choose", "episode": message["episode"], "step": message["step"]}
    return {**step, "choices": [[side, a, position, choice]]}, (name, row, choice)


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("memory", [None, REMEMBERING])
def test_person_chooses_dependent_actions_in_order(world: Any, memory: Any) -> None:
    rng, meant = np.random.default_rng(0), list[Any]()
    space = world().action_space()

    def person(message: dict[str, Any]) -> list[dict[str, Any]]:
        if message["type"] == "welcome":
            return [{"type": "take", "side": 0, "key": None}]
        if message["type"] != "waiting" or not message["actors"]:
            return []
        answer, choice = typed(message, space, rng, played.game)
        meant.append((message["episode"], message["step"], *choice))
        return [answer]

    played = Played(world, person, memory=memory)
    steps = played.play(12)
    assert not played.pages.of("error")
    for number, (_, decisions, _) in enumerate(steps):
        chosen = decisions.chosen_on_host()
        for name, rows in chosen.items():
            own = decisions.by_hand[name].values
            assert (own == has_choice(rows.values)).all()
            given = {row: c for e, s, n, row, c in meant if (10 * e + s, n) == (number, name)}
            for row in np.flatnonzero(own).tolist():
                assert rows.values[row].tolist() == given[row]
        for name in decisions.numbers:
            again = decisions.distributions[name].to_env(decisions.chosen[name].values)
            torch.testing.assert_close(
                again, decisions.numbers[name].values, equal_nan=True, atol=1e-4, rtol=1e-4
            )
            assert decisions.logprobs[name].values.isfinite().all()
    # The pages show what was chosen.
    for message, (_, decisions, _) in zip(played.pages.of("steps"), steps, strict=True):
        episode = played.episode(message)
        for name, rows in decisions.chosen_on_host().items():
            np.testing.assert_array_equal(episode.chosen[name].values, rows.values)


def test_dependent_actions_are_recomputed_after_a_choice() -> None:
    """And what depends on none of the person's choices stays as it was, to the bit."""
    space = Camp().action_space()
    alone = Played(Camp, quiet).play(1)[0][1]

    def person(message: dict[str, Any]) -> list[dict[str, Any]]:
        if message["type"] == "welcome":
            return [{"type": "take", "side": 0, "key": None}]
        if message["type"] != "waiting" or asked:
            return []
        asked.append(message)
        step = {"type": "choose", "episode": message["episode"], "step": message["step"]}
        names = [*space]
        choices = []
        for side, a, position in message["actors"]:
            assert played.game._turn is not None
            actors = played.game._actors(played.game._episode.frames.obs)
            name, row = actors[side, a, position]
            own = int(alone.chosen[name].values[row])
            legal = played.game._turn.hand.mask(name, row).full_mask((3,)).values[0].nonzero()[0]
            others = [k for k in legal.tolist() if k != own]
            choices.append([side, names.index(name), position, others[-1] if others else own])
        return [{**step, "choices": choices}, {**step, "type": "agent"}]

    asked: list[Any] = []
    played = Played(Camp, person)
    _, decisions, _ = played.play(1)[0]
    assert asked
    obs = played.game._episode.frames.obs
    chosen = decisions.chosen_on_host()
    for name in ("do", "trade"):
        assert decisions.by_hand[name].values.all()
        assert (chosen[name].values != alone.chosen[name].values.numpy()).any()
    masks = obs.action_masks
    for name in ("whom", "force", "shout", "price"):
        after = space[name].after
        assert after is not None
        assert not decisions.by_hand[name].values.any()
        taken, _ = active_actors(masks[name], chosen[after])
        assert (has_choice(chosen[name].values) == taken).all()
        most = decisions.distributions[name].mode()
        torch.testing.assert_close(decisions.chosen[name].values, most, equal_nan=True)
        logprobs = decisions.distributions[name].log_prob(decisions.chosen[name].values)
        torch.testing.assert_close(decisions.logprobs[name].values, logprobs)


def test_invalid_numbers_of_a_page_are_rejected() -> None:
    def person(message: dict[str, Any]) -> list[dict[str, Any]]:
        if message["type"] == "welcome":
            return [{"type": "take", "side": 0, "key": None}]
        if message["type"] != "waiting" or asked:
            return []
        asked.append(message)
        step = {"type": "choose", "episode": message["episode"], "step": message["step"]}
        wrong: list[Any] = [0.5, [0.5], [9.0, 0.0], ["0", "0"], [None, 1.0], [True, 0.0], {}]
        return [
            *(
                {**step, "choices": [[*actor, one]]}
                for actor in message["actors"][:1]
                for one in wrong
            ),
            {**step, "choices": [[0, 0, 0]]},
            {**step, "type": "agent"},
        ]

    asked: list[Any] = []
    played = Played(Targets, person)
    played.play(1)
    errors = [message["text"] for message in played.pages.of("error")]
    assert len(errors) == 8
    assert all(text.startswith("choose: ") and "expected" in text for text in errors)
    assert not any("\n" in text for text in errors)


@pytest.mark.parametrize("memory", [None, REMEMBERING])
def test_second_agent_is_evaluated_on_recorded_choices(memory: Any) -> None:
    for world in WORLDS:
        shown = replay(agent_of(world), world, episodes=1, beside=agent_of(world, memory, 1))
        [episode] = shown.episodes
        assert episode.beside is not None
        assert episode.beside.probs.keys() == world().action_space().keys()
        assert np.isfinite(episode.beside.values).all()


@pytest.mark.parametrize("world", WORLDS)
def test_random_players_and_bots_choose_dependent_actions_in_order(world: Any) -> None:
    envs = EnvList(world, 4)
    spaces = envs.obs_space(), envs.action_space()
    bots: dict[Any, Any] = {Camp: Lucky, Targets: LuckyArcher}
    random: Any = RandomAgent(spaces[1])
    for player in (AgentPlayer(random, 1), BotPlayer(bots[world], 0, spaces[0], Spaces(*spaces))):
        collector = Collector(envs, player)
        with torch.no_grad():
            play(collector, spaces[0], 12, seed=1)  # the world checks what is taken


# -- In a browser ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_page_shows_numbers_and_inactive_actions(browser: Any, world: Any, tmp_path: Path) -> None:
    played = replay(agent_of(world), world, episodes=1, beside=agent_of(world, seed=1))
    [episode] = played.episodes
    with Tab(browser, played.write(tmp_path / "replay.html").path) as tab:
        for frame in range(4):
            entities = sum(rows.lengths[frame] for rows in episode.obs.features.values())
            for position in range(int(entities)):
                hash_ = f"#e=1&s={frame}&i={position}"
                tab.go(hash_, step=frame, selected=position)
                for name, space in played.action_space.items():
                    actors = episode.obs.action_masks[name].actors[frame].values.tolist()
                    table = f'#inspector [data-action="{name}"]'
                    if position not in actors:
                        assert tab.page.locator(table).count() == 0
                        continue
                    chosen = episode.chosen[name][frame].values[actors.index(position)]
                    taken = bool(has_choice(chosen[None])[0])
                    empty = tab.page.locator(f'#inspector [data-not-taken="{name}"]').count()
                    assert (tab.page.locator(table).count(), empty) == (int(taken), 1 - taken)
                    if not taken or not space.components:
                        continue
                    rows = episode.answers.probs[name][frame].values[actors.index(position)]
                    for k, what in enumerate(("mean", "deviation", "from", "to")):
                        shown_ = tab.numbers(f"{table} [data-component]", f"data-{what}")
                        assert np.float32(shown_).tolist() == rows[k::4].tolist()
                    shown_ = tab.numbers(f"{table} [data-component]", "data-chosen")
                    assert np.float32(shown_).tolist() == chosen.tolist()


@pytest.mark.slow
def test_a_person_types_numbers_into_the_page(browser: Any, tmp_path: Path) -> None:
    run_small(tmp_path, f"env.id={Camp.__module__}:Camp", env=Camp, checkpoint_dir=tmp_path / "run")
    with (
        served(tmp_path / "run", "--trust") as (address, _),
        LiveTab(browser, address).begun() as tab,
    ):
        tab.page.click("#take-side")
        number = '#menu input[data-component="f"]'
        for _ in range(40):
            tab.page.locator("#menu li").first.wait_for(timeout=TIMEOUT_MS)
            tab.wait_for_answer()
            text = tab.page.inner_text("#turn-text")
            options = tab.page.locator("#menu button").all_inner_texts()
            if "force" in text:
                break
            if "price" in text:
                tab.page.fill("#menu input", "5")
                tab.page.click("#choose-numbers")
            else:
                wanted = [i for i, option in enumerate(options) if option == "attack"]
                tab.page.locator("#menu button").nth(wanted[0] if wanted else 0).click()
            code = "text => document.querySelector('#turn-text').textContent !== text"
            tab.page.wait_for_function(code, arg=text, timeout=TIMEOUT_MS)
        assert "another do" in options
        tab.page.fill(number, "2")  # beyond its bounds
        tab.page.click("#choose-numbers")
        assert "force" in tab.page.inner_text("#turn-text")
        tab.page.fill(number, "0.75")
        tab.page.press(number, "Enter")
        code = "text => document.querySelector('#turn-text').textContent !== text"
        tab.page.wait_for_function(code, arg=text, timeout=TIMEOUT_MS)
        assert not tab.page.inner_text("#problem")
