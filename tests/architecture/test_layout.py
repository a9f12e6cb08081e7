"""The shape of the house: what may lie where, how long things may be, and what configs must parse."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from eagleray.recipe.loading import load_any

ROOT = Path(__file__).parents[2]
CODE = sorted((ROOT / "platform").rglob("*.py")) + sorted((ROOT / "jobs").glob("*.py"))
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 70


def test_room_init_files_are_empty() -> None:
    filled = [path for path in (ROOT / "platform").rglob("__init__.py") if path.read_text().strip()]
    assert filled == []


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < MAX_FUNCTION_LINES, node.name


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_every_recipe_that_ships_is_valid(path: Path) -> None:
    assert load_any(path).kind


def test_recipes_are_checked_without_torch_transformers_or_ray() -> None:
    probe = (
        "import sys; from pathlib import Path; from eagleray.recipe.loading import load_recipe, load_sweep;"
        "load_recipe(Path('configs/demo.yaml')); load_sweep(Path('configs/sweep.yaml'));"
        "heavy = {'torch', 'transformers', 'ray', 'pyarrow', 'optuna'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    import sys

    result = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_readme_is_at_most_two_hundred_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


def test_every_dependency_says_why_it_is_there() -> None:
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    listed = [line for line in lines if re.match(r'\s+"[A-Za-z][\w\[\],-]*",', line)]
    assert len(listed) > 15
    assert [line for line in listed if "#" not in line] == []


def test_broad_exceptions_are_caught_nowhere_in_the_rooms() -> None:
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ExceptHandler):
                caught = ast.unparse(node.type) if node.type else "everything"
                assert caught not in ("everything", "Exception", "BaseException"), f"{path}:{node.lineno}"


def test_every_test_that_the_documentation_names_exists() -> None:
    named = {
        name
        for page in (ROOT / "docs").glob("*.md")
        for name in re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))
    }
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(named) > 20
    assert named - defined == set()
