"""The parts of Paddle that have no public name, tested when loaded so that another version says what is missing."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import BuiltinFunctionType, ModuleType
from typing import Any

import paddle
from paddle import _C_ops
from paddle.base import core
from paddle.base.framework import EagerParamBase
from paddle.nn.layer.norm import BatchNorm, SpectralNorm, _BatchNormBase, _InstanceNormBase
from paddle.nn.layer.rnn import RNNBase, RNNCellBase

from unigrad.errors import UnsupportedError

__all__ = [
    "Generator",
    "GeneratorState",
    "Node",
    "Parameter",
    "RNNBase",
    "RNNCellBase",
    "SpectralNorm",
    "Tensor",
    "allocated",
    "batch_norms",
    "bump_version",
    "exchange_operations",
    "instance_norms",
    "is_initialized",
    "is_leaf_node",
    "node_of",
    "operations",
    "shares_memory",
    "shrink",
    "view",
    "wrap_methods",
]

Tensor = core.eager.Tensor
Parameter = EagerParamBase
Generator = core.Generator
GeneratorState = type(core.default_cpu_generator().get_state())
Node = type(paddle.to_tensor(1.0, stop_gradient=False).scale(2.0).grad_fn)

batch_norms = (_BatchNormBase, BatchNorm)
instance_norms = _InstanceNormBase

_table: dict[str, Any] = vars(_C_ops)
"""Every operation that Paddle's Python layer calls, by name; looked up at each call."""

_METHODS = (
    *(
        f"__{side}{name}__"
        for name in ("add", "sub", "mul", "truediv", "floordiv", "pow", "mod", "matmul")
        for side in ("", "r")
    ),
    *(f"__{name}__" for name in ("div", "rdiv", "gt", "ge", "lt", "le", "eq", "ne")),
    *("clone", "contiguous", "detach", "_getitem_dygraph", "_getitem_from_offset"),
)
"""Methods of a tensor that compute in C without the table."""

_LEAF = "GradNodeAccumulation"


