"""A live game: what pages get is what was played, and a place is a person's while it is taken."""

import base64
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_trainer.evaluation.explain import attention_of
from enn_trainer.evaluation.load_agent import RogueNetAgent
from enn_trainer.experience.bot_player import BotPlayer
from enn_trainer.experience.players import AgentPlayer
from enn_trainer.experience.recall import replay_states
from enn_trainer.experience.recording import Recorder
from enn_trainer.experience.seated_players import AGENT, SeatedPlayers, against
from enn_trainer.viewer.live import LiveGame, Message
from enn_trainer.viewer.replay import Replay
from enn_trainer.viewer.what_if import FeatureChange, what_if
from entity_env.examples import Duel, Minefield, MineSweeper, RockPaperScissors, TreasureHunt
from entity_env.ragged import Ragged
from entity_env.recording.read_recording import Recording
from entity_env.spaces import Spaces
from entity_env.vec.batching import batch_obs
from entity_env.vec.vec_obs import VecObs
from rogue_net.config import MemoryConfig
from rogue_net.ragged import EntityBatch
from tests.enn_trainer.viewer.live_games import Answer, Played, quiet
from tests.entity_env.duel_bots import Greedy


def choosing(choice: int) -> Answer:
    """Answer each question with the same choice, or the first legal one."""

    def answer(message: Message) -> list[Message]:
        if message["type"] != "waiting" or not message["actors"]:
            return []
        step = {"type": "choose", "episode": message["episode"], "step": message["step"]}
        return [{**step, "choices": [[*actor, choice]]} for actor in message["actors"]]

    return answer


@pytest.mark.parametrize("world", [Duel, Minefield, MineSweeper, RockPaperScissors, TreasureHunt])
def test_pages_receive_all_played_frames(world: Any) -> None:
    played = Played(world, quiet)
    steps = played.play(40)
    shown = played.pages.of("steps")
    assert len(shown) == 40
    ended = 0
    for (batch, decisions, obs), message in zip(steps, shown, strict=True):
        episode = played.episode(message)
        for name, rows in batch.features.items():
            assert np.array_equal(episode.obs.features[name].values, rows.values.numpy())
        for name, chosen in decisions.chosen_on_host().items():
            assert np.array_equal(episode.chosen[name].values, chosen.values)
            rows = decisions.distributions[name].to_rows(batch.actions[name])
            probs = np.exp(rows.values.numpy().reshape(-1))
            assert np.array_equal(episode.answers.probs[name].values.reshape(-1), probs)
        assert np.array_equal(episode.answers.values, decisions.values.numpy())
        assert np.array_equal(episode.obs.reward, obs.reward)
        ended += int(obs.done.all())
    assert len(played.pages.of("end")) == ended
    assert len(played.pages.of("episode")) == ended + 1 - bool(obs.done.all())


def test_late_page_receives_the_episode_so_far() -> None:
    played = Played(TreasureHunt, quiet)
    played.play(5)
    played.pages.answers = (quiet, quiet)
    played.pages.told.append([])
    played.pages.inbox.append((1, {"type": "joined"}))
    played.game._listen(0)
    [welcome, opening, *pieces] = played.pages.told[1]
    assert (welcome["type"], opening["type"]) == ("welcome", "episode")
    [steps, places] = pieces
    assert (steps["first"], steps["count"], places["yours"]) == (0, 5, False)
    late = played.episode(steps, 1)
    own = [played.episode(message) for message in played.pages.of("steps")]
    for name, rows in late.obs.features.items():
        assert np.array_equal(
            rows.values, np.concatenate([o.obs.features[name].values for o in own])
        )


