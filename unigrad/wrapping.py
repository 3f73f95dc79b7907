"""wrap and join: the block of a native object, the same one for the same object."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

from unigrad.block import Block, Memory
from unigrad.errors import ArgumentError, ArgumentTypeError, BackendMismatchError
from unigrad.joined import JoinedBlock, MappingBlock
from unigrad.plugins import backend_of
from unigrad.protocols import Backend, Entry, Structure

__all__ = ["each_block", "join", "wrap"]

_memories: dict[Hashable, Memory] = {}
_blocks: weakref.WeakValueDictionary[Hashable, Block] = weakref.WeakValueDictionary()


def _key(native: Any) -> Hashable:
    if isinstance(native, Mapping):
        return tuple((name, id(tensor)) for name, tensor in native.items())
    return id(native)


def _forget(keys: list[Hashable]) -> None:
    """Forget an object when the first of its tensors dies; for the others nothing is left to do, nor a long key to hash."""
    if keys:
        key = keys.pop()
        _memories.pop(key, None)
        _blocks.pop(key, None)


def _remember(native: Any, make: Callable[[Memory], Block]) -> Block:
    key = _key(native)
    block = _blocks.get(key)
    if block is not None:
        return block
    memory = _memories.get(key)
    if memory is None:
        memory = _memories[key] = Memory()
        keys = [key]
        # The key holds the ids of all tensors of a mapping, so it means something while all of them live.
        for anchor in native.values() if isinstance(native, Mapping) else (native,):
            weakref.finalize(anchor, _forget, keys).atexit = False
    block = make(memory)
    _blocks[key] = block
    return block


def wrap(model: Any) -> Block:
    """Return the block of a native model, layer or mapping of names to trainable tensors.

    Parameters
    ----------
    model
        A native model of any installed backend, a block (returned as it is), or a mapping of name to native trainable tensor (a
        block without a call).

    Returns
    -------
    Block
        The same block for the same model.

    Raises
    ------
    ArgumentTypeError
        If no installed backend knows the object.
    ArgumentError
        If a mapping is empty.
    BackendMismatchError
        If a mapping holds tensors of two frameworks.

    Examples
    --------
    >>> import unigrad
    >>> from unigrad_numpy import nn
    >>> block = unigrad.wrap(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1, bias=False)))
    >>> list(block.parameters)
    ['0.weight', '0.bias', '1.weight']
    """
    if isinstance(model, Block):
        return model
    if isinstance(model, Mapping):
        return _wrap_mapping(model)
    backend = backend_of(model)
    if not backend.block.is_model(model):
        hint = " (a mapping of names to tensors can be wrapped)" if backend.arrays.is_tensor(model) else ""
        raise ArgumentTypeError(f"wrap takes a model of {backend.spec.name}, not a {type(model).__name__}{hint}")
    return _remember(model, lambda memory: Block(model, backend, memory))


def _wrap_mapping(mapping: Mapping[str, Any]) -> Block:
    if not mapping:
        raise ArgumentError("an empty mapping of tensors can't be wrapped")
    if all(isinstance(value, Block) for value in mapping.values()):
        return _join(mapping)
    first_name, first = next(iter(mapping.items()))
    try:
        backend = backend_of(first)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"the mapping's tensor {first_name!r} is none: {error}") from error
    entries = []
    for name, tensor in mapping.items():
        if not isinstance(name, str) or not name:
            raise ArgumentTypeError(f"names of tensors are non-empty strings, not {name!r}")
        if not backend.arrays.is_tensor(tensor):
            _refuse_foreign(tensor, backend, f"tensor {name!r}")
        if not backend.block.trainable(tensor):
            raise ArgumentError(
                f"tensor {name!r} is not trainable, or not a leaf; wrap leaf tensors that need a gradient"
            )
        entries.append(Entry(name, name, tensor, "other", name.rpartition(".")[0]))
    structure = Structure(tuple(entries))

    return _remember(dict(mapping), lambda memory: MappingBlock(structure, backend, memory))


def _refuse_foreign(obj: Any, backend: Backend, what: str) -> None:
    try:
        other = backend_of(obj)
    except ArgumentTypeError:
        other = backend
    if other.spec.name != backend.spec.name:
        raise BackendMismatchError(
            f"{what} belongs to {other.spec.name}, the block to {backend.spec.name}; one block has one framework"
        )
    raise ArgumentTypeError(f"{what} is a {type(obj).__name__}, not a tensor of {backend.spec.name}")


def join(**blocks: Any) -> Block:
    """Make one block of several; names get the keyword as prefix.

    Parameters
    ----------
    **blocks
        Prefix -> block or native model, all of one backend.

    Returns
    -------
    Block
        A block without a call, whose names are ``prefix.name``.

    Raises
    ------
    ArgumentError
        If there is none.
    BackendMismatchError
        If they belong to different backends.
    """
    if not blocks:
        raise ArgumentError("join needs at least one block")
    return _join(blocks)


def _join(blocks: Mapping[str, Any]) -> Block:
    for prefix in blocks:
        if not isinstance(prefix, str) or not prefix:
            raise ArgumentTypeError(f"prefixes of blocks are non-empty strings, not {prefix!r}")
    inside = [
        (long, short) for long in blocks for short in blocks if long is not short and long.startswith(f"{short}.")
    ]
    if inside:
        raise ArgumentError(f"prefix {inside[0][0]!r} lies inside prefix {inside[0][1]!r}, so names could meet")
    wrapped = {prefix: wrap(block) for prefix, block in blocks.items()}
    backends = {block.backend.spec.name: prefix for prefix, block in wrapped.items()}
    if len(backends) > 1:
        listed = ", ".join(f"{prefix!r} belongs to {name}" for name, prefix in backends.items())
        raise BackendMismatchError(f"blocks of different frameworks can't be joined: {listed}")
    return JoinedBlock(wrapped)


def each_block(blocks: Any, argument: str) -> Iterator[Block]:
    """Yield the blocks of an argument that takes one or several blocks or models."""
    if isinstance(blocks, list | tuple):
        for item in blocks:
            yield wrap(item)
    elif blocks is not None:
        if isinstance(blocks, str | bytes):
            raise ArgumentTypeError(f"{argument} takes blocks or models, not {blocks!r}")
        yield wrap(blocks)
