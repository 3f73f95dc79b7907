"""``block``: a native model as named tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
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
    """``block``: a native model as named tensors."""

    def is_model(self, obj: object) -> bool:
        """Whether ``obj`` is a native model or layer."""

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
