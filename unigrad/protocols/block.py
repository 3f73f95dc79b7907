"""``block``: a native model as named tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["BlockModule", "Entry", "Structure"]


@dataclass(frozen=True)
class Entry:
    """One named tensor of a model.

    Parameters
    ----------
    name
        Structural path with a canonical leaf name, e.g. ``encoder.0.weight``.
    native_name
        The framework's own name.
    tensor
        The native parameter or buffer, the object itself. ``None`` for a tensor that does not exist yet.
    role
        ``"dense" "conv" "transposed conv" "embedding" "norm" "recurrent"`` or ``"other"``.
    layer
        Structural path of the layer that owns it; ``""`` is the model itself.
    owner, key
        The native object that holds the tensor and the key under which it does.
    """

    name: str
    native_name: str
    tensor: Any
    role: str
    layer: str
    owner: Any = None
    key: str = ""


@dataclass(frozen=True)
class Structure:
    """What a model consists of; made anew only when the model has changed.

    Parameters
    ----------
    parameters
        Every place that holds a parameter, in the order of the model; a tied parameter appears once a place.
    buffers
        Everything a forward may change or that is saved without being trained.
    pending
        Paths of layers whose parameters do not exist yet.
    norms
        Normalization layers with running statistics: path -> native layer.
    generators
        Random generators that the model owns: path -> native generator.
    token
        Whatever the backend needs to tell that the model is unchanged.
    """

    parameters: tuple[Entry, ...]
    buffers: tuple[Entry, ...] = ()
    pending: tuple[str, ...] = ()
    norms: Mapping[str, Any] = field(default_factory=dict)
    generators: Mapping[str, Any] = field(default_factory=dict)
    token: Any = None


class BlockModule(Protocol):
    """``block``: a native model as named tensors; tensors to and from NumPy; arithmetic on gradients."""

    def is_model(self, obj: object) -> bool:
        """Whether ``obj`` is a native model or layer."""

    def is_tensor(self, obj: object) -> bool:
        """Whether ``obj`` is a native tensor or parameter."""

    def unwrap(self, model: Any) -> Any:
        """Return the model inside wrappers that change nothing (DDP, compile, ...), else the model itself."""

    def structure(self, model: Any, known: Structure | None = None) -> Structure:
        """Describe the (unwrapped) model; return ``known`` itself if the model has not changed since.

        The check against ``known`` costs O(own layers and parameters) and allocates nothing large.
        """

    def call(
        self, model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool | None, frozen: Sequence[Any]
    ) -> Any:
        """Call the model natively.

        ``training`` is None where the user never chose a mode through the Block; ``frozen`` are normalization layers
        that must use their running statistics, and leave them alone, during this call, whatever the mode. Modes
        are afterwards as they were, also after an exception.
        """

    def training(self, model: Any) -> bool:
        """Return the native mode of the model."""

    def set_training(self, model: Any, training: bool) -> None:
        """Set the native mode of the model and all its layers (nothing where a mode is an argument of the call)."""

    def modes(self, model: Any) -> Any:
        """Return the modes of all layers, for ``set_modes``."""

    def set_modes(self, model: Any, modes: Any) -> None:
        """Set the modes of all layers as ``modes`` returned them."""

    def couples_samples(self, model: Any) -> str | None:
        """Path of a layer known to make samples of a batch depend on each other in its present mode, else None.

        ``""`` is the model itself. Only layers whose own type says so (batch normalization on batch statistics).
        """

    def copy(self, model: Any) -> Any:
        """Deep copy of the model, pending layers included."""

    def facade(self, model: Any, run: Callable[..., Any]) -> Any:
        """Return a native model that is ``model`` in everything but its forward, which is ``run(forward, *args, **kwargs)``.

        ``forward`` is the plain forward of the model, bound. Parameter names, state keys, modes, hooks, deep copy and
        native saving are those of the plain model, without prefix; parameters are shared, not copied. A deep copy
        keeps ``run``. The object has a settable attribute ``enabled`` (True): where False the call is the plain one.
        """

    def layers(self, model: Any) -> Sequence[Any]:
        """Return the model and all layers inside it, each once."""

    def watch_calls(self, callback: Callable[[Any], None], known: Collection[Any]) -> AbstractContextManager[Any]:
        """Call ``callback(layer)`` before each native model or layer that runs in this thread inside the ``with``.

        Of ``known`` ones it need not be told. Where these include what a watch would disturb (a compiled layer), nothing is watched.
        """

    def on_built(self, model: Any, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` each time a pending layer of the model has just created its parameters; returns the undo."""

    def trainable(self, parameter: Any) -> bool:
        """Whether the parameter takes gradients now."""

    def set_trainable(self, parameter: Any, trainable: bool) -> None:
        """Make the parameter take gradients or not."""

    def swap(self, entries: Sequence[Entry], tensors: Sequence[Any]) -> list[Any]:
        """Put ``tensors`` in the places of the buffers ``entries``; return what stood there, so that swapping it back undoes this."""

    def assign(self, tensor: Any, array: Any) -> None:
        """Write the values of a NumPy array (same shape and dtype) into the tensor, noticed by version checks."""

    def version(self, tensor: Any) -> Hashable:
        """Return something that changes when the tensor's values are written the ordinary way; None if the framework has no such thing."""

    def to_numpy(self, tensor: Any) -> Any:
        """Return the values as a C-contiguous NumPy copy (bfloat16 through ml_dtypes)."""

    def from_numpy(self, array: Any) -> Any:
        """Return a native tensor with a copy of the values, not needing a gradient."""

    def shape(self, tensor: Any) -> tuple[int, ...]:
        """Return the shape, with -1 for a size that a function that is being traced does not know yet."""

    def dtype(self, tensor: Any) -> str:
        """Return the NumPy-style name of the dtype, e.g. ``"float32"``."""

    def is_floating(self, tensor: Any) -> bool:
        """Whether the dtype is a real floating-point type."""

    def requires_gradient(self, tensor: Any) -> bool:
        """Whether the tensor is a trainable leaf or has a recorded graph."""

    def clone(self, tensor: Any) -> Any:
        """Return a copy that shares nothing with the tensor, contiguous and without a graph; a sparse buffer stays sparse."""

    def snapshot(self, tensor: Any) -> Any:
        """Return what ``clone`` returns, for a tensor that nobody but the core holds.

        It may share memory for as long as neither of the two is written.
        """

    def zeros(self, tensor: Any) -> Any:
        """Return zeros of the same shape, dtype and place."""

    def add(self, left: Any, right: Any) -> Any:
        """Return the sum of two tensors as a new tensor; recorded if recording is on. Sparse operands are made dense."""

    def scale(self, tensor: Any, factor: Any) -> Any:
        """Return the tensor times a Python or native scalar as a new tensor of the same dtype; recorded if recording is on."""

    def cast(self, tensor: Any, dtype: str) -> Any:
        """Return the tensor in another dtype (itself if it has it)."""

    def clip_factor(self, tensors: Sequence[Any], maximum: float) -> Any:
        """Return ``min(1, maximum / norm)`` for the Euclidean norm over all ``tensors``.

        1 for no tensors or norm 0; NaN if the norm is NaN.
        """

    def narrow(self, tensor: Any, axis: int, start: int, stop: int) -> Any:
        """Return the part ``start:stop`` along ``axis`` as a view, connected to the tensor's graph."""

    def concat(self, tensors: Sequence[Any], axis: int) -> Any:
        """Join tensors along ``axis``, recorded."""

    def equal(self, left: Any, right: Any) -> bool:
        """Whether two tensors have the same shape, dtype and bits."""
