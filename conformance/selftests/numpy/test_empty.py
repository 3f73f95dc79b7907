"""Operations and layers of the NumPy backend on arrays without elements: empty results, sums of nothing, no warnings."""

import numpy as np
import pytest
from unigrad_numpy import nn, ops
from unigrad_numpy.graph import vector_jacobian_product
from unigrad_numpy.tensor import Tensor

import unigrad

EACH = [
    ops.exp, ops.erf, ops.gelu, ops.relu, ops.relu6, ops.hardswish, ops.abs, ops.clip, ops.round,
    ops.sum, ops.norm, lambda x: ops.sum(x, 0), lambda x: ops.norm(x, -1), lambda x: ops.mean(x, ()),
    ops.softmax, ops.log_softmax, lambda x: ops.softmax(x, 0), lambda x: ops.log_softmax(x, 0), ops.layer_norm,
    lambda x: x.reshape(-1), lambda x: x.T, ops.flatten, lambda x: ops.stack([x, x], -1), lambda x: ops.concat([x, x]),
    lambda x: ops.split(x, 1)[0], lambda x: ops.pad(x, [(1, 1)] * x.ndim), lambda x: ops.broadcast_to(x, (2, *x.shape)),
    lambda x: x[:1], lambda x: x[np.zeros(0, int)], lambda x: ops.where(x > 0, x, 2 * x), lambda x: ops.maximum(x, x * 2),
    lambda x: ops.dropout(x, 0.5), lambda x: ops.mse(x[:, None], 2 * x[:, None]) if x.size else ops.sum(x),
]  # fmt: skip
JOINED = [
    (ops.linear, [(4, 0), (2, 0), (2,)], (4, 2)),
    (ops.linear, [(4, 0), (2, 0)], (4, 2)),
    (ops.linear, [(4, 3), (0, 3), (0,)], (4, 0)),
    (ops.linear, [(0, 3), (2, 3), (2,)], (0, 2)),
    (ops.linear, [(2, 0, 3), (2, 3), (2,)], (2, 0, 2)),
    (ops.linear, [(0,), (2, 0)], (2,)),
    (ops.linear, [(3,), (0, 3), (0,)], (0,)),
    (ops.matmul, [(0, 3), (3, 2)], (0, 2)),
    (ops.matmul, [(3, 0), (0, 2)], (3, 2)),
    (ops.matmul, [(3, 2), (2, 0)], (3, 0)),
    (ops.matmul, [(2, 3, 4), (4, 0)], (2, 3, 0)),
    (ops.matmul, [(2, 3, 0), (0, 4)], (2, 3, 4)),
    (ops.matmul, [(2, 0, 3), (3, 4)], (2, 0, 4)),
    (ops.matmul, [(0, 2, 3), (3, 4)], (0, 2, 4)),
    (ops.matmul, [(2, 3, 0), (0,)], (2, 3)),
    (ops.matmul, [(0,), (0, 3)], (3,)),
    (ops.matmul, [(0,), (0,)], ()),
    (ops.matmul, [(5, 0, 3, 2), (0, 2, 4)], (5, 0, 3, 4)),
    (ops.conv2d, [(0, 3, 5, 5), (4, 3, 3, 3), (4,)], (0, 4, 3, 3)),
    (lambda x, w: ops.conv2d(x, w, padding=1, stride=2), [(0, 3, 5, 5), (4, 3, 3, 3)], (0, 4, 3, 3)),
    (ops.conv2d, [(2, 0, 5, 5), (4, 0, 3, 3), (4,)], (2, 4, 3, 3)),
    (ops.conv2d, [(2, 3, 5, 5), (0, 3, 3, 3), (0,)], (2, 0, 3, 3)),
    (ops.conv_transpose2d, [(0, 3, 5, 5), (3, 4, 3, 3), (4,)], (0, 4, 7, 7)),
    (ops.conv_transpose2d, [(2, 0, 5, 5), (0, 4, 3, 3), (4,)], (2, 4, 7, 7)),
    (ops.conv_transpose2d, [(2, 3, 5, 5), (3, 0, 3, 3), (0,)], (2, 0, 7, 7)),
    (lambda x: ops.max_pool2d(x, 2, padding=1), [(0, 3, 4, 4)], (0, 3, 3, 3)),
    (lambda x: ops.max_pool2d(x, 2), [(2, 0, 4, 4)], (2, 0, 2, 2)),
    (lambda x: ops.avg_pool2d(x, 2), [(0, 3, 4, 4)], (0, 3, 2, 2)),
    (ops.batch_norm, [(0, 3), (3,), (3,)], (0, 3)),
    (ops.batch_norm, [(2, 0, 4, 4), (0,), (0,)], (2, 0, 4, 4)),
    (ops.layer_norm, [(0, 3), (3,), (3,)], (0, 3)),
    (ops.layer_norm, [(3, 0), (0,), (0,)], (3, 0)),
    (ops.attention, [(2, 3, 4), (2, 0, 4), (2, 0, 5)], (2, 3, 5)),
    (ops.attention, [(2, 0, 4), (2, 3, 4), (2, 3, 5)], (2, 0, 5)),
    (lambda t: ops.take(t, np.zeros((2, 0), int)), [(3, 2)], (2, 0, 2)),
    (lambda t: ops.take(t, np.zeros(2, int)), [(3, 0)], (2, 0)),
    (lambda x: ops.cross_entropy(x, np.zeros(0, int), "sum"), [(0, 4)], ()),
    (lambda x: ops.cross_entropy(x, np.zeros(0, int), "none"), [(0, 0)], (0,)),
    (lambda x: ops.max(x, 1), [(0, 3)], (0,)),
    (lambda x: ops.mean(x, 1), [(0, 3)], (0,)),
]  # fmt: skip


