"""Searches in these tests train with a stand-in for `enn train`."""

import pytest

from tests.enn_trainer.tuning.builders import use_stand_in


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    use_stand_in(monkeypatch)
