"""Stubs say what is there: those of the extension, those of the optimizers, and the types of the package."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import ddc
import pytest
from ddc import _C

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "ddc"

# What Python and pybind11 put into every class.
GIVEN = {"__doc__", "__module__", "__new__", "_pybind11_conduit_v1_"}


class Parameter(NamedTuple):
    """Parameter of a function. One without a name can be given by its place only."""

    name: str | None
    keyword_only: bool
    optional: bool


Signature = list[Parameter]
# Kind of a member (function, staticmethod, property), and its parameters.
Member = tuple[str, Signature | None]


def signature(function: ast.FunctionDef) -> Signature:
    """Parameters without `self`, as they are written in a stub or in a line of pybind11."""
    given = function.args
    places = [(each, each in given.posonlyargs) for each in given.posonlyargs + given.args]
    optional_from = len(places) - len(given.defaults)
    result = [
        Parameter(None if unnamed or is_counted(each.arg) else each.arg, False, i >= optional_from)
        for i, (each, unnamed) in enumerate(places)
        if each.arg != "self"
    ]
    result += [
        Parameter(each.arg, True, default is not None)
        for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    return result


def is_counted(name: str) -> bool:
    """Whether it is what pybind11 calls a parameter without a name."""
    return name.startswith("arg") and name[3:].isdigit()


def of_pybind11(function: Any) -> Signature:
    line = function.__doc__.splitlines()[0]
    (parsed,) = ast.parse(f"def {line}: ...").body
    assert isinstance(parsed, ast.FunctionDef)
    return signature(parsed)


def members_of_class(cls: type) -> dict[str, Member]:
    result: dict[str, Member] = {}
    for name, value in vars(cls).items():
        if name in GIVEN or isinstance(value, type(object.__init__)):  # it has no constructor
            continue
        if isinstance(value, property):
            assert value.fset is None
            result[name] = ("property", None)
        else:
            kind = "staticmethod" if isinstance(value, staticmethod) else "function"
            result[name] = (kind, of_pybind11(getattr(cls, name)))
    return result


def members_of_stub(cls: ast.ClassDef) -> dict[str, Member]:
    result: dict[str, Member] = {}
    for each in cls.body:
        assert isinstance(each, ast.FunctionDef)
        assert each.name not in result
        decorators = [d.id for d in each.decorator_list if isinstance(d, ast.Name)]
        kind = decorators[0] if decorators else "function"
        result[each.name] = (kind, None if kind == "property" else signature(each))
    return result


STUB = ast.parse((PACKAGE / "_C.pyi").read_text())
STUB_CLASSES = {each.name: each for each in STUB.body if isinstance(each, ast.ClassDef)}
STUB_FUNCTIONS = {each.name: each for each in STUB.body if isinstance(each, ast.FunctionDef)}
STUB_VALUES = {
    each.target.id
    for each in STUB.body
    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
}
MODULE = {
    name: value
    for name, value in vars(_C).items()
    if not name.startswith("__") or name == "__version__"
}


def test_the_stub_has_the_names_of_the_extension() -> None:
    classes = {name for name, value in MODULE.items() if inspect.isclass(value)}
    functions = {name for name, value in MODULE.items() if callable(value)} - classes
    assert set(STUB_CLASSES) == classes
    assert set(STUB_FUNCTIONS) == functions
    assert set(STUB_VALUES) == set(MODULE) - classes - functions


@pytest.mark.parametrize("name", STUB_CLASSES)
def test_a_class_of_the_stub_has_the_members_of_the_extensions(name: str) -> None:
    assert members_of_stub(STUB_CLASSES[name]) == members_of_class(MODULE[name])


@pytest.mark.parametrize("name", STUB_FUNCTIONS)
def test_a_function_of_the_stub_has_the_parameters_of_the_extensions(name: str) -> None:
    assert signature(STUB_FUNCTIONS[name]) == of_pybind11(MODULE[name])


def test_a_difference_of_signatures_is_seen() -> None:
    def of(text: str) -> Signature:
        (parsed,) = ast.parse(f"def f({text}): ...").body
        assert isinstance(parsed, ast.FunctionDef)
        return signature(parsed)

    right = of("self, arg0: int, name: str, *, seed: int = 0")
    assert right == [
        Parameter(None, False, False),
        Parameter("name", False, False),
        Parameter("seed", True, True),
    ]
    for wrong in (
        "a, name, *, seed=0",
        "a, /, nom, *, seed=0",
        "a, /, name, *, seed",
        "a, /, name, seed=0",
    ):
        assert of(f"self, {wrong}") != right
    assert of("self, a, /, name, *, seed=1") == right


def test_the_stub_of_the_optimizers_is_what_the_script_writes(tmp_path: Path) -> None:
    written = tmp_path / "optimizers.pyi"
    subprocess.run([sys.executable, ROOT / "scripts" / "stubs.py", "--to", written], check=True)
    assert (PACKAGE / "optimizers.pyi").read_text() == written.read_text(), (
        "run scripts/stubs.py: options have changed"
    )


def test_the_stub_of_the_optimizers_has_every_option() -> None:
    parsed = ast.parse((PACKAGE / "optimizers.pyi").read_text())
    found = {}
    for cls in parsed.body:
        if isinstance(cls, ast.ClassDef):
            assert isinstance(cls.body[0], ast.FunctionDef)
            found[cls.name] = signature(cls.body[0])
    assert set(found) == {
        "DDCAdam",
        "DDCLion",
        "DDCMuon",
        "DDCSgd",
        "DDCShampoo",
        "DDCSoap",
        "Muon",
    }
    treatments = {option["name"] for option in _C.treatment_options()}
    for name, parameters in found.items():
        names = {p.name for p in parameters}
        assert {"params", "lr", "weight_decay", "maximize"} < names
        assert (treatments | {"symmetries", "recipe"} < names) == (name != "Muon")
    # Positional options are the ones, and in the order, that the constructor takes so.
    for name, parameters in found.items():
        cls = getattr(ddc, name)
        positional = [p.name for p in parameters if not p.keyword_only][1:]
        declared = [option.name for option in cls._declared if option.positional]
        assert positional == declared[: len(positional)]
        assert positional[0] == "lr"


def test_classes_of_the_extension_are_found_where_they_say() -> None:
    public = [cls for cls in MODULE.values() if inspect.isclass(cls) and cls.__module__ != "ddc._C"]
    for cls in public:
        assert getattr(importlib.import_module(cls.__module__), cls.__name__) is cls
        assert cls.__doc__ and cls.__doc__.strip()
    private = {name for name in STUB_CLASSES} - {cls.__name__ for cls in public}
    # Each of these has a class of the package over it.
    assert private == {
        "AdamWMoments",
        "Core",
        "Curvature",
        "GaugeCoordinates",
        "OrbitSpace",
        "Placement",
        "SymmetryGroup",
    }


@pytest.mark.parametrize("name", ["audit", "gauges", "measure", "symmetry", "testing"])
def test_public_signatures_name_public_types(name: str) -> None:
    module = sys.modules[f"ddc.{name}"]
    functions = [
        function
        for value in vars(module).values()
        if getattr(value, "__module__", None) == module.__name__
        for function in (vars(value).values() if inspect.isclass(value) else [value])
    ]
    functions = [f.fget if isinstance(f, property) else f for f in functions]
    functions = [f.__func__ if isinstance(f, staticmethod) else f for f in functions]
    public = [f for f in functions if inspect.isfunction(f) and not f.__name__.startswith("_")]
    assert public
    for function in public:
        assert "_C" not in str(inspect.signature(function)), function


@pytest.mark.parametrize("module", [ddc.gauges, ddc.measure, ddc.testing], ids=lambda m: m.__name__)
def test_what_a_module_offers_is_documented(module: Any) -> None:
    for name in module.__all__:
        doc = inspect.getdoc(getattr(module, name))
        assert doc and doc.split("\n\n")[0].endswith("."), name
        if inspect.isfunction(getattr(module, name)):
            assert "Parameters\n----------" in doc and "Returns\n-------" in doc, name
            listed = doc.split("Parameters\n----------")[1].split("Returns\n-------")[0]
            for parameter in inspect.signature(getattr(module, name)).parameters:
                # Described once for all makers, in the module's docstring.
                if module is ddc.gauges and parameter in ("layout", "name"):
                    continue
                heads = [line for line in listed.splitlines() if line and not line.startswith(" ")]
                words = {w.strip(",") for head in heads for w in head.split(":")[0].split()}
                assert parameter in words, f"{name}: {parameter}"


needs_mypy = pytest.mark.skipif(
    importlib.util.find_spec("mypy") is None, reason="mypy is not installed (requirements-test.txt)"
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mypy")


def mypy(cache: Path, *files: Path) -> subprocess.CompletedProcess[str]:
    """Mypy with the project's settings, on the package or on files."""
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--no-pretty", "--cache-dir", str(cache), *map(str, files)],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": ""},
        capture_output=True,
        text=True,
    )


