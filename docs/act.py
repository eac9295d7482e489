"""Load a trained agent and let it play: `python docs/act.py RUN [EPISODES] [ENV]`.

ENV is the environment, as `enn eval --env` has it; not needed for those of `enn envs`.
"""

import json
import shlex
import sys

from enn_trainer import ConfigError, RogueNetAgent, load_agent, load_checkpoint
from enn_trainer.checkpoints.named_code import NamedEnv
from enn_trainer.cli.load_world import make_world
from enn_trainer.runtime.trust import Key, Trust
from entity_env import Action, CategoricalAction, Environment, Match, SelectEntityAction


def play(env: Environment, agent: RogueNetAgent, episodes: int) -> None:
    """Play episodes of an environment, with one observation and one set of actions a step."""
    for episode in range(episodes):
        env.seed(episode)
        observation = env.reset()
        steps, total = 0, 0.0
        while not observation.done:
            actions, value = agent.act(observation)
            if episode == 0 and steps % 8 == 0:
                print(f"  step {steps}: {in_words(actions)}  (expects {value:.2f})")
            observation = env.act(actions)
            steps, total = steps + 1, total + observation.reward
        print(f"episode {episode}: {steps} steps, return {total:.3f}")


def in_words(actions: dict[str, Action]) -> str:
    """Return the actions of a frame as text."""
    words = []
    for name, action in actions.items():
        if isinstance(action, CategoricalAction):
            words.append(f"{name} {', '.join(action.labels)}")
        elif isinstance(action, SelectEntityAction):
            words.append(f"{name} {', '.join(map(str, action.actees))}")
        else:
            words.append(f"{name} {action.label}")
    return "; ".join(words)


def play_match(env: Match, agent: RogueNetAgent, episodes: int) -> None:
    """Play matches, with one observation and one set of actions for each side."""
    for episode in range(episodes):
        env.seed(episode)
        sides = env.reset()
        steps = 0
        while not sides[0].done:
            actions = [agent.act(observation).actions for observation in sides]
            if episode == 0 and steps % 8 == 0:
                print(f"  step {steps}: " + " | ".join(map(in_words, actions)))
            sides, steps = env.act(actions), steps + 1
        print(f"match {episode}: {steps} steps, rewards {[o.reward for o in sides]}")


run = sys.argv[1]
num_episodes = int(sys.argv[2]) if len(sys.argv) > 2 else 3
config = load_checkpoint(run).config.env
env_id = sys.argv[3] if len(sys.argv) > 3 else config.id
kwargs = json.loads(config.kwargs) if env_id == config.id else {}
line = shlex.join(["python", "docs/act.py", run, str(num_episodes), env_id])
typed: list[Key] = [("environment", name) for name in sys.argv[3:]]
trust = Trust(frozenset(typed), advice=f"if you trust it, type which code to run: {line}")
try:
    trust.check(NamedEnv(("env",), env_id, kwargs).code(run))
except ConfigError as error:  # code that a checkpoint names, perhaps somebody else's
    sys.exit(f"error: {error}")
world = make_world(env_id, kwargs, "ENV", trust=trust)
if isinstance(world, Environment):
    play(world, load_agent(run), num_episodes)
else:
    play_match(world, load_agent(run), num_episodes)