def test_taken_side_follows_the_person(tmp_path: Path) -> None:
    """And only that side, and only until it is given back, in the middle of an episode."""
    asked = 0

    def person(message: Message) -> list[Message]:
        nonlocal asked
        if message["type"] == "waiting":
            asked += 1
            if asked > 8:
                return [{"type": "give"}]
        if message["type"] == "steps" and message["first"] == 1 and not asked:
            return [{"type": "take", "side": 0, "key": None}]
        return choosing(1)(message)

    played = Played(Duel, person, quiet)
    recorder = Recorder(tmp_path / "live.rec", played.spaces[1])
    steps = played.play(12, recorder)
    recorder.close()
    by_hand = [decisions.by_hand["attack"] for _, decisions, _ in steps]
    of_sides = [(rows[0].values.all(), rows[1].values.any()) for rows in by_hand]
    assert (True, False) in of_sides
    assert not any(own for _, own in of_sides)
    hands = [bool(own) for own, _ in of_sides]
    assert hands[:2] == [False, False]
    assert hands[2]
    assert not hands[-1]
    for (_, decisions, _), rows in zip(steps, by_hand, strict=True):
        chosen = decisions.chosen_on_host()["attack"]
        assert (chosen.values[rows.values] == 1).all()
    told = [
        step.decisions.by_hand["attack"] for step in Recording.open(tmp_path / "live.rec").steps()
    ]
    assert all(np.array_equal(a.values, b.values) for a, b in zip(told, by_hand, strict=True))
    # The other tab is read-only.
    assert not any(message["yours"] for message in played.pages.of("places", 1))
    assert any(message["yours"] for message in played.pages.of("places", 0))
    assert played.pages.of("steps", 1) == played.pages.of("steps", 0)


def test_single_actor_can_be_taken() -> None:
    keys: list[str] = []

    def person(message: Message) -> list[Message]:
        if message["type"] == "steps" and not keys:
            keys.append("0id1")
            return [{"type": "take", "side": 0, "key": "0id1"}]
        return choosing(2)(message)

    played = Played(Duel, person)
    steps = played.play(4)
    for batch, decisions, _ in steps[1:]:
        rows = decisions.by_hand["attack"].values
        positions = batch.actions["attack"].actors.values.numpy()
        assert positions[rows].tolist() == [1]  # the second of the side's own entities


def test_second_tab_cannot_take_places() -> None:
    def second(message: Message) -> list[Message]:
        return [{"type": "take", "side": 1, "key": None}] if message["type"] == "waiting" else []

    def first(message: Message) -> list[Message]:
        if message["type"] == "welcome":
            return [{"type": "take", "side": 0, "key": None}]
        return choosing(0)(message)

    played = Played(Duel, first, second)
    steps = played.play(3)
    assert "another tab" in played.pages.of("error", 1)[0]["text"]
    assert not any(decisions.by_hand["attack"][1].values.any() for _, decisions, _ in steps)


def test_closed_tab_releases_its_places() -> None:
    def person(message: Message) -> list[Message]:
        if message["type"] == "welcome":
            return [{"type": "take", "side": 0, "key": None}]
        return [{"type": "left"}] if message["type"] == "waiting" else []

    played = Played(Duel, person, quiet)
    steps = played.play(3)
    assert not any(decisions.by_hand["attack"].values.any() for _, decisions, _ in steps)
    assert played.pages.of("places", 1)[-1]["places"] == []


def test_remaining_choices_can_be_left_to_the_agent() -> None:
    def person(message: Message) -> list[Message]:
        if message["type"] == "welcome":
            return [{"type": "take", "side": 0, "key": None}]
        if message["type"] != "waiting" or len(message["actors"]) < 2:
            return []
        step = {"episode": message["episode"], "step": message["step"]}
        first = message["actors"][0]
        choices = [{"type": "choose", **step, "choices": [[*first, c]]} for c in (0, 2)]
        return [*choices, {"type": "agent", **step}]

    steps = Played(Duel, person).play(2)
    for _, decisions, _ in steps:
        own = decisions.by_hand["attack"].values
        assert own.nonzero()[0].tolist() == [0]
        assert decisions.chosen_on_host()["attack"].values[0] == 2