def wrap_methods(wrapper: Callable[[Any], Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the methods of a tensor that compute in C, plain and wrapped, by name."""
    plain = {name: vars(Tensor)[name] for name in _METHODS if name in vars(Tensor)}
    return plain, {name: wrapper(method) for name, method in plain.items()}


def operations() -> dict[str, Any]:
    """Return the operations of the table that a model may call; the gradients of operations are called by the engine alone."""
    return {
        name: value
        for name, value in _table.items()
        if isinstance(value, BuiltinFunctionType) and not name.endswith("_grad")
    }


class _Exchanged(ModuleType):
    """Class of the module of operations while others stand for them; to put 900 into its place would take longer than a small step."""

    others: Mapping[str, Any] = {}

    def __getattribute__(self, name: str) -> Any:
        found = _Exchanged.others.get(name)
        return super().__getattribute__(name) if found is None else found


def exchange_operations(others: Mapping[str, Any] | None) -> None:
    """Have others stand for the operations of these names; None undoes it."""
    _Exchanged.others = others or {}
    _C_ops.__class__ = ModuleType if others is None else _Exchanged


def allocated() -> int:
    """Return the bytes that tensors of this process hold."""
    return int(core.host_memory_stat_current_value("Allocated", 0))


def bump_version(tensor: Any) -> None:
    """Count up the version that saved tensors are compared with; ``set_value`` and optimizers do not."""
    tensor._bump_inplace_version()


def view(tensor: Any) -> Any:
    """Return a tensor of its own over the same memory, recorded; Paddle has no view of nothing."""
    shape = tensor.shape
    return tensor.clone() if 0 in shape else _C_ops.view_shape(tensor, shape)


def shrink(view: Any) -> None:
    """Make a contiguous view one of its first element only; a hook of it may still return a gradient of the old shape."""
    view.get_tensor()._set_dims([1])


def shares_memory(left: Any, right: Any) -> bool:
    """Whether two tensors lie in one allocation."""
    return bool(left._is_shared_buffer_with(right))


def is_initialized(tensor: Any) -> bool:
    """Whether the tensor has values; one made under ``LazyGuard`` has none yet."""
    return bool(tensor._is_initialized())


def node_of(tensor: Any) -> Any | None:
    """Return the node of a tensor in the graph, that of a leaf too; None if there is no graph.

    Paddle 3.3.1 leaves one reference too many with each look at ``grad_fn``, which would keep the graph for good.
    """
    node = tensor.grad_fn
    if node is not None and _LOOK_LEAVES_REFERENCE:
        _drop_reference(node)
    return node


def _leaves_reference() -> bool:
    tensor = paddle.to_tensor(1.0, stop_gradient=False).scale(2.0)
    node = tensor.grad_fn
    before = sys.getrefcount(node)
    tensor.grad_fn  # noqa: B018  # the look itself is what is tried
    return sys.getrefcount(node) > before


_drop_reference = ctypes.pythonapi.Py_DecRef
_drop_reference.argtypes = [ctypes.py_object]
_drop_reference.restype = None
_LOOK_LEAVES_REFERENCE = _leaves_reference()


def is_leaf_node(node: Any) -> bool:
    """Whether a node of the graph is that of a leaf tensor."""
    return bool(node.name() == _LEAF)


def _holds_hook() -> bool:
    """Whether a hook of a node lives exactly as long as the node."""

    class Hook:
        def __call__(self, outputs: Any, inputs: Any) -> Any:
            return outputs

    tensor = paddle.to_tensor(1.0, stop_gradient=False).scale(2.0)
    hook = Hook()
    alive = weakref.ref(hook)
    node_of(tensor)._register_post_hook(hook)
    del hook
    held = alive() is not None
    del tensor
    return held and alive() is None


def _exchanges() -> bool:
    """Whether an operation is looked up at each call."""
    seen = []
    plain = _table["matmul"]
    exchange_operations({"matmul": lambda *args: seen.append(args) or plain(*args)})
    try:
        product = paddle.matmul(paddle.ones([1, 1]), paddle.ones([1, 1]))
    finally:
        exchange_operations(None)
    return bool(len(seen) == 1 and product.shape == [1, 1] and _C_ops.matmul is plain)


def _probe() -> Sequence[str]:
    """Return what is missing or acts otherwise."""
    missing = []

    def check(what: str, holds: Callable[[], bool]) -> None:
        try:
            good = holds()
        except Exception:
            good = False
        if not good:
            missing.append(what)

    leaf = paddle.to_tensor([1.0, 2.0], "float32", stop_gradient=False)
    product = leaf * leaf
    node = product.sum().grad_fn
    check("grad_fn.next_functions", lambda: node.next_functions[0] is product.grad_fn)
    check("one object per node", lambda: product.grad_fn is product.grad_fn)
    check("the node of a leaf", lambda: is_leaf_node(leaf.grad_fn) and leaf.grad_fn in product.grad_fn.next_functions)
    check("node_ptr", lambda: node.node_ptr() != leaf.grad_fn.node_ptr())
    check("_C_ops", lambda: len(operations()) > 800 and "matmul" in _table and _exchanges())
    check("methods of Tensor", lambda: {"__add__", "detach", "_getitem_dygraph"} <= vars(Tensor).keys())
    check("host_memory_stat_current_value", lambda: allocated() > 0)
    check("_register_post_hook", lambda: _holds_hook())
    check("_is_shared_buffer_with", lambda: shares_memory(leaf.detach(), leaf) and not shares_memory(product, leaf))
    check("Layer._build_once", lambda: callable(paddle.nn.Layer._build_once) and not paddle.nn.Layer()._built)
    check("_is_initialized", lambda: is_initialized(leaf))

    def bumps() -> bool:
        before = leaf.inplace_version
        bump_version(leaf)
        return bool(leaf.inplace_version == before + 1)

    def shrinks() -> bool:
        view = leaf.unsqueeze(0)
        shrink(view)
        view.register_hook(lambda gradient: paddle.to_tensor([[5.0, 6.0]], "float32"))
        (gradient,) = paddle.grad(view.sum(), leaf)
        return bool(view.shape == [1] and leaf.shape == [2] and gradient.tolist() == [5.0, 6.0])

    check("_set_dims", shrinks)
    check("_bump_inplace_version", bumps)
    return missing


_missing = _probe()
if _missing:
    raise UnsupportedError(
        f"paddle {paddle.__version__} lacks, or has changed, what this backend is built on: {', '.join(_missing)}. "
        "Install the version that is tested: paddlepaddle==3.3.1"
    )
