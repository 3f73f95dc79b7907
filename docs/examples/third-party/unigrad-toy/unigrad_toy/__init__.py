"""The toygrad backend of unigrad: what it declares. Imports no framework."""

from unigrad.protocols import BackendSpec, Capability, Guarantee, hookimpl


@hookimpl
def unigrad_backend() -> BackendSpec:
    """Declare the backend."""
    return BackendSpec(
        name="toy",
        framework="toygrad",
        install="pip install 'unigrad-toy[toygrad]'",
        package="unigrad_toy",
        minimum="1.0",
        capabilities=frozenset({Capability.NESTED_CHECKPOINT, Capability.CAPTURES}),
        guarantees={
            Guarantee.STALE_NATIVE: "StaleGraphError",
            Guarantee.STALE_HIDDEN: "undetected",
            Guarantee.SHARED_TRUNK: "GraphReleasedError",
            Guarantee.INDEPENDENT_RELEASE: "kept",
            Guarantee.AMBIENT_GRAPH: "kept",
            Guarantee.BITEXACT_SHARING: "kept",
            Guarantee.THREADS: "UnsupportedError",
        },
        dtypes=("float32", "float64"),
        random_sources=("normal", "uniform", "dropout"),
    )
