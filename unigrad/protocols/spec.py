"""What a backend declares of itself: the framework, what it can do, and what happens where it can not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["BackendSpec", "Capability", "Guarantee"]


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
