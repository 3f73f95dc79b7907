"""Portable state: NumPy arrays by name, and safetensors files that say what they hold."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unigrad.dtypes import ml_dtype
from unigrad.errors import ArgumentTypeError, StateFileError, StateMismatchError, UnsupportedError

if TYPE_CHECKING:
    from unigrad.block import Block

__all__ = [
    "BLOCK",
    "FORMAT",
    "LoadReport",
    "collect",
    "describe",
    "load",
    "load_arrays",
    "misfit",
    "prepare_arrays",
    "prepare_file",
    "read_file",
    "save",
    "write_file",
]

FORMAT = 1
"""Version of the metadata in the files that this library writes."""
_EIGHT_BITS = {
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
"""Dtypes of eight bits as safetensors and ml_dtypes name them."""
BLOCK = "block/"
"""What stands before the names of a block in the file of a whole training run."""


@dataclass(frozen=True)
class LoadReport:
    """Names of the block that a state did not hold, and names of the state that the block does not have."""

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()


def collect(block: Block) -> dict[str, np.ndarray[Any, Any]]:
    """Return copies of all parameters and buffers; see ``Block.state``."""
    block.require_built()
    table = block.table()
    to_numpy = block.backend.arrays.to_numpy
    return {name: to_numpy(tensor) for name, tensor in (*table.parameters.items(), *table.buffers.items())}


def load_arrays(block: Block, arrays: Mapping[str, Any], strict: bool) -> LoadReport:
    """Check everything, then write everything; see ``Block.load_state``."""
    return prepare_arrays(block, arrays, strict)()


def prepare_arrays(block: Block, arrays: Mapping[str, Any], strict: bool) -> Callable[[], LoadReport]:
    """Check everything; the returned function writes everything."""
    if not isinstance(arrays, Mapping):
        raise ArgumentTypeError(f"load_state takes a mapping of names to arrays, not a {type(arrays).__name__}")
    if not isinstance(strict, bool):
        raise ArgumentTypeError(f"strict is True or False, not {strict!r}")
    block.require_built()
    table = block.table()
    primitive = block.backend.arrays
    wanted = {**table.parameters, **table.buffers}
    faults: list[str] = []
    given: set[str] = set()
    ready: dict[str, np.ndarray[Any, Any]] = {}
    unexpected: list[str] = []
    for name, value in arrays.items():
        canonical = table.aliases.get(name, name)
        if canonical not in wanted:
            unexpected.append(str(name))
            continue
        given.add(canonical)
        if fault := misfit(value):
            faults.append(f"{name}: {fault}")
            continue
        array = np.asarray(value)
        target = wanted[canonical]
        shape, dtype = primitive.shape(target), primitive.dtype(target)
        if array.shape != shape:
            faults.append(f"{name}: shape {array.shape}, the block has {shape}")
        elif array.dtype.name != dtype:
            faults.append(f"{name}: dtype {array.dtype.name}, the block has {dtype}")
        elif canonical in ready and not np.array_equal(ready[canonical], array, equal_nan=array.dtype.kind == "f"):
            faults.append(f"{name}: tied to {canonical} in the block, but the values differ")
        else:
            ready[canonical] = array
    missing = [name for name in wanted if name not in given]
    if strict:
        faults += [f"{name}: missing" for name in missing]
        faults += [f"{name}: the block has no such name" for name in unexpected]
    if faults:
        raise StateMismatchError(
            f"the state does not fit the block, nothing was changed ({len(faults)} mismatches):\n  "
            + "\n  ".join(faults)
        )

    def write() -> LoadReport:
        before: dict[str, np.ndarray[Any, Any]] = {}
        try:
            for name, array in ready.items():
                before[name] = primitive.to_numpy(wanted[name])
                primitive.assign(wanted[name], array)
        except BaseException as cause:
            failed, *written = reversed(before)  # tensors may share memory, so the first value is put back last
            with contextlib.suppress(Exception):  # written half, or not at all
                primitive.assign(wanted[failed], before[failed])
            for name in written:
                primitive.assign(wanted[name], before[name])
            if not isinstance(cause, Exception):
                raise
            raise StateMismatchError(f"{failed} can't be written, nothing was changed: {cause}") from cause
        return LoadReport(tuple(missing), tuple(unexpected))

    return write


def misfit(value: Any) -> str:
    """Return why a value is no array of a state; empty if it is one."""
    if isinstance(value, np.ma.MaskedArray):
        return "a masked array; what its masked values are to be is not said, fill them in first"
    return "" if isinstance(value, np.ndarray | np.generic) else f"a {type(value).__name__}, not a NumPy array"


def save(block: Block, path: Any) -> None:
    """Write a block's state, roles and ties; see ``Block.save``."""
    write_file(path, collect(block), describe(block))


