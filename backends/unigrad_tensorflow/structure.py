"""The tree of layers, modules and variables: paths by attribute, roles, pending layers, and whether any of it has changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from operator import is_
from typing import Any

import keras
import tensorflow as tf

from unigrad.protocols import Entry, Structure
from unigrad_tensorflow import layers as known
from unigrad_tensorflow.arrays import is_variable
from unigrad_tensorflow.graph import register, register_random
from unigrad_tensorflow.private import Layer

__all__ = ["describe", "is_module", "places", "unchanged"]

_KERAS_OWN = frozenset(
    {
        "_auto_config",
        "_compile_loss",
        "_compile_metrics",
        "_functional",
        "_inbound_nodes",
        "_inputs",
        "_inputs_struct",
        "_layers",
        "_loss_ids",
        "_loss_tracker",
        "_losses",
        "_losses_override",
        "_metrics",
        "_nodes",
        "_nodes_by_depth",
        "_non_trainable_variables",
        "_operations",
        "_operations_by_depth",
        "_outbound_nodes",
        "_outputs",
        "_outputs_struct",
        "_seed_generators",
        "_tracker",
        "_trainable_variables",
        "_self_unconditional_checkpoint_dependencies",
        "_self_unconditional_dependency_names",
        "_self_saveable_object_factories",
    }
)
"""Attributes in which Keras and TensorFlow keep books of what stands under other attributes too."""
_LISTS = ("_layers", "_trainable_variables", "_non_trainable_variables")
_GENERATORS = (keras.random.SeedGenerator, tf.random.Generator)


def is_module(obj: object) -> bool:
    """Whether ``obj`` is a layer of Keras or a ``tf.Module``."""
    return isinstance(obj, Layer | tf.Module) and not is_variable(obj) and not isinstance(obj, tf.random.Generator)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _spread(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield modules, variables and generators in a value of an attribute, with their paths."""
    if is_variable(value) or is_module(value) or isinstance(value, _GENERATORS):
        yield name, value
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _spread(f"{name}.{index}", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _spread(f"{name}.{key}", item)


def _members(module: Any) -> list[tuple[str, Any]]:
    """Return what stands directly in a module: name and variable, module or generator, each place once."""
    found: list[tuple[str, Any]] = []
    inner: list[Any] = []
    if isinstance(module, keras.Sequential):
        found += [(str(index), layer) for index, layer in enumerate(module.layers)]
    elif isinstance(module, keras.Model) and getattr(module, "_operations", None):
        found += _named([layer for layer in module.layers if not isinstance(layer, keras.layers.InputLayer)], ())
    if found:
        inner = [layer for _, layer in found]
    for key, value in vars(module).items():
        if key in _KERAS_OWN or isinstance(value, str | int | float | bool | type(None)):
            continue
        for name, item in _spread(key.lstrip("_") or key, value):
            if not any(item is layer for layer in inner):
                found.append((name, item))
    if isinstance(module, Layer):
        met = {_identity(item) for _, item in found}
        left: list[Any] = []
        for name in _LISTS:
            for item in getattr(module, name, ()):
                if (
                    _identity(item) not in met
                    and not isinstance(item, keras.layers.InputLayer)
                    and not _is_inside(item, module)
                ):
                    met.add(_identity(item))
                    left.append(item)
        found += _named(left, [name for name, _ in found])
    order = {id(item): index for name in _LISTS[1:] for index, item in enumerate(getattr(module, name, ()))}
    last = len(order)
    variables = sorted((pair for pair in found if is_variable(pair[1])), key=lambda pair: order.get(id(pair[1]), last))
    return variables + [pair for pair in found if not is_variable(pair[1])]


def _named(items: Sequence[Any], taken: Sequence[str]) -> list[tuple[str, Any]]:
    """Return items with their names in Keras.

    A name that Keras has made ends in a count of all layers of its kind that the process has made; it is counted anew in each model.
    """
    made = [
        isinstance(item, Layer) and re.fullmatch(rf"{_snake_case(type(item).__name__)}(_\d+)?", item.name) is not None
        for item in items
    ]
    used = {*taken, *(item.name for item, counted in zip(items, made, strict=True) if not counted)}
    found = []
    for item, counted in zip(items, made, strict=True):
        name = item.name
        if counted:
            base, count = _snake_case(type(item).__name__), 0
            name = base
            while name in used:
                count += 1
                name = f"{base}_{count}"
            used.add(name)
        found.append((name, item))
    return found


def _snake_case(name: str) -> str:
    """Return the name of a class as Keras begins the names of its layers."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def _identity(item: Any) -> int:
    """Return an id that a module shares with its facades."""
    return id(vars(item)) if is_module(item) else id(item)


def _is_inside(layer: Any, module: Any) -> bool:
    return layer is vars(module).get("_functional")


def places(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield path and module of every place in the tree; a module that stands in several comes several times."""
    for path, module, _ in _places(model):
        yield path, module


def _places(model: Any) -> Iterator[tuple[str, Any, list[tuple[str, Any]]]]:
    stack: list[tuple[str, Any, frozenset[int]]] = [("", model, frozenset())]
    while stack:
        path, module, above = stack.pop()
        members = _members(module)
        yield path, module, members
        above = above | {id(module)}
        below = [(_join(path, name), item, above) for name, item in members if is_module(item)]
        stack.extend(place for place in reversed(below) if id(place[1]) not in above)


def describe(model: Any) -> Structure:
    """Return names, roles and owners of all variables, and what :func:`unchanged` compares."""
    parameters: list[Entry] = []
    buffers: list[Entry] = []
    pending: list[str] = []
    norms: dict[str, Any] = {}
    generators: dict[str, Any] = {}
    seen: dict[int, Any] = {}
    seeds: set[int] = set()
    cells: dict[str, str] = {}
    taken: set[str] = set()
    token: list[tuple[Any, list[Any]]] = []
    for path, module, members in _places(model):
        first = id(module) not in seen
        seen[id(module)] = module
        if first:
            token.append((module, _marks(module)))
        holder = cells.get(path, path)
        if known.is_cell_holder(module):
            cells[_join(path, "cell")] = path
        role = known.role(module)
        for name, item in members:
            if isinstance(item, _GENERATORS):
                if first:
                    generators[_join(path, name)] = item
                    register_random(item.state)
                    seeds.add(id(item.state))
                continue
            if not is_variable(item) or id(item) in seeds:
                continue
            own = item.name.partition(":")[0]
            leaf = known.canonical(module, own, name)
            if path in cells:
                leaf = f"{leaf}_l0"
            native = getattr(item, "path", None) or item.name
            full = _join(holder, leaf)
            if _is_parameter(item, module):
                register(item)
                parameters.append(Entry(full, _native(native, full, taken), item, role, holder, module, name))
            elif first:
                register(item)
                buffers.append(Entry(full, _native(native, full, taken), item, role, holder, module, name))
        if first and _waits(module):
            pending.append(path)
        if first and known.is_norm(module):
            norms[path] = module
    pending = [path for path in pending if not any(path == cell for cell in cells)]
    return Structure(tuple(parameters), tuple(buffers), tuple(pending), norms, generators, token)


def _native(native: str, full: str, taken: set[str]) -> str:
    """Return Keras' path of a variable, which need not be unique, made so by the structural path."""
    if native in taken:
        native = f"{native} ({full})"
    taken.add(native)
    return native


def _is_parameter(variable: Any, module: Any) -> bool:
    if variable.trainable or getattr(variable, "_unigrad_parameter", False):
        if isinstance(variable, tf.Variable):
            variable._unigrad_parameter = True  # it stays one when it is frozen
        return True
    return any(variable is own for own in getattr(module, "_trainable_variables", ()))


def _waits(module: Any) -> bool:
    """Whether a layer will create its variables in its first call."""
    if not isinstance(module, Layer) or module.built or isinstance(module, keras.Sequential):
        return False
    return not getattr(type(module).build, "_is_default", False)


def _marks(module: Any) -> list[Any]:
    """Return what stands in a module, as far as it may hold variables; the same objects while nothing has changed."""
    found: list[Any] = [getattr(module, "built", True)]
    for value in vars(module).values():
        if is_variable(value) or is_module(value) or isinstance(value, _GENERATORS):
            found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(item for item in value if is_variable(item) or is_module(item))
        elif isinstance(value, dict):
            found.extend(item for item in value.values() if is_variable(item) or is_module(item))
    return found


def unchanged(model: Any, structure: Structure) -> bool:
    """Whether every module still holds the same things."""
    token = structure.token
    if not token or vars(token[0][0]) is not vars(model):
        return False
    for module, marks in token:
        now = _marks(module)
        if len(now) != len(marks) or not all(map(is_, now, marks)):
            return False
    return True
