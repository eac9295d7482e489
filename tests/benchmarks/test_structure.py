"""The measures of `structure.py`, on small trees."""

import subprocess
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

ACTIONS = """
    class CategoricalAction: ...
    class SelectEntityAction: ...
    def is_select(action):
        return isinstance(action, SelectEntityAction)
"""


@pytest.fixture
def structure(benchmark: Any) -> Any:
    return benchmark("structure")


@cache
def modules_of_checkout(structure: Any) -> list[Any]:
    """Parse all modules of the packages, once for all tests."""
    return list(structure.read_modules(structure.ROOT))


def write_tree(root: Path, files: dict[str, str]) -> Path:
    """Write a checkout with a collector and these files."""
    for path, text in {"enn_trainer/ppo/rollout.py": "", **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(dedent(text))
    return root


def module_of(structure: Any, root: Path, text: str) -> Any:
    write_tree(root, {"entity_env/one.py": text})
    return structure.Module(root, root / "entity_env/one.py")


def test_code_lines_are_without_blanks_comments_and_docstrings(
    structure: Any, tmp_path: Path
) -> None:
    text = '''\
        """Title.

        More.
        """

        # why
        LIMIT = 3  # a comment beside code
        """The limit."""
        TEXT = """a

        string"""


        def act(
            x,
        ):
            """Act."""
            # because
            return x
    '''
    module = module_of(structure, tmp_path, text)
    assert sorted(module.code_lines) == [7, 9, 11, 14, 15, 16, 19]
    assert module.num_comments == 2
    assert [text for _, text in module.docstrings] == ["Title.\n\nMore.", "The limit.", "Act."]


@pytest.mark.parametrize(
    ("docstring", "is_bad"),
    [
        ("What is seen.", True),
        ("whether it ends.", True),
        ("`Which` of them.", True),
        ("As many as there are.", True),
        ("Whose turn it is.", True),
        ("Return what is seen.", False),
        ("Ask whether it ends.", False),
        ("Official rules.", False),
        ("Thats.", False),
        ("(T, B) float.", False),
    ],
)
def test_openers_are_whole_words_at_the_start(
    structure: Any, tmp_path: Path, docstring: str, is_bad: bool
) -> None:
    module = module_of(structure, tmp_path, f'def f():\n    """{docstring}"""\n')
    assert structure.bad_openers(module) == ([f"entity_env/one.py:2: {docstring}"] * is_bad)


def test_parameters_are_counted_without_self_and_cls(structure: Any, tmp_path: Path) -> None:
    text = """
        class Agent:
            def act(self, a, /, b, *c, d, **e): ...
            @classmethod
            def make(cls, a): ...
            @staticmethod
            def plain(a, b):
                def inner(a): ...
    """
    functions = module_of(structure, tmp_path, text).functions
    assert {name: structure.num_parameters(function) for name, function in functions} == {
        "entity_env/one.py:Agent.act": 5,
        "entity_env/one.py:Agent.make": 1,
        "entity_env/one.py:Agent.plain": 2,
        "entity_env/one.py:Agent.plain.inner": 1,
    }


def test_attributes_are_fields_and_names_assigned_on_self(structure: Any, tmp_path: Path) -> None:
    text = """
        @dataclass(frozen=True)
        class Frame:
            a: int
            b: int = 0
            def set(self):
                self.b = self.c = 1
        class Pair(NamedTuple):
            a: int
        class Plain:
            a: int
            def __init__(self, other):
                self.x, (self.y, other.z) = other
                self.x += self.unknown
    """
    classes = module_of(structure, tmp_path, text).classes
    assert [structure.num_attributes(node) for _, node in classes] == [3, 1, 2]


def test_exceptions_are_not_above_the_limit(structure: Any) -> None:
    counts = [("a.py:f", 9), ("a.py:g", 8), ("a.py:h", 10), ("enn_trainer/config.py:Config", 20)]
    assert structure.above(8, counts) == ["a.py:h (10)", "a.py:f (9)"]


@pytest.mark.slow
def test_exceptions_match_existing_names(structure: Any, benchmark: Any) -> None:
    limits = benchmark("structure_limits")
    modules = modules_of_checkout(structure)
    names = [name for m in modules for name, _ in [*m.functions, *m.classes]]
    for pattern, reason in limits.EXCEPTIONS.items():
        assert reason
        assert [name for name in names if fnmatch(name, pattern)], pattern


def test_kind_checks_are_detected_in_every_form(structure: Any, tmp_path: Path) -> None:
    text = """
        from entity_env.actions import CategoricalAction, SelectEntityAction as Select, merge
        isinstance(x, CategoricalAction)
        isinstance(x, int | Select)
        type(x) is Select
        isinstance(x, int)
        isinstance(CategoricalAction, type)
        match x:
            case CategoricalAction(): ...
        HANDLERS = {CategoricalAction: merge}
    """
    module = module_of(structure, tmp_path, text)
    places = sorted(structure.kind_checks(module))
    assert places == [f"entity_env/one.py:{line}" for line in (3, 4, 5, 9)]


def test_kind_checks_are_allowed_in_their_own_module_and_in_examples(
    structure: Any, tmp_path: Path
) -> None:
    asks = "from entity_env.actions import CategoricalAction as A\nisinstance(x, A)\n"
    files = {"entity_env/actions/__init__.py": ACTIONS, "entity_env/examples/xor.py": asks}
    modules = structure.read_modules(write_tree(tmp_path, files))
    assert [place for module in modules for place in structure.kind_checks(module)] == []


def test_modules_below_are_transitive_imports(structure: Any, tmp_path: Path) -> None:
    files = {
        "enn_trainer/__init__.py": "from enn_trainer.above import x",
        "enn_trainer/above.py": "from enn_trainer.ppo import rollout",
        "enn_trainer/ppo/__init__.py": "",
        "enn_trainer/ppo/rollout.py": "import json\nfrom enn_trainer import acting",
        "enn_trainer/acting.py": "def f():\n    import enn_trainer.runtime.execution",
        "enn_trainer/runtime/execution.py": "from enn_trainer.ppo.rollout import x",
    }
    modules = structure.read_modules(write_tree(tmp_path, files))
    below = structure.modules_below(modules, "enn_trainer/ppo/rollout.py")
    assert below == ["enn_trainer/acting.py", "enn_trainer/runtime/execution.py"]


def test_private_functions_called_once_are_counted_by_package(
    structure: Any, tmp_path: Path
) -> None:
    files = {
        "entity_env/a.py": "def _once(): ...\ndef _twice(): ...\ndef public(): ...\npublic()\n",
        "entity_env/b.py": "_once()\nself._twice()\n_twice()\n",
        "rogue_net/a.py": "def __init__(): ...\n_once()\n__init__()\n",
    }
    modules = structure.read_modules(write_tree(tmp_path, files))
    assert structure.private_functions_called_once(modules) == ["entity_env/a.py:_once"]


def test_lines_of_c_are_without_blanks_and_comments(structure: Any) -> None:
    text = """
        /* what
           this is */
        int x = 1;  // why

        // int y;
        char *s = "/* no comment // ";  /* one */
        char *t = "\\\\"; /* two
        */
    """
    assert structure.c_code_lines(text) == 3


def test_imports_that_run_up_are_counted_by_pairs_of_layers(structure: Any, tmp_path: Path) -> None:
    files = {
        "enn_trainer/config/a.py": (
            "from enn_trainer.runtime import b\nimport enn_trainer.run.trainer"
        ),
        "enn_trainer/runtime/b.py": "def f():\n    from enn_trainer.config.a import x",
        "enn_trainer/config/c.py": "from enn_trainer.run.trainer import y",
        "enn_trainer/run/trainer.py": "from enn_trainer.config import a, c",
    }
    modules = structure.read_modules(write_tree(tmp_path, files))
    assert structure.imports_up(modules) == ["config -> run (2)", "config -> runtime (1)"]


def test_reached_modules_include_packages(structure: Any, tmp_path: Path) -> None:
    files = {
        "enn_trainer/run/trainer.py": "from enn_trainer.viewer import page\n"
        "if TYPE_CHECKING:\n    import enn_trainer.types",
        "enn_trainer/types.py": "",
        "enn_trainer/__init__.py": "",
        "enn_trainer/viewer/__init__.py": "import entity_env.first",
        "enn_trainer/viewer/page.py": "def f():\n    import entity_env.late",
        "entity_env/first.py": "try:\n    import entity_env.second\nexcept ImportError: ...",
        "entity_env/second.py": "",
        "entity_env/late.py": "",
    }
    modules = structure.read_modules(write_tree(tmp_path, files))
    assert structure.reached(modules, "enn_trainer.run.trainer") == [
        "enn_trainer/__init__.py",
        "enn_trainer/viewer/__init__.py",
        "enn_trainer/viewer/page.py",
        "entity_env/first.py",
        "entity_env/second.py",
    ]


def test_starred_names_count_except_for_variadic_functions(structure: Any, tmp_path: Path) -> None:
    text = """
        def many(*args): ...
        def two(a, b): ...
        two(*pair)
        two(*make())
        many(*pair)
        zip(*pair)
        self.two(1, *pair)
    """
    module = module_of(structure, tmp_path, text)
    assert [place.split(": ", 1)[1] for place in structure.starred_locals([module])] == [
        "two(*pair)",
        "self.two(1, *pair)",
    ]


def test_files_naming_excludes_the_modules_of_the_data(structure: Any, tmp_path: Path) -> None:
    files = {
        "entity_env/kinds.py": "kinds = 1",
        "entity_env/a.py": "kinds = 1",
        "entity_env/b.py": "x.kinds",
        "entity_env/c.py": "f(kinds=1)",
        "entity_env/d.py": "'kinds'",
        "entity_env/examples/e.py": "kinds = 1",
    }
    modules = structure.read_modules(write_tree(tmp_path, files))
    found = structure.files_naming(modules, "kinds")
    assert found == ["entity_env/a.py", "entity_env/b.py", "entity_env/c.py"]


def test_conditions_on_optional_features_are_counted_in_the_core(
    structure: Any, tmp_path: Path
) -> None:
    text = "if x is None and isinstance(y, int) or group.size > 1 or x == 1: ..."
    files = {"enn_trainer/experience/players.py": text, "enn_trainer/other.py": text}
    modules = structure.read_modules(write_tree(tmp_path, files))
    assert len(structure.conditions(modules)) == 3


def test_accesses_to_state_parts_are_detected_in_every_form(structure: Any, tmp_path: Path) -> None:
    text = """
        state.parts["league"]
        state.parts.get(LEAGUE)
        LEAGUE in self.state.parts
        for name in state.parts: ...
        state.parts.items()
    """
    module = module_of(structure, tmp_path, text)
    assert [place.split(":")[1] for place in structure.looks_into_parts([module])] == [
        "2",
        "3",
        "4",
    ]


def test_long_functions_need_a_heading(structure: Any, tmp_path: Path) -> None:
    body = "    x = 1\n" * 41
    text = f"def bare():\n{body}\ndef headed():\n    # The first part.\n{body}"
    module = module_of(structure, tmp_path, text)
    assert structure.long_without_heading([module]) == ["entity_env/one.py:bare (42)"]


def test_import_cycles_of_the_page_ignore_types(structure: Any, tmp_path: Path) -> None:
    folder = "enn_trainer/viewer/page/src"
    files = {
        f"{folder}/a.ts": 'import { b } from "./b.js";\nimport type { D } from "./d.js";\n',
        f"{folder}/b.ts": 'import {\n  a,\n} from "./a.js";\n',
        f"{folder}/c.ts": 'import { a } from "./a.js";\n',
        f"{folder}/d.ts": 'import { a } from "./a.js";\n',
    }
    assert structure.circles_of_typescript(write_tree(tmp_path, files)) == [["a", "b"]]


def test_measures_and_folders_above_their_limits_are_named(
    structure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(structure, "update_path", lambda root: [])
    parameters = ", ".join("abcdefghi")
    files = {"entity_env/a.py": f"def f({parameters}):\n    x = 1\n    return x\n"}
    write_tree(tmp_path, files)
    name = "functions of more than 8 parameters"
    monkeypatch.setattr(structure, "LIMITS", {name: 0, "modules": 2})
    monkeypatch.setattr(structure, "FOLDERS", {"entity_env": 2, "enn_trainer/ppo": 0})
    assert structure.beyond_limits(tmp_path) == [
        f"{name}: expected at most 0, got 1\n    entity_env/a.py:f (9)",
        "entity_env: expected at most 2 lines and 3% more, got 3",
    ]


@pytest.mark.slow
def test_structure_is_within_its_limits(structure: Any) -> None:
    """A limit is raised by a decision record alone."""
    beyond = structure.beyond_limits(structure.ROOT)
    assert not beyond, "\n".join(beyond)


@pytest.mark.slow
def test_an_update_calls_the_files_that_learn(structure: Any) -> None:
    files = structure.update_path(structure.ROOT)
    for name in (
        "run/trainer",
        "experience/collector",
        "algorithms/ppo/losses",
        "algorithms/optimizers",
    ):
        assert f"enn_trainer/{name}.py" in files
    assert "rogue_net/rogue_net.py" in files
    assert not [file for file in files if "/cli/" in file]


def test_two_checkouts_are_two_columns(
    structure: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first is a commit, which is exported; the second a folder."""
    text = 'def act():\n    """Whether to act."""\n    return 1\n'
    write_tree(tmp_path, {"entity_env/a.py": text, "rogue_net/native/a.c": "int x;\n"})
    me = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "--quiet"], ["add", "."], [*me, "commit", "--quiet", "-m", "One"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True, timeout=60)
    monkeypatch.setattr(structure, "ROOT", tmp_path)
    monkeypatch.setattr(structure, "update_path", lambda root: [])
    write_tree(tmp_path, {"entity_env/b.py": text + "# why\n"})
    monkeypatch.setattr("sys.argv", ["structure.py", "HEAD", str(tmp_path), "--list"])
    structure.main()
    out = capsys.readouterr().out
    assert out.startswith(f"| | HEAD | {tmp_path} |\n| --- | --- | --- |\n")
    for row in [
        "| modules | 2 | 3 |",
        "| files in the largest folder | 1 (entity_env) | 2 (entity_env) |",
        "| lines of a function: median, 95% | 2, 2 | 2, 2 |",
        "| docstrings that open with a question word or pronoun | 1 | 2 |",
        "| lines of Python code | 2 | 4 |",
        "| lines of C code | 1 | 1 |",
        "| comment lines per 100 | 0.0 | 14.3 |",
        "    entity_env/b.py:2: Whether to act.",
    ]:
        assert f"\n{row}\n" in out


@pytest.mark.slow
def test_no_kind_checks_outside_the_action_classes(structure: Any) -> None:
    """So that a kind of action is one file, and a line in each of two tables."""
    modules = modules_of_checkout(structure)
    assert not [check for module in modules for check in structure.kind_checks(module)]


@pytest.mark.slow
def test_collecting_frames_depends_on_few_modules(structure: Any) -> None:
    """On no checkpoint, recording, configuration or evaluation, and not on the state of a run."""
    modules = modules_of_checkout(structure)
    below = structure.modules_below(modules, "enn_trainer/experience/collector.py")
    inside = [path for path in below if path.startswith("enn_trainer/")]
    assert 5 < len(inside) <= 12
    trainer = ("checkpoints", "evaluation", "config/train", "state", "experience/recording")
    above = (*(f"enn_trainer/{name}" for name in trainer), "entity_env/recording")
    assert not [path for path in below if path.startswith(above)]