def test_agent_makes_choices_after_the_timeout() -> None:
    def person(message: Message) -> list[Message]:
        return [{"type": "take", "side": 0}] if message["type"] == "welcome" else []

    played = Played(Duel, person, fps=50)
    steps = played.play(3)
    assert not any(decisions.by_hand["attack"].values.any() for _, decisions, _ in steps)
    assert all(message["ms"] is not None for message in played.pages.of("waiting"))


def test_removed_actor_of_an_earlier_frame_can_be_taken() -> None:
    def person(message: Message) -> list[Message]:
        return [{"type": "take", "side": 0, "key": "0id0"}] if message["type"] == "steps" else []

    played = Played(Duel, person, fps=50)
    steps = played.play(14)
    assert any(len(obs.features["Ally"][0]) < 4 for _, _, obs in steps)
    assert played.pages.of("places")[-1]["places"] == [(0, "0id0")]
    assert not played.pages.of("error")


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({}, "None: expected one of joined, left, take"),
        ({"type": ["take"]}, "expected one of joined"),
        ({"type": "take"}, r"take: side: expected 0 to 1, got None"),
        ({"type": "take", "side": 2}, r"side: expected 0 to 1, got 2"),
        ({"type": "take", "side": True}, r"side: expected 0 to 1, got True"),
        (
            {"type": "take", "side": 0, "key": 7},
            r"key: expected the key of an entity of .*, got 7",
        ),
        ({"type": "choose", "episode": 0, "step": -1}, "step: expected the current one"),
        (
            {"type": "explain", "side": 0, "step": 99, "episode": 0},
            r"step: expected 0 to \d, got 99",
        ),
        ({"type": "explain", "side": 0, "step": 0, "episode": 9}, "one of the running episode"),
        ({"type": "explain", "side": 0, "step": 0, "episode": 0, "entities": [99]}, "entities: "),
        ({"type": "what_if", "side": 0, "step": 0, "episode": 0}, "changes: expected a list"),
        (
            {"type": "what_if", "side": 0, "step": 0, "episode": 0, "changes": [{"position": 0}]},
            "changes: expected position, and one of feature",
        ),
        (
            {
                "type": "what_if",
                "side": 0,
                "step": 0,
                "episode": 0,
                "changes": [{"position": 99, "removed": True}],
            },
            r"changes\[0\]: expected an entity of the frame, got position 99",
        ),
        (
            {
                "type": "what_if",
                "side": 0,
                "step": 0,
                "episode": 0,
                "changes": [{"position": 0, "feature": 9, "value": 1}],
            },
            r"changes\[0\]: expected a feature of Ally, got number 9",
        ),
        *(
            (
                {
                    "type": "what_if",
                    "side": 0,
                    "step": 0,
                    "episode": 0,
                    "changes": [{"position": 0, "feature": 0, "value": value}],
                },
                r"changes\[0\]: expected a finite number, got",
            )
            for value in (1e39, -1e39, float("nan"), float("inf"))
        ),
        ({"type": "fps", "value": -1}, "value: expected 0 to 1000 or none, got -1"),
        ({"type": "fps", "value": float("nan")}, "value: expected 0 to 1000 or none, got nan"),
        *(
            ({"type": "fps", "value": value}, "value: expected 0 to 1000 or none, got")
            for value in (1e308, float("inf"), 10**400, True, "9", [1])
        ),
    ],
)
def test_invalid_message_gets_an_error(message: Message, text: str) -> None:
    def page(told: Message) -> list[Message]:
        return [message] if told["type"] == "steps" and told["first"] == 0 else []

    played = Played(Duel, page)
    played.play(3)
    [error] = played.pages.of("error")
    assert re.search(text, error["text"]), error["text"]
    assert len(played.pages.of("steps")) == 3


