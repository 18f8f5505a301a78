"""A file of one's own that hides a package is named in one line; nothing else is blamed."""

import subprocess
import sys
from importlib import import_module

import pytest

from mechmarkov.utils.shadowed import explaining


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A project's folder before one of installed packages: `colours`, and `painter`, which imports it."""
    own, installed = tmp_path / "project", tmp_path / "site-packages"
    for folder in (own, installed):
        folder.mkdir()
    (installed / "colours").mkdir()
    (installed / "colours" / "__init__.py").write_text("RED = 1\n")
    (installed / "colours" / "shades.py").write_text("DARK = 2\n")
    monkeypatch.syspath_prepend(installed)
    monkeypatch.syspath_prepend(own)
    before = set(sys.modules)
    yield own, installed
    for name in set(sys.modules) - before:
        del sys.modules[name]


PAINTERS = {
    "what is imported from it": "from colours import RED",
    "a module inside it": "import colours.shades",
    "an attribute of it": "import colours\ncolours.RED",
    "an attribute that is looked up on a class of it": "import colours\ncolours.Brush.wide",
}
HIDING = {
    "is empty": "",
    "has a class": "class Brush: pass",
    "imports what is not there": "import no_such_module_of_mine",
    "fails": "1 / 0",
    "ends the process": "raise SystemExit(2)",
    "imports itself": "from colours import RED",
}


@pytest.mark.parametrize(
    ("kind", "content", "asked"),
    [
        *(("a file", content, "what is imported from it") for content in HIDING),
        *(("a folder", "is empty", asked) for asked in PAINTERS),
        ("a folder", "fails", "what is imported from it"),
        ("a file", "has a class", "an attribute that is looked up on a class of it"),
    ],
)
def test_the_file_that_hides_a_package(folders, kind, content, asked):
    own, installed = folders
    (installed / "painter.py").write_text(PAINTERS[asked])
    hiding = own / "colours.py" if kind == "a file" else own / "colours"
    if kind == "a folder":
        hiding.mkdir()
    (hiding if kind == "a file" else hiding / "__init__.py").write_text(HIDING[content])
    with pytest.raises(ImportError) as caught, explaining():
        import_module("painter")
    line = f"{hiding} hides the module colours of a dependency: rename it, or run from elsewhere"
    assert str(caught.value) == line


CAUSES = {  # further back, and a module of Python's own
    "colours": "try:\n    import colours.shades\nexcept ImportError as e:\n    raise OSError('x') from e",
    "colorsys": "from colorsys import rgb_to_hsv",
}


@pytest.mark.parametrize("hidden", CAUSES)
def test_other_causes(folders, hidden):
    own, installed = folders
    (own / f"{hidden}.py").write_text("")
    (installed / "painter.py").write_text(CAUSES[hidden])
    sys.modules.pop("colorsys", None)
    with pytest.raises(ImportError, match=rf"{hidden}\.py hides the module {hidden}"), explaining():
        import_module("painter")


BLAMELESS = {
    "a file that hides nothing": ("helper.py", "", "from helper import absent"),
    "an error of one's own": ("helper.py", "1 / 0", "import helper"),
    "a file that hides a package and is not used": ("colours.py", "", "from no_such_package import x"),
    "an installed package that lacks something": (None, "", "from colours import absent"),
    "a folder of data": ("colours/data.bin", "", "from colours import absent"),
}


@pytest.mark.parametrize("case", BLAMELESS)
def test_other_errors_go_on_as_they_are(folders, case):
    own, installed = folders
    name, content, painter = BLAMELESS[case]
    if name is not None:
        (own / name).parent.mkdir(exist_ok=True)
        (own / name).write_text(content)
    (installed / "painter.py").write_text(painter)
    expected = ZeroDivisionError if content else ImportError
    with pytest.raises(expected) as caught, explaining():
        import_module("painter")
    assert "hides the module" not in str(caught.value)


def test_a_package_that_is_installed_twice_hides_nothing(folders, tmp_path, monkeypatch):
    """As an environment in front of another has it."""
    _, installed = folders
    front = tmp_path / "front" / "site-packages"
    front.mkdir(parents=True)
    (front / "colours.py").write_text("")
    (installed / "painter.py").write_text("from colours import RED")
    monkeypatch.syspath_prepend(front)
    with pytest.raises(ImportError, match="cannot import name 'RED'"), explaining():
        import_module("painter")


# -- whole processes -----------------------------------------------------------------------------------------


@pytest.mark.system
@pytest.mark.parametrize("name", ["datasets", "torch", "click", "random"])
def test_a_file_beside_the_script(tmp_path, name):
    hiding = tmp_path / f"{name}.py"
    hiding.write_text("class ngrams: pass\n")
    for asked in ("import mechmarkov as mm; mm.Recorder", "from mechmarkov.models import HookedDecoder"):
        if name == "click":
            continue  # the command line alone imports it
        (tmp_path / "train.py").write_text(asked)
        found = run(tmp_path, "train.py")
        assert found.returncode == 1
        assert found.stderr.splitlines()[-1] == f"ImportError: {line(hiding, name)}"
    found = run(tmp_path, "-m", "mechmarkov", "ablate", ".", "--parts", "L0H0")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == f"error: {line(hiding, name)}\n"


@pytest.mark.system
def test_a_file_that_no_dependency_imports_is_in_nobodys_way(tmp_path):
    (tmp_path / "helper.py").write_text("x = 1\n")
    (tmp_path / "datasets").mkdir()  # of data: no package
    found = run(tmp_path, "-m", "mechmarkov", "list")
    assert found.returncode == 0
    assert "walk-k6-half" in found.stdout


def line(hiding, name):
    return f"{hiding} hides the module {name} of a dependency: rename it, or run from elsewhere"


def run(folder, *arguments):
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True)
