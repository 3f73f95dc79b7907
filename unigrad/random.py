"""Random state of a whole process: the frameworks', Python's, NumPy's and registered generators."""

from __future__ import annotations

import json
import random as python_random
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from unigrad.errors import ArgumentError, ArgumentTypeError, StateMismatchError
from unigrad.plugins import backend_of, backends_in_use
from unigrad.protocols import Backend

if TYPE_CHECKING:
    from unigrad.block import Block

__all__ = ["RandomState", "from_arrays", "register_generator", "seed", "snapshot", "to_arrays"]

_registered: list[Callable[[], Any]] = []


@dataclass(frozen=True)
class RandomState:
    """A snapshot of every random source that a backend and this process have.

    Parameters
    ----------
    backend
        The backend whose global state it holds.
    native
        That state.
    python, numpy
        States of the generators of ``random`` and ``numpy.random``.
    generators
        ``(generator, state)`` of each registered generator and of those that the blocks own.
    """

    backend: Backend
    native: Any
    python: Any
    numpy: Any
    generators: tuple[tuple[Any, Any], ...]

    def restore(self) -> None:
        """Set every source to the state it had."""
        self.backend.rng.restore(self.native)
        python_random.setstate(self.python)
        np.random.set_state(self.numpy)
        for generator, state in self.generators:
            if isinstance(generator, np.random.Generator):
                generator.bit_generator.state = state
            else:
                self.backend.rng.set_generator_state(generator, state)


def seed(number: int) -> None:
    """Seed Python's and NumPy's global generators and those of every imported framework that has a backend.

    Parameters
    ----------
    number
        From 0 to 2**32 - 1.

    Raises
    ------
    ArgumentError
        If it is out of range.
    """
    if isinstance(number, bool) or not isinstance(number, int | np.integer):
        raise ArgumentTypeError(f"a seed is an integer, not {number!r}")
    if not 0 <= number < 2**32:
        raise ArgumentError(f"a seed lies between 0 and 2**32 - 1, not {number!r}")
    python_random.seed(int(number))
    np.random.seed(int(number))
    for backend in backends_in_use():
        backend.rng.seed(int(number))


def register_generator(generator: Any) -> None:
    """Have checkpoints keep the state of an own generator: a NumPy ``Generator`` or one of a framework.

    It is held weakly where Python can; a NumPy ``Generator`` allows no weak reference and is held for good, so register long-lived
    ones. Generators that a model owns as attributes need not be registered.

    Raises
    ------
    ArgumentTypeError
        If no backend knows the object as a generator.
    """
    if not isinstance(generator, np.random.Generator):
        backend = backend_of(generator)
        if not backend.rng.is_generator(generator):
            raise ArgumentTypeError(f"a {type(generator).__name__} of {backend.spec.name} is not a random generator")
    _registered[:] = [ref for ref in _registered if ref() is not None and ref() is not generator]
    try:
        _registered.append(weakref.ref(generator))
    except TypeError:
        _registered.append(lambda: generator)


def snapshot(backend: Backend, generators: Iterable[Any] = ()) -> RandomState:
    """Take the state of every random source.

    Parameters
    ----------
    backend
        The backend whose global state is taken.
    generators
        Generators beside the registered ones, e.g. those that a block owns.

    Returns
    -------
    RandomState
        With ``restore()``.
    """
    rng = backend.rng
    found: dict[int, Any] = {}
    for generator in (*(ref() for ref in _registered), *generators):
        if generator is not None and (isinstance(generator, np.random.Generator) or rng.is_generator(generator)):
            found[id(generator)] = generator
    states = tuple(
        (item, item.bit_generator.state if isinstance(item, np.random.Generator) else rng.generator_state(item))
        for item in found.values()
    )
    return RandomState(backend, rng.snapshot(), _python_state(), _numpy_state(), states)


def to_arrays(block: Block) -> dict[str, np.ndarray[Any, Any]]:
    """Return the state of every random source as bytes by name: ``native``, ``python``, ``numpy``, ``own/path``, ``registered/n``.

    Own generators are those of the block, by path; registered ones have no names, so their order counts.
    """
    backend = block.backend
    named = _generators(block)
    state = snapshot(backend, named.values())
    states = {id(generator): value for generator, value in state.generators}
    return {
        "native": backend.rng.to_portable(state.native),
        "python": _to_bytes(state.python),
        "numpy": _to_bytes(state.numpy),
        **{
            name: _to_bytes(states[id(generator)])
            if isinstance(generator, np.random.Generator)
            else backend.rng.to_portable(states[id(generator)])
            for name, generator in named.items()
        },
    }


def from_arrays(block: Block, arrays: Mapping[str, Any]) -> RandomState:
    """Return the snapshot of which :func:`to_arrays` made the arrays, for the generators of this block and process.

    Raises
    ------
    StateMismatchError
        If generators are missing or further ones are there, or the bytes are not a state of this backend.
    """
    rng = block.backend.rng
    named = _generators(block)
    wanted = {"native", "python", "numpy", *named}
    faults = [f"{name}: missing" for name in sorted(wanted - set(arrays))]
    faults += [f"{name}: there is no such generator here" for name in sorted(set(arrays) - wanted)]
    if faults:
        raise StateMismatchError(
            "the random state does not fit, nothing was changed (registered generators are to be registered again, in the same "
            "order, before it is loaded):\n  " + "\n  ".join(faults)
        )
    try:
        generators = tuple(
            (
                generator,
                _from_bytes(arrays[name])
                if isinstance(generator, np.random.Generator)
                else rng.from_portable(arrays[name]),
            )
            for name, generator in named.items()
        )
        version, numbers, rest = _from_bytes(arrays["python"])
        python = (version, tuple(numbers), rest)
        return RandomState(
            block.backend, rng.from_portable(arrays["native"]), python, _from_bytes(arrays["numpy"]), generators
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as cause:
        raise StateMismatchError(f"the random state is spoilt, nothing was changed: {cause}") from cause


def _generators(block: Block) -> dict[str, Any]:
    rng = block.backend.rng
    registered = [generator for ref in _registered if (generator := ref()) is not None]
    known = [item for item in registered if isinstance(item, np.random.Generator) or rng.is_generator(item)]
    named = {f"own/{path}": generator for path, generator in block.random_state.items()}
    return named | {f"registered/{index}": generator for index, generator in enumerate(known)}


def _to_bytes(state: Any) -> np.ndarray[Any, Any]:
    def arrays(value: Any) -> Any:
        return {"dtype": value.dtype.name, "array": value.tolist()} if isinstance(value, np.ndarray) else value.item()

    return np.frombuffer(json.dumps(state, default=arrays).encode(), np.uint8).copy()


def _from_bytes(data: Any) -> Any:
    def arrays(value: dict[str, Any]) -> Any:
        return np.asarray(value["array"], value["dtype"]) if set(value) == {"dtype", "array"} else value

    return json.loads(np.asarray(data, np.uint8).tobytes(), object_hook=arrays)


class _Latest:
    """States taken last: many checkpoints of one forward share one object where no number was drawn in between."""

    python: Any = None
    numpy: Any = None


def _python_state() -> Any:
    state = python_random.getstate()
    if state != _Latest.python:
        _Latest.python = state
    return _Latest.python


def _numpy_state() -> Any:
    state: Any = np.random.get_state(legacy=False)  # the other form is only of the usual bit generator
    if not _same(state, _Latest.numpy):
        _Latest.numpy = state
    return _Latest.numpy


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(value, right[name]) for name, value in left.items())
    return bool(np.array_equal(left, right)) if isinstance(left, np.ndarray) else bool(left == right)
