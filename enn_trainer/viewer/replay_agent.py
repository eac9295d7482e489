"""`replay`: episodes of a loaded agent, for programs and notebooks."""

import html
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from enn_trainer.checkpoints.migrate.space_diff import diff_spaces
from enn_trainer.config import PPOConfig
from enn_trainer.errors import ReplayError
from enn_trainer.experience.collector import Collector, play
from enn_trainer.experience.envs import global_randomness_kept
from enn_trainer.experience.players import AgentPlayer
from enn_trainer.load_agent import RogueNetAgent
from enn_trainer.policy import device_of
from enn_trainer.viewer.annotate import explain_replay
from enn_trainer.viewer.played import EPISODES, MOST_STEPS, EpisodeKeeper, ReplaySettings
from enn_trainer.viewer.replay import Replay
from enn_trainer.viewer.replay_format import WrittenReplay, page_of, write_replay
from entity_env.environment import Environment
from entity_env.errors import short_repr
from entity_env.match import CreateEnv, Match, match_of, world_of
from entity_env.seeding import derive_seed
from entity_env.spaces import Spaces
from entity_env.vec.serial import EnvList

MOST_SHOWN_MB = 20.0
"""Size of the largest page that a notebook shows, which keeps it in its own file."""


class PlayedReplay(Replay):
    """A replay that can be written, and that notebooks show."""

    def write(self, path: str | Path, max_mb: float = 20.0) -> WrittenReplay:
        """Write the page on which the episodes can be watched, completely or not at all.

        Args:
            path: of the page, in a folder that exists.
            max_mb: the most megabytes (10**6 bytes) of the page, see `docs/watching.md`.

        Raises:
            ReplayError: there is a file that is no replay; one episode alone is larger than
                `max_mb`; or the file cannot be written.
        """
        return write_replay(self, path, max_mb)

    def _repr_html_(self) -> str:
        """Return the page in a frame that may run its script and nothing else."""
        try:
            page, _ = page_of(self, MOST_SHOWN_MB)
        except ReplayError as error:
            fix = "write a page to open in a browser: .write('replay.html', max_mb=...)"
            return f"<p>{html.escape(f'{error}. Or {fix}')}</p>"
        return (
            f'<iframe title="{html.escape(self.title)}" sandbox="allow-scripts" '
            'style="width: 100%; height: 720px; border: 0" '
            f'srcdoc="{html.escape(page.decode())}"></iframe>'
        )


def replay(
    agent: RogueNetAgent,
    env: Environment | Match | CreateEnv,
    episodes: int = EPISODES,
    seed: int = 0,
    max_steps: int = MOST_STEPS,
    discount: float = PPOConfig.gamma,
    positions: Sequence[str] = (),
    beside: RogueNetAgent | None = None,
    pictures: bool = False,
) -> PlayedReplay:
    """Let an agent play, and return the episodes with its probabilities, values and explanations.

    The agent acts for all sides. The same arguments give the same episodes, whatever was played
    before. The agent, and all random number generators, stay as they are.

    Args:
        agent: as `load_agent` returns it, with `env=` if it was trained in another world.
        env: an environment or match, which begins new episodes and is not closed; or its class, or
            a function that makes one, of which each episode has its own.
        episodes: number of episodes, or of matches.
        seed: seed of the episodes and choices.
        max_steps: number of steps after which an episode is shown as far as it was played.
        discount: per step, for the returns that are compared with the values.
        positions: names of the features that are positions; by default those of the world's view,
            then features with usual names.
        beside: another agent, whose answers to the same frames are shown.
        pictures: True to show the world's own `render(mode="rgb_array")` beside each step.

    Raises:
        TypeError: `env` is no environment or match, and makes none.
        ValueError: its spaces are not those of the agents, or `episodes` or `max_steps` is below 1.
        ConfigError: there are to be pictures of a world that does not render.
        InvalidView: the view of the world, or `positions`, do not fit its space.
    """
    for name, count in ("episodes", episodes), ("max_steps", max_steps):
        if count < 1:
            raise ValueError(f"{name}: expected 1 or more, got {count}")
    with ExitStack() as stack:
        # The environments, whose spaces are those of the agent.
        stack.enter_context(global_randomness_kept())
        envs = _env_list(env, episodes, stack)
        spaces = Spaces.of(envs)
        for name, one in ("the agent", agent), ("beside", beside):
            found = (
                None
                if one is None
                else diff_spaces(Spaces(one.obs_space, one.action_space), spaces)
            )
            if found is not None and (different := [*found.changed, *found.reordered_labels]):
                got = f"{'; '.join(different)}; load_agent(..., env=...) adapts an agent to a world"
                raise ValueError(f"env: expected the spaces of {name}; {got}")

        # Play and explain.
        settings = ReplaySettings(None, episodes, max_steps, positions, pictures=pictures)
        other = None if beside is None else beside.agent
        keeper = EpisodeKeeper(envs, np.arange(len(envs)), settings)
        seed_of_play = derive_seed(seed, "eval")
        player = AgentPlayer(agent.agent, None if agent.deterministic else seed_of_play)
        collector = Collector(envs, player, device_of(agent.agent), [keeper])
        steps = max_steps * (episodes * envs.sides // len(envs))
        play(collector, agent.obs_space, steps, seed_of_play, stop=keeper.is_done)
        name = type(world_of(envs.matches[0])).__name__
        about = {"environment": name, "seed": str(seed)}
        played = PlayedReplay(**vars(keeper.replay(name, about, discount)))
        explain_replay(played, agent.agent, other, keeper.is_own)
        return played


def _env_list(env: Environment | Match | CreateEnv, episodes: int, stack: ExitStack) -> EnvList:
    """Return environments for some episodes; the stack closes those that are made here."""
    if isinstance(env, Environment | Match):
        return EnvList(lambda: env, match_of(env).num_sides)
    if not callable(env):
        expected = "an environment or match, its class, or a function that makes one"
        raise TypeError(f"env: expected {expected}, got {short_repr(env)}")
    world: object = env()
    if not isinstance(world, Environment | Match):
        expected = "what makes an Environment or a Match"
        raise TypeError(f"env: expected {expected}, got what makes {type(world).__name__}")
    sides = match_of(world).num_sides
    world.close()
    return stack.enter_context(closing(EnvList(env, episodes * sides)))
