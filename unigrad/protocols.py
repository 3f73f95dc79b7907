"""What a backend declares and the primitives it supplies; the logic of every promise is in the core.

A backend is an importable package whose ``__init__`` holds one :data:`hookimpl` that returns a
:class:`BackendSpec` and imports no framework. The core then imports, from the package that the
specification names, the modules ``block``, ``tape``, ``checkpoint``, ``rng``, ``optimizer`` and ``memory``;
each must satisfy the protocol of the same name here. The suite imports ``samples`` (see :mod:`unigrad.samples`).

Tensors, models, optimizers and generators are the framework's own and are typed ``Any``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from unigrad.hooks import hookimpl, hookspec

__all__ = [
    "Backend",
    "BackendSpec",
    "BlockModule",
    "Capability",
    "CheckpointModule",
    "Engine",
    "Entry",
    "Graph",
    "Guarantee",
    "MemoryModule",
    "Meter",
    "NativeEngine",
    "OptimizerModule",
    "RecordingRegion",
    "Region",
    "RngModule",
    "Structure",
    "TapeModule",
    "hookimpl",
    "hookspec",
]


class Capability(Enum):
    """An operation that a backend may leave undeclared; then it raises ``UnsupportedError`` before anything runs."""

    NESTED_CHECKPOINT = "a checkpoint inside a checkpoint"
    SECOND_ORDER = "backward(create_graph=True): gradients that can be differentiated again"
    SECOND_ORDER_CHECKPOINT = "second order through a checkpoint"
    CAPTURES = "captured leaf tensors of a checkpointed function get their gradient"
    KEPT_BYTES = "kept_bytes counts the storages held for backward"
    LAZY_LAYERS = "layers whose parameters are created by the first call"
    COMPILED_STEP = "collector, checkpoint and microbatch inside a compiled function"
    OWN_GENERATORS = "random generators other than the global one"
    MIXED_PRECISION = "an automatic mixed-precision context of the framework"


class Guarantee(Enum):
    """Something noticed or kept; a backend states what happens, and the suite asserts exactly that.

    The value in ``BackendSpec.guarantees`` is ``"kept"`` (the right value), the name of an exception class of
    ``unigrad.errors``, or ``"undetected"``.
    """

    STALE_NATIVE = "a parameter changed in place by the framework's own optimizer between forward and backward"
    STALE_HIDDEN = "a parameter changed behind the framework's version counter (torch: through .data)"
    SHARED_TRUNK = "a trunk that another loss of another collector released"
    INDEPENDENT_RELEASE = "a graph independent of a released one stays usable"
    AMBIENT_GRAPH = "a loss recorded before the collector was entered"
    BITEXACT_SHARING = "checkpointed gradients are bit-equal also where a tensor is used several times"
    THREADS = "collectors in several threads give the serial result"

    __hash__ = object.__hash__  # that of Enum runs in Python, and every collector that opens looks one up


@dataclass(frozen=True)
class BackendSpec:
    """The declaration of one backend.

    Parameters
    ----------
    name
        Name of the backend, equal to the name of its entry point.
    framework
        Import name of the framework; ``"numpy"`` for the reference.
    install
        The command that installs the framework.
    package
        Import name of the package that holds the modules of the backend.
    minimum
        Oldest supported version of the framework.
    capabilities
        Declared operations.
    guarantees
        What happens, per guarantee.
    dtypes
        Names of the dtypes that get gradients, the first one being the default, e.g. ``("float32", "float64")``.
    distribution
        Name of the framework's distribution, where it differs from the import name.
    after
        Frameworks (import names) after which this one must not be imported into the same process.
    random_sources
        Names of the random operations that ``snapshot`` and ``restore`` cover.
    quiet
        Environment variables that keep the framework from logging while it is imported; the ``unigrad`` commands set those that are not
        set, the library itself sets none.
    """

    name: str
    framework: str
    install: str
    package: str
    minimum: str = "0"
    capabilities: frozenset[Capability] = frozenset()
    guarantees: Mapping[Guarantee, str] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("float32",)
    distribution: str | None = None
    after: tuple[str, ...] = ()
    random_sources: tuple[str, ...] = ()
    quiet: Mapping[str, str] = field(default_factory=dict)


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


class Graph(Protocol):
    """The recorded graph below some losses."""

    @property
    def leaves(self) -> Sequence[Any]:
        """Leaf tensors that the losses depend on, each once: the very objects the model holds."""

    @property
    def released(self) -> str | None:
        """Name of a released node, or None if the whole graph is alive."""


class Region(Protocol):
    """One call of a checkpointed function, as the core hands it to a backend."""

    @property
    def function(self) -> Callable[..., Any]:
        """The function to run, now and again in the recompute."""

    @property
    def args(self) -> tuple[Any, ...]:
        """Positional arguments, nested, holding tensors and others."""

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments, nested, holding tensors and others."""

    @property
    def parameters(self) -> Sequence[Any]:
        """Trainable parameters of the blocks of the region."""

    @property
    def places(self) -> Sequence[Entry]:
        """Every place in a native model that holds a parameter of these blocks, also a frozen one."""

    def let_go(self) -> None:
        """Drop ``args`` and ``kwargs``, for a backend that keeps what it needs of them by means of its own.

        Inside another region tensors among them are inner values of that one, which this object would keep alive.
        """

    def replay(self) -> AbstractContextManager[None]:
        """Surround a recompute: random state, buffers, modes and versions as they were at the forward.

        Re-enterable: a new context manager on each call, several and nested recomputes.
        """

    def finish(self, outputs: Any) -> None:
        """Take the fingerprint of the forward's outputs; the backend calls it right after the forward."""

    def check(self, outputs: Any) -> None:
        """Raise ``RecomputeMismatchError`` unless the recomputed outputs are those of the forward."""


