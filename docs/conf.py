"""Configuration of the documentation, which `make docs` builds."""

import functools
import re
import sys
from pathlib import Path

from docutils import nodes

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import generate  # noqa: E402 - found by the path above

project = "enn-trainer"
copyright = "the authors of enn-trainer"
release = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M)[1]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"enn-trainer {release}"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
toc_object_entries = False  # with them, every page has a tree of thousands of names
myst_heading_anchors = 4

default_role = "literal"  # of docstrings, whose code is in single backticks
autodoc_member_order = "bysource"
autodoc_use_type_comments = False  # there are none; each function would be parsed to look for them
napoleon_use_ivar = True  # fields of classes are members as well
napoleon_attr_annotations = False
napoleon_use_rtype = False
python_maximum_signature_line_length = 88
# Names of others, and type variables.
nitpick_ignore_regex = [(r"py:.*", r"(?!(entity_env|rogue_net|enn_trainer)\.).*|.*\.[A-Z]")]


HIDDEN_COLON = "\0"


def link_results(app, name, text):
    """Let links to `benchmarks/results` lead to the pages that `generate` makes of them."""
    pattern = r"\]\((?:\.\./)+benchmarks/results/(\w+\.md)"
    text[0] = re.sub(pattern, r"](/reference/generated/results/\1", text[0])


def read_docstring(app, kind, name, subject, options, lines):
    """Let an indented block after a blank line be shown as it is, like in Markdown."""
    for i in reversed(range(2, len(lines))):
        before = next((line for line in reversed(lines[:i]) if line), "")
        indent = len(lines[i]) - len(lines[i].lstrip())
        deeper = indent > len(before) - len(before.lstrip())
        if lines[i] and not lines[i - 1] and deeper and not before.endswith("::"):
            lines[i:i] = [" " * (indent - 4) + "::", ""]
    if kind in ("attribute", "data", "property"):
        # Napoleon would take the words before a colon for a type.
        lines[:] = [line.replace(":", HIDDEN_COLON) for line in lines]


def show_colons(app, kind, name, subject, options, lines):
    """Undo after napoleon what `read_docstring` hid from it."""
    lines[:] = [line.replace(HIDDEN_COLON, ":") for line in lines]


def keep_lookups(app, env):
    """Search for each name once, when all are known: most of them occur on many pages."""
    python = env.domains.python_domain
    python.find_obj = functools.cache(python.find_obj)


def add_dark_pictures(app, doctree):
    """Show `NAME-dark.png` for `NAME-light.png` in dark mode, where a page has only the latter."""
    pictures = list(doctree.findall(nodes.image))
    names = {picture["uri"] for picture in pictures}
    for picture in pictures:
        name = picture["uri"].replace("-light.", "-dark.")
        if name not in names and (Path(app.env.doc2path(app.env.docname)).parent / name).exists():
            dark = picture.deepcopy()
            dark["uri"] = name
            picture["classes"].append("only-light")
            dark["classes"].append("only-dark")
            picture.parent.insert(picture.parent.index(picture) + 1, dark)


def setup(app):
    """Make the generated pages before Sphinx looks for pages."""
    app.connect("config-inited", lambda app, config: generate.write_pages(ROOT))
    app.connect("env-check-consistency", keep_lookups)
    app.connect("source-read", link_results)
    app.connect("doctree-read", add_dark_pictures, priority=400)  # before images are collected
    app.connect("autodoc-process-docstring", read_docstring, priority=400)
    app.connect("autodoc-process-docstring", show_colons, priority=600)
