"""Actions, as environments and people read them."""

import numpy as np

from entity_env.actions import CategoricalAction, GlobalCategoricalAction, SelectEntityAction


def test_chosen_is_the_label_or_the_id_of_each_actor() -> None:
    moves = CategoricalAction(["a", "b"], np.array([1, 0]), ["left", "right"])
    assert moves.chosen == ["right", "left"]
    assert SelectEntityAction(["a", "b"], ["c", ("Mine", 0)]).chosen == ["c", ("Mine", 0)]
    assert GlobalCategoricalAction(1, "right").chosen == ["right"]
