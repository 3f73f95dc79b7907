"""The public names: ``__all__`` is sorted, complete and explained; errors are one tree; every example in a docstring runs."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import unigrad
from unigrad import errors

MODULES = sorted(module.name for module in pkgutil.walk_packages(unigrad.__path__, "unigrad."))


def test_all_is_sorted_and_names_exist():
    assert list(unigrad.__all__) == sorted(set(unigrad.__all__))
    for name in unigrad.__all__:
        assert hasattr(unigrad, name), name


def test_all_is_the_whole_public_namespace():
    public = {
        name
        for name, value in vars(unigrad).items()
        if not name.startswith("_") and not inspect.ismodule(value) and not hasattr(value, "compiler_flag")
    }
    assert public | {"__version__"} == set(unigrad.__all__)


def test_every_error_is_public_and_under_one_root():
    own = {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, Exception) and value.__module__ == "unigrad.errors"
    }
    assert set(own) <= set(unigrad.__all__)
    for name, value in own.items():
        assert issubclass(value, errors.UnigradError) or issubclass(value, UserWarning), name


def test_the_drawn_tree_is_the_tree():
    drawn = errors.__doc__ or ""
    for name, value in vars(errors).items():
        if inspect.isclass(value) and value.__module__ == "unigrad.errors":
            line = next((line for line in drawn.splitlines() if name in line.split()), None)
            assert line is not None, f"{name} is not drawn"
            for base in value.__bases__:
                if base.__module__ == "builtins" and base is not Exception and base is not UserWarning:
                    assert f"({base.__name__})" in line, f"{name} is drawn without its base {base.__name__}"


@pytest.mark.parametrize("name", sorted(set(unigrad.__all__) - {"__version__"}))
def test_every_public_name_is_explained(name):
    text = inspect.getdoc(getattr(unigrad, name)) or ""
    assert len(text.split()) > 3, f"{name} has no docstring"


@pytest.mark.parametrize("name", MODULES)
def test_every_module_begins_with_its_duty(name):
    text = importlib.import_module(name).__doc__ or ""
    first = text.partition("\n")[0]
    assert first.endswith((".", ";", ":")), f"{name}: {first!r} is no sentence on the first line"
    assert len(first) > 20


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