def check(run, shapes, dtype):
    """Compare gradients with differences; all that depends on an element here is linear in it, so that those are exact."""
    arrays = [np.ones(shape, dtype) for shape in shapes]
    leaves = [Tensor(array, requires_grad=True) for array in arrays]
    out = run(*leaves)
    found = vector_jacobian_product([out], [np.ones(out.shape, dtype)], leaves)
    assert out.dtype == dtype
    for place, (gradient, array) in enumerate(zip(found, arrays, strict=True)):
        assert gradient.shape == array.shape
        assert gradient.dtype == dtype
        for index in np.ndindex(*array.shape):
            moved = [Tensor(one) for one in arrays]
            moved[place][index] = 2.0
            assert gradient[index] == (run(*moved).data - out.data).sum()
    return out


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("run", "shapes", "expected"), JOINED)
def test_shapes_without_elements(run, shapes, expected, dtype):
    assert check(run, shapes, dtype).shape == expected


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3)])
def test_no_elements_in_operations_of_one_tensor(shape):
    for run in EACH:
        check(run, [shape], np.float32)


def test_a_maximum_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no elements"):
        ops.max(Tensor(np.ones((3, 0))), 1)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: nn.Linear(0, 3), (2, 0)),
        (lambda: nn.Linear(3, 0), (2, 3)),
        (lambda: nn.Linear(3, 2), (0, 3)),
        (lambda: nn.LazyDense(3), (2, 0)),
        (lambda: nn.Conv2d(3, 4, 3), (0, 3, 5, 5)),
        (lambda: nn.ConvTranspose2d(3, 4, 3), (0, 3, 5, 5)),
        (lambda: nn.LayerNorm(3), (0, 3)),
    ],
)
def test_a_step_of_a_layer_without_elements(layer, shape):
    model = layer()
    out = model(Tensor(np.zeros(shape, np.float32)))
    with unigrad.GradientCollector(model) as collector:
        collector.backward(model(Tensor(np.zeros(shape, np.float32))).sum())
    # The result is linear in the bias and, for an input of zeros, depends on nothing else.
    for name, gradient in collector.gradients.items():
        expected = out.size / out.shape[1] if name == "bias" and out.size else 0
        assert np.array_equal(gradient.numpy(), np.full(gradient.shape, expected, np.float32))
