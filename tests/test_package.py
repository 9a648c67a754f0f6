"""The package as others have it: suites where the wheel puts them, and a plugin that costs other projects nothing."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(arguments, folder, path=ROOT):
    """Run Python in a folder, with the package from ``path``; returns what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment = {k: v for k, v in environment.items() if not k.startswith(("PYTEST", "SPECVERIFY"))}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 5), done.stdout + done.stderr
    return done.stdout


def defined_in(folder):
    """The test functions that the files of a folder define, as (file, name)."""
    defined = re.compile(r"^def (test_\w+)", re.MULTILINE)
    return {(p.name, name) for p in folder.rglob("test_*.py") for name in defined.findall(p.read_text())}


@pytest.fixture
def as_installed(tmp_path):
    """A folder with the packages where the wheel puts them."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    site = tmp_path / "site"
    for package in wheel["packages"]:
        skipped = shutil.ignore_patterns("__pycache__", "weights")
        shutil.copytree(ROOT / package, site / wheel["sources"].get(package, package), ignore=skipped)
    return site


def test_the_suites_run_from_the_wheel_as_in_a_clone(as_installed, tmp_path):
    """``pytest --pyargs`` finds every test of the suites from anywhere, each asked of the subject, and writes nothing there."""
    assert sorted(p.name for p in as_installed.iterdir()) == ["reference", "specverify"]
    assert defined_in(as_installed / "specverify" / "suites") == defined_in(ROOT / "suites")
    (tmp_path / "elsewhere").mkdir()
    folders = sorted(p for p in (ROOT / "suites").iterdir() if defined_in(p) and p.name != "external")
    packages = [f"specverify.suites.{folder.name}" for folder in folders]
    asked = ["-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", "--pyargs", *packages]
    text = run([*asked, "--specverify-subject", "specverify.templates.verifier"], tmp_path / "elsewhere", as_installed)
    found = {(m[1], m[2]) for m in re.finditer(r"(test_\w+\.py)::(test_\w+)", text)}
    assert found == {test for folder in folders for test in defined_in(folder)}
    assert "test_one_round_emits_the_target_law[single_step/my verifier/named pairs]" in text
    assert not list((tmp_path / "elsewhere").iterdir())


def modules_of(folder, *arguments, path=ROOT):
    """All modules that pytest has imported after it collected an empty test file in a folder."""
    (folder / "test_empty.py").write_text("")
    script = "import pytest, sys; pytest.main(sys.argv[1:]); print('imported', *sorted(sys.modules))"
    asked = ["test_empty.py", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    (line,) = (x for x in run(["-c", script, *asked], folder, path).splitlines() if x.startswith("imported"))
    return set(line.split()[1:])


NOT_HYPOTHESIS = ("-p", "no:hypothesispytest", "-p", "no:_hypothesis_pytestplugin")
"""The plugin that hypothesis itself has; without it, what is imported is ours."""


def test_the_plugin_imports_nothing_but_itself(tmp_path):
    """In a project that does not use it, pytest imports the package's front, the plugin, and no third module for it."""
    plain = modules_of(tmp_path, "-p", "no:specverify", *NOT_HYPOTHESIS)
    found = modules_of(tmp_path, *NOT_HYPOTHESIS)
    assert "specverify.pytest_plugin" not in plain
    assert found - plain == {"specverify", "specverify.pytest_plugin"}
    assert not found & {"torch", "numpy", "scipy", "jinja2", "jsonschema", "hypothesis", "tqdm"}


def test_an_import_by_the_plugin_would_be_seen(as_installed, tmp_path):
    """The control: with one import more in the plugin, the modules are not the same."""
    plugin = as_installed / "specverify" / "pytest_plugin.py"
    plugin.write_text(plugin.read_text().replace("import json\n", "import json\nimport specverify.errors\n", 1))
    assert "specverify.errors" in modules_of(tmp_path, *NOT_HYPOTHESIS, path=as_installed)


def test_importing_the_package_or_its_command_is_light():
    """``import specverify`` and the command line load torch only when a subject is judged."""
    script = "import specverify, specverify.cli, specverify.templates, sys; print(*{'torch', 'numpy'} & set(sys.modules))"
    assert run(["-c", script], ROOT).split() == []
