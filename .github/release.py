"""Checks and notes of a release.

Usage:
    python .github/release.py check 0.2.0    # fail unless all files agree on the version
    python .github/release.py notes 0.2.0    # print its section of the changelog
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def notes(version: str) -> str:
    """Return the section of the changelog about a version, without its heading.

    Raises:
        SystemExit: there is none with a date.
    """
    text = (ROOT / "CHANGELOG.md").read_text()
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n"
    found = re.search(heading + r"(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        sys.exit(f"CHANGELOG.md: expected a heading '## [{version}] - YYYY-MM-DD', got none")
    return found[1].strip() + "\n"


def check(version: str) -> None:
    """Exit with a message unless the package, the citation and the changelog have this version."""
    if not version:
        sys.exit("VERSION: expected a version, as in make release VERSION=0.2.0")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    citation = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    versions = {"pyproject.toml": project, "CITATION.cff": citation[1] if citation else "none"}
    for file, found in versions.items():
        if found != version:
            sys.exit(f"{file}: expected version {version}, got {found}")
    if not notes(version).strip():
        sys.exit(f"CHANGELOG.md: expected notes about {version}, got none")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["check", version]:
            check(version)
        case ["notes", version]:
            print(notes(version), end="")
        case _:
            sys.exit(__doc__)
