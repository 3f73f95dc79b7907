"""A whole training run in one file: a block, its optimizer, random state, and what the program adds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from unigrad import random, state
from unigrad.errors import ArgumentError, ArgumentTypeError, StateFileError, StateMismatchError
from unigrad.optimizer import Optimizer
from unigrad.wrapping import wrap

__all__ = ["load_training", "save_training"]

_OPTIMIZER, _RANDOM = "optimizer/", "random/"


def save_training(
    path: Any, block: Any, optimizer: Optimizer | None = None, extra: Mapping[str, Any] | None = None
) -> None:
    """Write all that the next step depends on to one safetensors file, whole or not at all.

    Parameters
    ----------
    path
        The file.
    block
        A block or native model: its parameters and buffers, and the state of the generators that it owns.
    optimizer
        The optimizer that trains it.
    extra
        What else the program needs to go on, of what JSON can hold: the number of the step, the state of a schedule.

    Raises
    ------
    ArgumentTypeError
        If ``extra`` holds something that JSON can't, or ``optimizer`` is a native one.
    NotBuiltError
        If layers have no parameters yet.
    OSError
        If the file can't be written.

    Notes
    -----
    Modes and what is frozen are the program's, and not in the file. Random state is that of the framework, of Python and NumPy, of
    the block's generators and of registered ones. Saving changes nothing. Clause D2.

    Examples
    --------
    >>> import tempfile, unigrad
    >>> from pathlib import Path
    >>> from unigrad_numpy import nn, optim
    >>> block = unigrad.wrap(nn.Linear(3, 2))
    >>> optimizer = unigrad.Optimizer(block, lambda parameters: optim.AdamW(parameters, lr=0.01))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     unigrad.save_training(Path(folder) / "run.safetensors", block, optimizer, {"step": 7})
    ...     unigrad.load_training(Path(folder) / "run.safetensors", block, optimizer)
    {'step': 7}
    """
    block = wrap(block)
    _check_optimizer(optimizer, block)
    try:
        extra = dict(extra or {})
        _check_keys(extra)
        extra = json.loads(json.dumps(extra))
    except (TypeError, ValueError, RecursionError) as cause:
        raise ArgumentTypeError(f"extra holds what JSON can: numbers, text, lists and mappings; {cause}") from cause
    parts = {state.BLOCK: state.collect(block), _RANDOM: random.to_arrays(block)}
    if optimizer is not None:
        parts[_OPTIMIZER] = optimizer.state()
    arrays = {prefix + name: array for prefix, part in parts.items() for name, array in part.items()}
    state.write_file(path, arrays, {**state.describe(block), "training": {"extra": extra}})


def _check_keys(value: Any) -> None:
    """Raise ``TypeError`` for a key that JSON would turn into text, as those of ``MultiStepLR``'s milestones, which then never come."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is a {type(key).__name__} and would come back as text")
            _check_keys(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_keys(inner)


def load_training(path: Any, block: Any, optimizer: Optimizer | None = None) -> dict[str, Any]:
    """Go on from what :func:`save_training` wrote, in this or another process, with the same bits.

    Parameters
    ----------
    path
        The file.
    block
        The same model, made anew.
    optimizer
        An optimizer of the block, made as the saved one was; its native optimizer is made anew.

    Returns
    -------
    dict
        ``extra`` as JSON gives it back: a tuple has become a list.

    Raises
    ------
    StateFileError
        If the file is missing, truncated, or holds no training run.
    StateMismatchError
        If the block, the optimizer or the random generators are others than the saved ones; nothing was changed.
    ArgumentError
        If the file holds an optimizer and none is given.
    """
    block = wrap(block)
    _check_optimizer(optimizer, block)
    arrays, description = state.read_file(path)
    training = description.get("training")
    if not isinstance(training, dict) or not isinstance(training.get("extra"), dict):
        raise StateFileError(f"{path} holds no training run; what Block.save wrote is read by Block.load")
    parts: dict[str, dict[str, np.ndarray[Any, Any]]] = {state.BLOCK: {}, _OPTIMIZER: {}, _RANDOM: {}}
    for name, array in arrays.items():
        prefix = next((prefix for prefix in parts if name.startswith(prefix)), None)
        if prefix is None:
            raise StateFileError(f"{path} holds {name!r}, which is of no part of a training run")
        parts[prefix][name.removeprefix(prefix)] = array
    if optimizer is None and parts[_OPTIMIZER]:
        raise ArgumentError(f"{path} holds the state of an optimizer; give one, or read the block alone by Block.load")
    if optimizer is not None and not parts[_OPTIMIZER]:
        raise StateMismatchError(f"{path} was saved without an optimizer")
    write = state.prepare_file(block, path, parts[state.BLOCK], description, strict=True)
    use = optimizer.prepare(parts[_OPTIMIZER]) if optimizer is not None else None
    before = _restore(random.from_arrays(block, parts[_RANDOM]), block)
    try:
        write()
    except BaseException:
        before.restore()
        raise
    if use is not None:
        use()
    return dict(training["extra"])


def _check_optimizer(optimizer: Any, block: Any) -> None:
    if optimizer is None:
        return
    if not isinstance(optimizer, Optimizer):
        raise ArgumentTypeError(f"the optimizer is a unigrad.Optimizer, not a {type(optimizer).__name__}")
    foreign = {id(tensor) for tensor in optimizer.block.parameters.values()} - set(block.table().name_of)
    if foreign:
        raise ArgumentError("the optimizer serves parameters that are not the block's")


def _restore(wanted: random.RandomState, block: Any) -> random.RandomState:
    """Set the random state, and return what it was."""
    before = random.snapshot(block.backend, [generator for generator, _ in wanted.generators])
    try:
        wanted.restore()
    except Exception as cause:
        before.restore()
        raise StateMismatchError(f"the random state can't be set here, nothing was changed: {cause}") from cause
    return before
