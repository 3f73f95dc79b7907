"""Declaration of the Paddle backend; importing it imports no framework."""

from __future__ import annotations

from unigrad.protocols import BackendSpec, Capability, Guarantee, hookimpl


@hookimpl
def unigrad_backend() -> BackendSpec:
    """Return the declaration of the backend."""
    return BackendSpec(
        name="paddle",
        framework="paddle",
        install="pip install 'unigrad[paddle]'",
        package="unigrad_paddle",
        minimum="3.3",
        capabilities=frozenset(
            {
                Capability.NESTED_CHECKPOINT,
                Capability.SECOND_ORDER,
                Capability.CAPTURES,
                Capability.KEPT_BYTES,
                Capability.LAZY_LAYERS,
            }
        ),
        guarantees={
            Guarantee.STALE_NATIVE: "undetected",
            Guarantee.STALE_HIDDEN: "undetected",
            Guarantee.SHARED_TRUNK: "GraphReleasedError",
            Guarantee.INDEPENDENT_RELEASE: "kept",
            Guarantee.AMBIENT_GRAPH: "kept",
            Guarantee.BITEXACT_SHARING: "undetected",
            Guarantee.THREADS: "UnsupportedError",
        },
        dtypes=("float32", "float64"),
        distribution="paddlepaddle",
        # measured with 3.3.1: libpaddle dies while it is loaded into a process that holds tensorflow
        after=("tensorflow",),
        random_sources=("dropout", "normal", "uniform"),
        quiet={"GLOG_minloglevel": "2"},
    )
