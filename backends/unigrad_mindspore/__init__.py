"""Declaration of the MindSpore backend; importing it imports no framework."""

from __future__ import annotations

from unigrad.protocols import BackendSpec, Capability, Guarantee, hookimpl


@hookimpl
def unigrad_backend() -> BackendSpec:
    """Return the declaration of the backend."""
    return BackendSpec(
        name="mindspore",
        framework="mindspore",
        install="pip install 'unigrad[mindspore]'",
        package="unigrad_mindspore",
        minimum="2.10",
        capabilities=frozenset(
            {
                Capability.NESTED_CHECKPOINT,
                Capability.CAPTURES,
                Capability.KEPT_BYTES,
                Capability.SECOND_ORDER,
            }
        ),
        guarantees={
            Guarantee.STALE_NATIVE: "undetected",
            Guarantee.STALE_HIDDEN: "undetected",
            Guarantee.SHARED_TRUNK: "GraphReleasedError",
            Guarantee.INDEPENDENT_RELEASE: "kept",
            Guarantee.AMBIENT_GRAPH: "NoGraphError",
            Guarantee.BITEXACT_SHARING: "kept",
            Guarantee.THREADS: "UnsupportedError",
        },
        dtypes=("float32", "float64"),
        after=("paddle",),
        random_sources=("dropout", "normal", "uniform"),
        quiet={"GLOG_v": "3"},
    )
