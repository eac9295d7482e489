"""What a release consists of besides its wheels: workflows, forms, the citation, its notes."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
SCHEMAS = {
    "vendor.github-workflows": [".github/workflows/ci.yml", ".github/workflows/release.yml"],
    "vendor.github-issue-forms": [
        ".github/ISSUE_TEMPLATE/bug.yml",
        ".github/ISSUE_TEMPLATE/question.yml",
    ],
    "vendor.github-issue-config": [".github/ISSUE_TEMPLATE/config.yml"],
    "vendor.citation-file-format": ["CITATION.cff"],
}


@pytest.mark.slow
@pytest.mark.parametrize("schema", SCHEMAS)
def test_workflows_forms_and_citation_follow_their_schemas(schema: str) -> None:
    tool = Path(sys.executable).with_name("check-jsonschema")
    command = [tool, "--force-filetype", "yaml", "--builtin-schema", schema, *SCHEMAS[schema]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_workflows_and_forms_are_checked() -> None:
    found = {str(path.relative_to(ROOT)) for path in (ROOT / ".github").rglob("*.yml")}
    assert found == {file for files in SCHEMAS.values() for file in files if file[0] == "."}


def release(root: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the script of a checkout, which has but the files that it reads."""
    for name in (".github/release.py", "pyproject.toml", "CITATION.cff", "CHANGELOG.md"):
        if not (root / name).exists():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
    command = [sys.executable, root / ".github/release.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_package_citation_and_changelog_have_equal_versions(tmp_path: Path) -> None:
    done = release(tmp_path, "check", VERSION)
    assert (done.returncode, done.stderr) == (0, "")


def test_release_notes_are_the_section_of_the_changelog(tmp_path: Path) -> None:
    text = "# Changelog\n\n## [Unreleased]\n\n## [0.3.0] - 2026-12-01\n\n### Added\n- A.\n\n"
    (tmp_path / "CHANGELOG.md").write_text(text + "## [0.2.0] - 2026-11-01\n- B.\n")
    assert release(tmp_path, "notes", "0.3.0").stdout == "### Added\n- A.\n"
    assert release(tmp_path, "notes", "0.2.0").stdout == "- B.\n"


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("pyproject.toml", f'version = "{VERSION}"', 'version = "9.9.9"'),
        ("CITATION.cff", f"version: {VERSION}", "version: 9.9.9"),
        ("CHANGELOG.md", f"## [{VERSION}] -", f"## [{VERSION}]"),
        ("CHANGELOG.md", f"## [{VERSION}]", "## [9.9.9]"),
    ],
)
def test_release_error_names_the_file_with_another_version(
    file: str, old: str, new: str, tmp_path: Path
) -> None:
    text = (ROOT / file).read_text()
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new, 1))
    done = release(tmp_path, "check", VERSION)
    assert done.returncode == 1
    assert re.match(rf"{file}: expected .*got", done.stderr)