@pytest.mark.long  # and `make lint`
@needs_mypy
def test_the_package_passes_mypy_strict(cache: Path) -> None:
    # In the package mypy takes optimizers.pyi for optimizers.py.
    for files in ([], [PACKAGE / "optimizers.py"]):
        checked = mypy(cache, *files)
        assert checked.returncode == 0, checked.stdout + checked.stderr


USE = """\
import ddc
from torch import nn

model = nn.Linear(2, 2)
gauge: ddc.Gauge = ddc.gauges.cross_entropy_shift(model, "weight")
right = ddc.DDCAdam(model.named_parameters(), 1e-3, symmetries=[gauge], coordinates={"x": "polar"})
report: ddc.Report = right.report()
ddc.DDCAdam(model.named_parameters(), coordinates="blanced")  # wrong
ddc.DDCMuon(model.named_parameters(), betas=(0.9, 0.99))  # wrong
ddc.Muon(model.named_parameters(), symmetries=[gauge])  # wrong
ddc.gauges.cross_entropy_shift(model, "weight", layout="io")  # wrong
"""


@pytest.mark.long
@needs_mypy
def test_type_checkers_see_what_is_wrong_in_a_call(cache: Path, tmp_path: Path) -> None:
    user = tmp_path / "user.py"
    user.write_text(USE)
    errors = re.findall(rf"{user}:(\d+): error", mypy(cache, user).stdout)
    wrong = [n for n, line in enumerate(USE.splitlines(), 1) if line.endswith("# wrong")]
    assert list(map(int, errors)) == wrong
