"""The measures of `structure_language.py`, on small modules and pages."""

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest


@pytest.fixture
def language(benchmark: Any) -> Any:
    return benchmark("structure_language")


def module_of(language: Any, root: Path, text: str) -> Any:
    path = root / "module.py"
    path.write_text(dedent(text))
    return language.Module(root, path)


def test_assigned_names_include_arguments_attributes_and_fields(
    language: Any, tmp_path: Path
) -> None:
    text = """
        class Row:
            kept: int
            def f(self, own, size, *others):
                self._told = size.shown
                given, x = [one for one in own], lambda one: one
                for one in given: ...
                of_all = [found for found in x]
                offer = self.known(taken=1)
    """
    share = language.names_share([module_of(language, tmp_path, text)])
    names = sorted(place.rpartition(": ")[2] for place in share.places)
    assert names == ["_told", "found", "given", "kept", "of_all", "one", "others", "own"]
    assert share.total == 12


@pytest.mark.parametrize(
    ("text", "is_bad"),
    [
        ("Return the rows of the agent, whole.", False),
        ("Return those of the agent.", True),
        ("Whose turn it is.", True),
        ("Return those\n    of the agent.", True),
        ("Count what remains.", False),
    ],
)
def test_docstrings_with_words_that_name_nothing_are_counted(
    language: Any, tmp_path: Path, text: str, is_bad: bool
) -> None:
    module = module_of(language, tmp_path, f'def f():\n    """{text}"""\n')
    share = language.docstrings_share([module])
    assert (len(share.places), share.total) == (is_bad, 1)


def test_messages_are_strings_of_several_words_and_no_docstrings(
    language: Any, tmp_path: Path
) -> None:
    text = '''
        def f(x):
            """Raise those of x."""
            print("whose turn")
            raise ValueError(f"x: expected a row, got {x}, elsewhere")  # of which
    '''
    module = module_of(language, tmp_path, text)
    messages, comments = language.messages_share([module]), language.comments_share([module])
    assert (messages.places, messages.total) == ([], 1)
    assert comments.places == ["module.py:5: # of which"]


def test_pages_are_measured_by_word_without_records_and_generated_pages(
    language: Any, tmp_path: Path
) -> None:
    for page in ("decisions", "reference/generated"):
        (tmp_path / "docs" / page).mkdir(parents=True)
        (tmp_path / "docs" / page / "a.md").write_text("told anew\n")
    (tmp_path / "docs/a.md").write_text("Of it,\nthose of which are told.\n")
    (tmp_path / "README.md").write_text("As many as fit.\n")
    (tmp_path / "CONTRIBUTING.md").write_text("")
    share = language.pages_share(tmp_path)
    assert share.places == ["README.md:1: As many as", "docs/a.md:2: those of", "docs/a.md:2: told"]
    assert share.total == 11
    assert share.per(1000) == pytest.approx(3000 / 11)
