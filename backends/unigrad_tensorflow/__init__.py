"""Declaration of the TensorFlow backend (Keras 3 on TensorFlow, and plain ``tf.Module``); importing it imports no framework."""

from __future__ import annotations

from unigrad.protocols import BackendSpec, Capability, Guarantee, hookimpl


@hookimpl
def unigrad_backend() -> BackendSpec:
    """Return the declaration of the backend."""
    return BackendSpec(
        name="tensorflow",
        framework="tensorflow",
        install="pip install 'unigrad[tensorflow]'",
        package="unigrad_tensorflow",
        minimum="2.21",
        distribution="tensorflow-cpu",
        capabilities=frozenset(Capability) - {Capability.MIXED_PRECISION},
        guarantees={
            Guarantee.STALE_NATIVE: "kept",
            Guarantee.STALE_HIDDEN: "undetected",
            Guarantee.SHARED_TRUNK: "GraphReleasedError",
            Guarantee.INDEPENDENT_RELEASE: "GraphReleasedError",
            Guarantee.AMBIENT_GRAPH: "NoGraphError",
            Guarantee.BITEXACT_SHARING: "undetected",
            Guarantee.THREADS: "kept",
        },
        dtypes=("float32", "float64", "float16", "bfloat16"),
        random_sources=("dropout", "normal", "uniform", "own_normal"),
        quiet={"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"},
    )