@pytest.mark.parametrize("world", [Minefield, TreasureHunt, MineSweeper])
def test_live_explanations_match_the_agent(world: Any) -> None:
    def page(told: Message) -> list[Message]:
        step = {"side": 0, "step": told.get("first"), "episode": told.get("episode")}
        return [{"type": "explain", **step}] if told["type"] == "steps" else []

    played = Played(world, page)
    played.play(3)
    agent = RogueNetAgent(played.network)
    for message in played.pages.of("explained"):
        [steps] = [m for m in played.pages.of("steps") if m["first"] == message["step"]][:1]
        obs = played.episode(steps).obs
        [weights] = attention_of(agent.agent, EntityBatch.of(obs)) or []
        told = np.frombuffer(base64.b64decode(message["attention"]["weights"]), "<f4")
        assert np.array_equal(told.reshape(weights.shape), weights)
        assert len(message["influence"]["values"]) == len(message["influence"]["entities"])


@pytest.mark.parametrize("world", [Minefield, TreasureHunt, MineSweeper])
def test_what_if_matches_the_agent_in_the_edited_frame(world: Any) -> None:
    """As if the environment itself had shown it."""
    played = Played(world, quiet)
    space = played.spaces[0]
    agent = RogueNetAgent(played.network)
    env = world()
    for seed in range(3):
        env.seed(seed)
        obs = env.reset()
        frame = batch_obs([obs], space, played.spaces[1])
        same = what_if(played.network, frame, *played.spaces, [])
        act = agent.explain(obs, [])
        assert same.value == pytest.approx(act.value, abs=1e-6)
        name = next(iter(space.entities))
        changed = {**obs.features, name: np.array(obs.features[name], np.float32).copy()}
        changed[name][0, 0] += 3
        change = FeatureChange(0, feature=0, value=float(changed[name][0, 0]))
        other = what_if(played.network, frame, *played.spaces, [change])
        obs.features = changed
        told = agent.explain(obs, [])
        assert other.value == pytest.approx(told.value, abs=1e-5)
        assert other.value != same.value
        for action, table in other.probs.items():
            expected = told.actions[action].probs
            assert expected is not None
            assert np.allclose(np.stack(list(table.values())), expected, atol=1e-5)


def test_what_if_renormalises_over_remaining_targets() -> None:
    played = Played(Duel, quiet)
    played.play(1)
    episode = played.episode(played.pages.of("steps")[0])
    frame = episode.obs.take(np.array([0]))
    actees = frame.action_masks["attack"].actees
    assert actees is not None
    gone = int(actees.values[1])
    answer = what_if(played.network, frame, *played.spaces, [FeatureChange(gone, removed=True)])
    for probs in answer.probs["attack"].values():
        assert np.isnan(probs[1])
        assert np.nansum(probs) == pytest.approx(1)


def test_side_of_a_bot_has_no_explanation() -> None:
    def page(told: Message) -> list[Message]:
        if told["type"] != "steps" or told["first"] != 2:
            return []
        asked = {"type": "explain", "episode": told["episode"], "step": 2}
        return [{**asked, "side": 0}, {**asked, "side": 1}]

    played = Played(Duel, page)
    agent = AgentPlayer(played.network, 1)
    bots = BotPlayer(Greedy, 1, played.spaces[0], Spaces(*played.spaces), 2)
    players = SeatedPlayers({AGENT: agent, "bot": bots}, against("bot", 2), 2)
    replay = Replay("live", {}, *played.spaces, 2, 0.99)
    played.game = LiveGame(players, [agent, bots], replay, played.pages)
    for (_, decisions, _), message in zip(played.play(4), played.pages.of("steps"), strict=True):
        episode = played.episode(message)
        assert np.isfinite(episode.answers.values[0])
        assert np.isnan(episode.answers.values[1])
        chosen = decisions.chosen_on_host()["attack"]
        assert np.array_equal(episode.chosen["attack"].values, chosen.values)
    assert [one["side"] for one in played.pages.of("explained")] == [0]
    [error] = played.pages.of("error")
    assert error["text"] == "explain: side: expected one played by a network, got 1, a bot"


