"""Declaration of the PyTorch backend; importing it imports no framework."""

from __future__ import annotations

from unigrad.protocols import BackendSpec, Capability, Guarantee, hookimpl


@hookimpl
def unigrad_backend() -> BackendSpec:
    """Return the declaration of the backend."""
    return BackendSpec(
        name="torch",
        framework="torch",
        install="pip install 'unigrad[torch]'",
        package="unigrad_torch",
        minimum="2.13",
        capabilities=frozenset(Capability) - {Capability.COMPILED_STEP},
        guarantees={
            Guarantee.STALE_NATIVE: "StaleGraphError",
            Guarantee.STALE_HIDDEN: "undetected",
            Guarantee.SHARED_TRUNK: "GraphReleasedError",
            Guarantee.INDEPENDENT_RELEASE: "kept",
            Guarantee.AMBIENT_GRAPH: "kept",
            Guarantee.BITEXACT_SHARING: "kept",
            Guarantee.THREADS: "kept",
        },
        dtypes=("float32", "float64", "float16", "bfloat16"),
        random_sources=("dropout", "normal", "uniform", "own_normal"),
    )