def describe(block: Block) -> dict[str, Any]:
    """Return what a file says of a block beside its arrays."""
    return {
        "format": FORMAT,
        "framework": block.backend.spec.name,
        "roles": dict(block.roles),
        "ties": dict(block.aliases),
    }


def load(block: Block, path: Any, strict: bool) -> LoadReport:
    """Read a block's state; see ``Block.load``."""
    block.require_built()
    arrays, description = read_file(path)
    if "training" in description:  # of a whole run: the block's part
        arrays = {name.removeprefix(BLOCK): array for name, array in arrays.items() if name.startswith(BLOCK)}
    return prepare_file(block, path, arrays, description, strict)()


def prepare_file(
    block: Block, path: Any, arrays: Mapping[str, Any], description: Mapping[str, Any], strict: bool
) -> Callable[[], LoadReport]:
    """Check what a file holds of a block; the returned function writes it into the block."""
    block.require_built()
    _check_description(path, arrays, description)
    framework, own = description["framework"], block.backend.spec.name
    if framework != own:
        raise StateMismatchError(
            f"{path} holds the state of a {framework} block, this one is of {own}; layouts of different frameworks are not "
            "mapped yet, and a square weight would load transposed in silence"
        )
    roles = block.roles
    differing = [
        f"{name}: role {role!r} in the file, {roles[name]!r} in the block"
        for name, role in description["roles"].items()
        if name in roles and roles[name] != role
    ]
    if differing:
        raise StateMismatchError("the file describes other layers, nothing was changed:\n  " + "\n  ".join(differing))
    # A name tied in the file stands for itself in a block where it is not tied.
    tied = {alias: arrays[name] for alias, name in description["ties"].items()}
    return prepare_arrays(
        block, {**arrays, **{alias: array for alias, array in tied.items() if alias not in arrays}}, strict
    )


def _check_description(path: Any, arrays: Mapping[str, Any], description: Mapping[str, Any]) -> None:
    """Raise ``StateFileError`` unless the description of a block's file is whole."""
    named = {part: description.get(part) for part in ("roles", "ties")}
    broken = [
        part
        for part, found in named.items()
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values())
    ]
    if not isinstance(description.get("framework"), str):
        broken.append("framework")
    if broken:
        raise StateFileError(f"{path} has a spoilt description ({', '.join(broken)}); it was not written by Block.save")
    holes = [f"{alias} to {name}" for alias, name in description["ties"].items() if name not in arrays]
    if holes:
        raise StateFileError(f"{path} ties names to tensors that it does not hold: {', '.join(holes)}")


def write_file(path: Any, arrays: Mapping[str, np.ndarray[Any, Any]], description: Mapping[str, Any]) -> None:
    """Write arrays and a description to a safetensors file, whole or not at all.

    Parameters
    ----------
    path
        The file. A symbolic link is followed; mode and owner of a file that is replaced stay. Another hard link to it keeps
        what it held.
    arrays
        Name -> array of any memory layout; they are written in C order (safetensors 0.8.0 writes raw memory, which
        scrambles others: https://github.com/huggingface/safetensors/issues/825).
    description
        Anything that JSON can hold.

    Raises
    ------
    OSError
        If the file can't be written.
    StateFileError
        If there is a pipe, a device or anything else that is no file.
    UnsupportedError
        If an array is of a dtype that such a file can't hold, as complex128.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save as to_bytes

    target = Path(os.path.realpath(_path(path)))
    contiguous = {name: np.array(array, order="C", copy=True) for name, array in arrays.items()}
    try:
        data = to_bytes(contiguous, metadata={"unigrad": json.dumps(dict(description))})
    except SafetensorError as error:
        dtypes = ", ".join(sorted({array.dtype.name for array in contiguous.values()}))
        raise UnsupportedError(f"a safetensors file can't hold all of these dtypes: {dtypes} ({error})") from error
    replaced = _existing(target)
    if replaced and stat.S_ISDIR(replaced.st_mode):
        raise IsADirectoryError(errno.EISDIR, "the file to write is a folder", str(target))
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".unigrad-")
    except OSError as error:
        raise type(error)(
            error.errno, error.strerror, str(target)
        ) from None  # the temporary name says nothing to a user
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        _like(temporary, replaced)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _existing(file: Path) -> os.stat_result | None:
    """Return what the system says of a file or folder, None if there is none yet; raise for a pipe or a device."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise StateFileError(
            f"{file} is a pipe, a device or a socket, not a file; a state is saved to and read from files"
        )
    return found