class Meter(Protocol):
    """Result of a measurement of kept bytes."""

    @property
    def bytes(self) -> int:
        """Bytes held for backward when the measured part ended."""


class RecordingRegion(Protocol):
    """What ``open_region`` returns: it takes note of the leaves that recorded operations use."""

    def expect(self, leaves: Sequence[Any], others: bool) -> None:
        """Take note of the next use of each of these leaves, also of those used before.

        ``others`` asks for every other trainable leaf too, from now on: some parameters do not exist yet.
        """

    def used(self) -> Sequence[Any]:
        """Return the leaves used since the last call, each at least once; expected ones, and maybe more."""


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


class TapeModule(Protocol):
    """``tape``: record, which parameters a loss reaches, vector-Jacobian product, release."""

    def engine(self, model: Any, structure: Structure) -> str:
        """Name of the engine that serves this (not unwrapped) model, ``"pure"`` by default; ``UnsupportedError`` for what it cannot serve.

        ``model`` is None for a block made of a mapping of tensors; ``structure`` is the present one of the block.
        """

    def open_region(self) -> RecordingRegion:
        """Start recording for this thread.

        Called once per thread by the core, however many collectors are open. Raises if recording is impossible here (inside a
        compiled step).
        """

    def close_region(self, region: Any) -> None:
        """Undo ``open_region``."""

    def is_recording(self) -> bool:
        """Whether operations on trainable tensors are recorded in this thread now."""

    def no_record(self) -> AbstractContextManager[Any]:
        """Run without recording in this thread."""

    def in_recompute(self) -> bool:
        """Whether a checkpoint is being recomputed in this thread now."""

    def trace(self, losses: Sequence[Any]) -> Graph:
        """Walk the graph below the losses; changes nothing. ``NoGraphError`` if a loss has no graph."""

    def vjp(
        self, graph: Graph, cotangents: Sequence[Any | None], targets: Sequence[Any], *, retain: bool, create: bool
    ) -> list[Any | None]:
        """Return the vector-Jacobian product for each target, None where not reached; native ``.grad`` is untouched.

        Targets are leaves or watched tensors. A cotangent is None for a loss of one element. Only what leads to a target is computed.
        Results may share memory with each other (the core copies before handing out) but not with anything else that
        is written later. On error nothing has changed; a changed saved value is ``StaleGraphError``, a released part
        ``GraphReleasedError``.
        """

    def release(self, graph: Graph) -> None:
        """Mark every node of the graph, leaves excepted, as released and free what it saved where the framework allows."""

    def watch(self, tensor: Any) -> Any:
        """Return a new tensor of the same values, needing a gradient, still connected to the tensor's own graph; alters nothing."""

    def native_gradient(self, parameter: Any) -> Any | None:
        """Return the gradient where the framework's own tools look."""

    def set_native_gradient(self, parameter: Any, gradient: Any | None) -> None:
        """Put the gradient (not copied) where the framework's own tools look."""


class Engine(Protocol):
    """What differentiates for a collector: the module ``tape`` itself, or a :class:`NativeEngine`."""

    def trace(self, losses: Sequence[Any]) -> Graph:
        """See :meth:`TapeModule.trace`."""

    def vjp(
        self, graph: Any, cotangents: Sequence[Any | None], targets: Sequence[Any], *, retain: bool, create: bool
    ) -> list[Any | None]:
        """See :meth:`TapeModule.vjp`."""

    def release(self, graph: Any) -> None:
        """See :meth:`TapeModule.release`."""