def test_paused_game_waits_until_it_is_resumed() -> None:
    played = Played(TreasureHunt, quiet)
    played.pages.inbox.append((0, {"type": "pause", "on": True}))
    waited = threading.Event()
    receive = played.pages.receive

    def slowly(timeout_s: float) -> tuple[int, Message] | None:
        found = receive(timeout_s)
        if found is None and timeout_s > 0:
            assert played.game._is_paused
            waited.set()
            return 0, {"type": "pause", "on": False}
        return found

    played.pages.receive = slowly  # type: ignore[method-assign]
    played.play(1)
    assert waited.is_set()
    assert [message["on"] for message in played.pages.of("paused")] == [True, False]


@pytest.mark.parametrize("value", [1e-10, 5e-324])
@pytest.mark.parametrize("takes", [False, True])
def test_smallest_rate_waits_indefinitely(value: float, takes: bool) -> None:
    """Seconds to the next step are more than a clock can wait, or infinite."""
    played, waits = Played(Duel, quiet), list[float]()
    played.pages.inbox.append((0, {"type": "fps", "value": value}))
    if takes:
        played.pages.inbox.append((0, {"type": "take", "side": 0, "key": None}))
    receive = played.pages.receive

    def slowly(timeout_s: float) -> tuple[int, Message] | None:
        if (found := receive(timeout_s)) is None and timeout_s > 0:
            waits.append(timeout_s)
            if len(waits) > 2:
                return 0, {"type": "fps", "value": 1000}
        return found

    played.pages.receive = slowly  # type: ignore[method-assign]
    played.play(2)
    assert len(waits) > 2
    assert max(waits) < threading.TIMEOUT_MAX
    assert [message["fps"] for message in played.pages.of("paused")][:2] == [value, 1000]
    assert all(message["ms"] >= 0 for message in played.pages.of("waiting"))


def test_live_explanations_use_the_recurrent_state() -> None:
    def page(told: Message) -> list[Message]:
        step = {"side": 0, "step": told.get("first"), "episode": told.get("episode")}
        changed = {**step, "changes": []}
        return [{"type": "what_if", **changed}] if told["type"] == "steps" else []

    played = Played(Duel, page, memory=MemoryConfig(inputs=["action"]))
    found = played.play(4)
    values = [decisions.values[0].item() for _, decisions, _ in found]
    answers = {m["step"]: m["value"] for m in played.pages.of("what_if") if m["episode"] == 0}
    assert answers
    for step, value in answers.items():
        assert value == pytest.approx(values[step], abs=1e-5)
    frame = found[2][2].take(np.array([0]))
    forgetful = what_if(played.network, frame, *played.spaces, [])
    assert max(abs(forgetful.value - value) for value in values) > 1e-4


@pytest.mark.parametrize("taken", [True, False])
def test_agent_memory_includes_choices_of_the_person(taken: bool) -> None:
    """The other side of the match remembers those that its agent made."""

    def person(message: Message) -> list[Message]:
        if message["type"] == "steps" and message["first"] == 0 and taken:
            return [{"type": "take", "side": 0, "key": None}]
        return choosing(1)(message)

    played = Played(Duel, person, memory=MemoryConfig(inputs=["action"]))
    steps = played.play(6)
    by_hand = [decisions.by_hand["attack"].values.any() for _, decisions, _ in steps]
    assert by_hand == [False, *[taken] * 5]
    frames = VecObs.cat([frames.obs for frames, _ in played.game._episode.history])
    chosen = Ragged.cat([d.chosen_on_host()["attack"] for _, d, _ in steps])
    recall = replay_states(played.network, frames, {"attack": chosen}, 2)
    batch = recall.attach(EntityBatch.of(frames), np.arange(12))
    values = played.network.values(batch)["value"].flatten()
    acted = torch.cat([decisions.values for _, decisions, _ in steps])
    torch.testing.assert_close(values, acted, rtol=1e-4, atol=1e-5)
