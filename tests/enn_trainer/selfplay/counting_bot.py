"""File of a bot that counts its turns, and settings of a pool with it."""

COUNTING = """
from entity_env import Bot, CategoricalAction, PlainState


class Counting(PlainState, Bot):
    def __init__(self):
        self.turn = 0

    def act(self, observation):
        self.turn += 1
        mask, paces = observation.actions["ride"], ["walk", "trot", "charge"]
        return {"ride": CategoricalAction(mask.actor_ids, [self.turn // 4 % 3], paces)}
"""
AGAINST_COUNTING = [
    'selfplay.opponents=["bots.py:Counting"]',
    *("selfplay.snapshot_every=0", "selfplay.choose=uniform"),
]