class NativeEngine(Engine, Protocol):
    """An engine that lets the framework write gradients where its own tools look, and takes them from there.

    It serves one collector. A backend whose ``tape.engine`` names another engine than ``"pure"`` may have a function ``native()`` in
    its module ``tape`` that returns one; without it the functions of ``tape`` serve every engine. All that the protocol of
    ``tape`` promises holds: native gradients are afterwards as they were, and on error nothing has changed.
    """

    def enter(self, leaves: Sequence[Any]) -> None:
        """Begin to watch forwards of a block with these leaves; called when the collector is entered."""

    def close(self) -> None:
        """Undo ``enter``; what was collected stays."""

    def begin(self, leaves: Sequence[Any], accumulate: str, parameters: bool, weight: float | None) -> None:
        """Be told of the backward that follows: the block's leaves, the collector's mode, whether parameter gradients are wanted.

        ``UnsupportedError`` or ``UnreducedError`` for one that it cannot serve.
        """

    def require_reduced(self) -> None:
        """Raise ``UnreducedError`` if some of the gradients so far have not been exchanged between processes."""

    def forget(self) -> None:
        """Drop what was collected and not yet returned."""


class CheckpointModule(Protocol):
    """``checkpoint``: recompute by the framework's own means."""

    def run(self, region: Region) -> Any:
        """Run the region so that only inputs, outputs and what the region object holds are kept until backward.

        Calls ``region.function`` once now, ``region.finish(outputs)`` after it, and in a backward that needs the inner
        values: ``with region.replay(): outputs = function(...)`` in the forward's mixed-precision context, then
        ``region.check(outputs)``. Exceptions of the function keep their type. Raises ``CapturedTensorError`` at the forward
        for a tensor that needs a gradient, is no leaf, and is neither an argument nor made inside, ``CreatedParameterError`` for a
        parameter that the function creates again in the recompute.
        """

    def fingerprint(self, tensor: Any) -> Hashable:
        """Return a small value that differs, with near certainty, if any bit of the tensor differs; sensitive to position."""


class RngModule(Protocol):
    """``rng``: the framework's global random state and generators."""

    def seed(self, seed: int) -> None:
        """Seed the framework's global random state."""

    def snapshot(self) -> Any:
        """Return the framework's global random state, cheap enough to take once per checkpoint."""

    def restore(self, state: Any) -> None:
        """Set the framework's global random state."""

    def is_generator(self, obj: object) -> bool:
        """Whether ``obj`` is a native random generator."""

    def generator_state(self, generator: Any) -> Any:
        """Return the state of a native generator."""

    def set_generator_state(self, generator: Any, state: Any) -> None:
        """Set the state of a native generator."""

    def to_portable(self, state: Any) -> Any:
        """Return a snapshot as a 1-D uint8 NumPy array, for saving."""

    def from_portable(self, array: Any) -> Any:
        """Return the snapshot of which ``to_portable`` made the array."""


class OptimizerModule(Protocol):
    """``optimizer``: apply gradients; state only for what is registered."""

    def is_optimizer(self, obj: object) -> bool:
        """Whether ``obj`` is a native optimizer."""

    def create(self, factory: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
        """Return the native optimizer that ``factory`` makes for the given native parameters."""

    def extend(self, optimizer: Any, parameters: Mapping[str, Any]) -> None:
        """Make the native optimizer serve more parameters, with the settings of its factory."""

    def step(self, optimizer: Any, gradients: Sequence[tuple[Any, Any | None]]) -> None:
        """Do one native step with ``(parameter, gradient)`` pairs; a parameter with None does not move.

        The framework's own gradient slots (``.grad``) are afterwards as they were.
        """

    def state_of(self, optimizer: Any, parameter: Any) -> Mapping[str, Any]:
        """Return the state that the optimizer holds for one parameter, tensors and scalars by name; empty if none.

        For None as parameter: what belongs to no single one and changes from step to step, e.g. rates that a schedule sets.
        """

    def set_state_of(self, optimizer: Any, parameter: Any, state: Mapping[str, Any]) -> None:
        """Put back what ``state_of`` returned (tensors and scalars may come as NumPy arrays); never called with nothing to put."""


class MemoryModule(Protocol):
    """``memory``: bytes held for backward."""

    def measure(self, held: Sequence[Any]) -> AbstractContextManager[Meter]:
        """Count the bytes of distinct storages made inside the ``with`` and still alive, for whatever reason, when it ends.

        ``held`` (parameters, buffers) is not counted, nor is anything that existed before. Raises ``UnsupportedError`` where it
        cannot count.
        """


class Backend(Protocol):
    """A loaded backend: the specification and its modules."""

    @property
    def spec(self) -> BackendSpec:
        """The declaration."""

    @property
    def version(self) -> str:
        """Version of the framework."""

    @property
    def block(self) -> BlockModule:
        """Models and tensors."""

    @property
    def tape(self) -> TapeModule:
        """Recording and vector-Jacobian products."""

    @property
    def checkpoint(self) -> CheckpointModule:
        """Recompute."""

    @property
    def rng(self) -> RngModule:
        """Random state."""

    @property
    def optimizer(self) -> OptimizerModule:
        """Optimizers."""

    @property
    def memory(self) -> MemoryModule:
        """Kept bytes."""

    def require(self, capability: Capability) -> None:
        """Raise ``UnsupportedError`` unless the backend declares the capability."""