def _like(temporary: Path, replaced: os.stat_result | None) -> None:
    """Give a new file the mode and the owner of the one it replaces, else those of an ordinary file."""
    if replaced is None:
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # the temporary file is private
        return
    with contextlib.suppress(
        OSError, AttributeError
    ):  # only the superuser may give a file away, and not on each system
        os.chown(temporary, replaced.st_uid, replaced.st_gid)
    temporary.chmod(stat.S_IMODE(replaced.st_mode))


def _path(path: Any) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise ArgumentTypeError(f"the path of a file is a str or a Path, not a {type(path).__name__}")
    return Path(path)


def read_file(path: Any) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """Read what :func:`write_file` wrote.

    Returns
    -------
    tuple
        Arrays by name, and the description.

    Raises
    ------
    StateFileError
        If the file is missing, truncated, hostile, or not one of this library's.
    """
    from safetensors import SafetensorError, safe_open

    file = _path(path)
    try:
        _existing(file)  # to open a pipe would wait for somebody to write
        with file.open("rb"):
            pass  # safetensors says of what may not be read that it does not exist
        with safe_open(str(file), framework="numpy") as stream:
            metadata = stream.metadata() or {}
            names = list(stream.keys())
            eight_bits = {name: _EIGHT_BITS.get(stream.get_slice(name).get_dtype()) for name in names}
            if any(stream.get_slice(name).get_dtype() == "BF16" for name in names):
                ml_dtype("bfloat16")  # safetensors asks NumPy for it, which knows it from then on
            arrays = {name: stream.get_tensor(name) for name in names if eight_bits[name] is None}
        if len(arrays) < len(names):
            arrays |= _read_eight_bits(file, eight_bits)
            arrays = {name: arrays[name] for name in names}
    except StateFileError:
        raise
    except FileNotFoundError as error:
        raise StateFileError(f"there is no file {path}") from error
    except IsADirectoryError as error:
        raise StateFileError(f"{path} is a folder, not a file") from error
    except PermissionError as error:
        raise StateFileError(f"{path} can't be read: {error.strerror}") from error
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise StateFileError(f"{path} is not a whole safetensors file: {error}") from error
    try:
        description = json.loads(metadata["unigrad"])
        version = description["format"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise StateFileError(
            f"{path} is a safetensors file, but not one that unigrad wrote (it has no description of its contents); load it "
            "with safetensors.numpy.load_file and pass the arrays to load_state"
        ) from error
    if version != FORMAT:
        raise StateFileError(f"{path} has format {version}; this version of unigrad reads format {FORMAT}")
    return arrays, description


def _read_eight_bits(file: Path, dtypes: Mapping[str, str | None]) -> dict[str, np.ndarray[Any, Any]]:
    """Read the arrays of eight bits a number, which safetensors looks for in NumPy itself."""
    from safetensors import deserialize

    entries = deserialize(file.read_bytes())  # type: ignore[no-untyped-call]  # it has no types
    found = {name: entry for name, entry in entries if dtypes[name] is not None}
    return {
        name: np.frombuffer(entry["data"], ml_dtype(str(dtypes[name]))).reshape(entry["shape"]).copy()
        for name, entry in found.items()
    }
