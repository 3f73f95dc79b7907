"""Every operation of the NumPy backend: against central differences, against HIPS autograd, in both dtypes (clause X4)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import autograd
import autograd.numpy as anp
import numpy as np
import pytest
from unigrad_numpy import ops
from unigrad_numpy.graph import Saved, base_of, vector_jacobian_product, walk
from unigrad_numpy.tensor import Tensor

EPS = np.finfo(np.float64).eps


@dataclass
class Case:
    """An operation, inputs where it is smooth and well-conditioned, and what HIPS autograd calls it (None: it has no such)."""

    name: str
    run: Callable[..., Any]
    inputs: tuple[np.ndarray, ...]
    reference: Callable[..., Any] | None = None


def draw(*shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return np.random.default_rng(sum(shape) + len(shape)).uniform(low, high, shape)


def spread(*shape: int) -> np.ndarray:
    """Distinct values 0.37 apart in shuffled order, none of them near 0, +-3 or 6: no kink, no tie."""
    values = 0.37 * (np.arange(int(np.prod(shape))) - int(np.prod(shape)) // 2) + 0.11
    return np.random.default_rng(0).permutation(values).reshape(shape)


X, Y, ROW, COLUMN, POSITIVE = draw(3, 4), draw(3, 4) + 5, draw(4), draw(3, 1), draw(3, 4, low=0.5, high=3.0)
IMAGES, IDS = draw(2, 3, 6, 5), np.array([[0, 2], [2, 2]])
CONDITION = np.array([[True, False, True, False]] * 3)
LABELS = np.array([0, 3, 1])


def normalized(x: Any, axes: Any, epsilon: float) -> Any:
    mean = anp.mean(x, axis=axes, keepdims=True)
    return (x - mean) / anp.sqrt(anp.mean((x - mean) ** 2, axis=axes, keepdims=True) + epsilon)


def log_softmax(x: Any) -> Any:
    return x - anp.log(anp.sum(anp.exp(x), axis=1, keepdims=True))


CASES = [
    Case("add", ops.add, (X, ROW), lambda x, y: x + y),
    Case("add_column", ops.add, (COLUMN, X), lambda x, y: x + y),
    Case("add_scalar", lambda x: 2 + x, (X,), lambda x: 2 + x),
    Case("sub", ops.sub, (X, COLUMN), lambda x, y: x - y),
    Case("sub_from_scalar", lambda x: 1.5 - x, (X,), lambda x: 1.5 - x),
    Case("mul", ops.mul, (X, ROW), lambda x, y: x * y),
    Case("mul_0d", ops.mul, (np.array(1.7), X), lambda x, y: x * y),
    Case("mul_itself", lambda x: x * x, (X,), lambda x: x * x),
    Case("div", ops.div, (X, Y), lambda x, y: x / y),
    Case("div_into_scalar", lambda x: 3.0 / x, (Y,), lambda x: 3.0 / x),
    Case("neg", ops.neg, (X,), lambda x: -x),
    Case("pow", ops.pow, (POSITIVE, ROW), lambda x, y: x**y),
    Case("pow_square", lambda x: x**2, (X,), lambda x: x**2),
    Case("pow_of_scalar", lambda x: 2.0**x, (X,), lambda x: 2.0**x),
    Case("matmul", ops.matmul, (X, draw(4, 2)), lambda x, y: x @ y),
    Case("matmul_vector_left", ops.matmul, (ROW, draw(4, 2)), lambda x, y: x @ y),
    Case("matmul_vector_right", ops.matmul, (X, ROW), lambda x, y: x @ y),
    Case("matmul_vectors", ops.matmul, (ROW, ROW + 1), lambda x, y: x @ y),
    Case("matmul_batched", ops.matmul, (draw(2, 3, 4), draw(2, 4, 2)), lambda x, y: x @ y),
    Case("matmul_shared_right", ops.matmul, (draw(2, 3, 4), draw(4, 2)), lambda x, y: x @ y),
    Case("matmul_shared_left", ops.matmul, (X, draw(2, 4, 2)), lambda x, y: x @ y),
    Case("matmul_broadcast", ops.matmul, (draw(2, 1, 3, 4), draw(5, 4, 2)), lambda x, y: x @ y),
    Case("matmul_batch_vector", ops.matmul, (draw(2, 3, 4), ROW), lambda x, y: x @ y),
    Case("matmul_vector_batch", ops.matmul, (ROW, draw(2, 4, 3)), lambda x, y: x @ y),
    Case("linear", ops.linear, (X, draw(2, 4), draw(2)), lambda x, w, b: x @ w.T + b),
    Case("linear_deep", ops.linear, (draw(2, 3, 4), draw(2, 4), draw(2)), lambda x, w, b: x @ w.T + b),
    Case("linear_vector", ops.linear, (ROW, draw(2, 4)), lambda x, w: x @ w.T),
    Case("exp", ops.exp, (X,), anp.exp),
    Case("log", ops.log, (POSITIVE,), anp.log),
    Case("sqrt", ops.sqrt, (POSITIVE,), anp.sqrt),
    Case("tanh", ops.tanh, (X,), anp.tanh),
    Case("sin", ops.sin, (X,), anp.sin),
    Case("cos", ops.cos, (X,), anp.cos),
    Case("sigmoid", ops.sigmoid, (X,), lambda x: 1 / (1 + anp.exp(-x))),
    Case("erf", ops.erf, (X,)),
    Case("gelu", ops.gelu, (X,)),
    Case("silu", ops.silu, (X,), lambda x: x / (1 + anp.exp(-x))),
    Case("softplus", ops.softplus, (X,), lambda x: anp.log(1 + anp.exp(x))),
    Case("relu", ops.relu, (spread(3, 4),), lambda x: anp.maximum(x, 0)),
    Case("relu6", ops.relu6, (spread(5, 8),), lambda x: anp.clip(x, 0, 6)),
    Case("hardswish", ops.hardswish, (spread(5, 8),), lambda x: x * anp.clip(x + 3, 0, 6) / 6),
    Case("abs", ops.abs, (spread(3, 4),), anp.abs),
    Case("clip", lambda x: ops.clip(x, -1.05, 2.05), (spread(5, 8),), lambda x: anp.clip(x, -1.05, 2.05)),
    Case("clip_below", lambda x: ops.clip(x, low=0.0), (spread(3, 4),), lambda x: anp.maximum(x, 0)),
    Case("maximum", ops.maximum, (spread(3, 4), ROW), anp.maximum),
    Case("minimum", ops.minimum, (spread(3, 4), ROW), anp.minimum),
    Case("round", ops.round, (X,), lambda x: x * 0 + np.round(X)),
    Case("floor", ops.floor, (X,), lambda x: x * 0 + np.floor(X)),
    Case("sign", ops.sign, (spread(3, 4),), lambda x: x * 0 + np.sign(spread(3, 4))),
    Case("sum", ops.sum, (X,), anp.sum),
    Case("sum_axis", lambda x: ops.sum(x, 1), (draw(2, 3, 4),), lambda x: anp.sum(x, 1)),
    Case(
        "sum_axes", lambda x: ops.sum(x, (0, -1), True), (draw(2, 3, 4),), lambda x: anp.sum(x, (0, 2), keepdims=True)
    ),
    Case("mean", ops.mean, (X,), anp.mean),
    Case("mean_axis", lambda x: ops.mean(x, -1), (X,), lambda x: anp.mean(x, -1)),
    Case("max", ops.max, (spread(3, 4),), anp.max),
    Case("max_axis", lambda x: ops.max(x, 0), (spread(3, 4),), lambda x: anp.max(x, 0)),
    Case("min_axis", lambda x: ops.min(x, 1, True), (spread(3, 4),), lambda x: anp.min(x, 1, keepdims=True)),
    Case("norm", ops.norm, (X,), lambda x: anp.sqrt(anp.sum(x * x))),
    Case("norm_axis", lambda x: ops.norm(x, 1), (X,), lambda x: anp.sqrt(anp.sum(x * x, 1))),
    Case("softmax", ops.softmax, (X,), lambda x: anp.exp(log_softmax(x))),
    Case("softmax_axis", lambda x: ops.softmax(x, 0), (X,), lambda x: anp.exp(log_softmax(x.T)).T),
    Case("log_softmax", ops.log_softmax, (X,), log_softmax),
    Case("reshape", lambda x: ops.reshape(x, (2, -1)), (X,), lambda x: anp.reshape(x, (2, -1))),
    Case("reshape_transposed", lambda x: x.T.reshape(12), (X,), lambda x: anp.reshape(x.T, 12)),
    Case("flatten", ops.flatten, (draw(2, 3, 4),), lambda x: anp.reshape(x, (2, 12))),
    Case("transpose", lambda x: x.transpose(2, 0, 1), (draw(2, 3, 4),), lambda x: anp.transpose(x, (2, 0, 1))),
    Case("swapaxes", lambda x: x.swapaxes(0, -1), (draw(2, 3, 4),), lambda x: anp.swapaxes(x, 0, -1)),
    Case("broadcast_to", lambda x: ops.broadcast_to(x, (2, 3, 4)), (COLUMN,), lambda x: x * np.ones((2, 3, 4))),
    Case("concat", lambda *xs: ops.concat(xs, 1), (X, draw(3, 2)), lambda *xs: anp.concatenate(xs, 1)),
    Case("stack", lambda *xs: ops.stack(xs, 1), (X, Y), lambda *xs: anp.stack(xs, 1)),
    Case("split_first", lambda x: ops.split(x, 2, 1)[0], (X,), lambda x: x[:, :2]),
    Case("split_both", lambda x: ops.mul(*ops.split(x, (1, 2), 0)), (X,), lambda x: x[:1] * x[1:]),
    Case("pad", lambda x: ops.pad(x, ((1, 0), (2, 1))), (X,), lambda x: anp.pad(x, ((1, 0), (2, 1)), "constant")),
    Case("identity", ops.identity, (X,), lambda x: x * 1.0),
    Case("getitem_slices", lambda x: x[1:, ::-2], (X,), lambda x: x[1:, ::-2]),
    Case("getitem_element", lambda x: x[1, -1], (X,), lambda x: x[1, -1]),
    Case("getitem_new_axis", lambda x: x[None, ..., 0], (X,), lambda x: x[None, ..., 0]),
    Case("getitem_repeated", lambda x: x[[0, 2, 2]], (X,), lambda x: x[np.array([0, 2, 2])]),
    Case("getitem_pairs", lambda x: x[IDS, IDS], (X,), lambda x: x[IDS, IDS]),
    Case("getitem_mixed", lambda x: x[:, np.array([3, 3, 0])], (X,), lambda x: x[:, np.array([3, 3, 0])]),
    Case("getitem_mask", lambda x: x[CONDITION], (X,), lambda x: x[CONDITION]),
    Case("take", lambda x: ops.take(x, IDS), (X,), lambda x: x[IDS]),
    Case("where", lambda x, y: ops.where(CONDITION, x, y), (X, ROW), lambda x, y: anp.where(CONDITION, x, y + 0 * x)),
    Case("conv2d", ops.conv2d, (IMAGES, draw(4, 3, 3, 2), draw(4))),
    Case(
        "conv2d_strided",
        lambda x, w: ops.conv2d(x, w, stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
        (IMAGES, draw(2, 3, 3, 2)),
    ),
    Case("conv2d_ragged", lambda x, w: ops.conv2d(x, w, stride=2, padding=1), (IMAGES, draw(2, 3, 2, 2))),
    Case("conv_transpose2d", ops.conv_transpose2d, (IMAGES, draw(3, 2, 3, 2), draw(2))),
    Case(
        "conv_transpose2d_strided",
        lambda x, w: ops.conv_transpose2d(x, w, stride=(3, 2), padding=(1, 0), output_padding=(2, 1)),
        (IMAGES, draw(3, 2, 2, 3)),
    ),
    Case("max_pool2d", lambda x: ops.max_pool2d(x, 2), (spread(2, 3, 4, 6),)),
    Case("max_pool2d_overlapping", lambda x: ops.max_pool2d(x, 3, 2, 1), (spread(2, 2, 5, 6),)),
    Case("avg_pool2d", lambda x: ops.avg_pool2d(x, (2, 3), 2), (IMAGES,)),
    Case(
        "batch_norm",
        ops.batch_norm,
        (IMAGES, draw(3), draw(3) + 1),
        lambda x, w, b: normalized(x, (0, 2, 3), 1e-5) * w[:, None, None] + b[:, None, None],
    ),
    Case(
        "batch_norm_table",
        lambda x, w: ops.batch_norm(x, w),
        (draw(5, 3), draw(3)),
        lambda x, w: normalized(x, (0,), 1e-5) * w,
    ),
    Case(
        "batch_norm_inference",
        lambda x, w, b: ops.batch_norm(x, w, b, np.array([1.0, 2.0, 3.0]), np.array([0.5, 1.0, 2.0])),
        (draw(5, 3), draw(3), draw(3) + 1),
        lambda x, w, b: (x - np.array([1.0, 2.0, 3.0])) / np.sqrt(np.array([0.5, 1.0, 2.0]) + 1e-5) * w + b,
    ),
    Case(
        "layer_norm",
        ops.layer_norm,
        (draw(2, 3, 4), draw(4), draw(4) + 1),
        lambda x, w, b: normalized(x, (2,), 1e-5) * w + b,
    ),
    Case(
        "layer_norm_two_axes",
        lambda x, w: ops.layer_norm(x, w, axes=2),
        (draw(2, 3, 1), draw(3, 1)),
        lambda x, w: normalized(x, (1, 2), 1e-5) * w,
    ),
    Case(
        "cross_entropy",
        lambda x: ops.cross_entropy(x, Tensor(LABELS)),
        (X,),
        lambda x: -anp.mean(log_softmax(x)[np.arange(3), LABELS]),
    ),
    Case(
        "cross_entropy_none",
        lambda x: ops.cross_entropy(x, Tensor(LABELS), "none"),
        (X,),
        lambda x: -log_softmax(x)[np.arange(3), LABELS],
    ),
    Case("cross_entropy_images", lambda x: ops.cross_entropy(x, IDS[:, :1], "sum"), (draw(2, 3, 1),)),
    Case("mse", ops.mse, (X, Y), lambda x, y: anp.mean((x - y) ** 2)),
    Case("attention", ops.attention, (draw(2, 3, 4), draw(2, 5, 4), draw(2, 5, 2))),
    Case(
        "attention_masked",
        lambda q, k, v: ops.attention(q, k, v, np.tril(np.ones((3, 3), bool))),
        (draw(3, 4), draw(3, 4) + 1, draw(3, 2)),
    ),
    Case("reused", lambda x: x * ops.sum(x) + ops.exp(x), (X,), lambda x: x * anp.sum(x) + anp.exp(x)),
]
NOT_DIFFERENTIABLE = {
    "argmax", "equal", "greater", "greater_equal", "less", "less_equal", "not_equal", "stop_gradient",
    "normal", "uniform", "generator", "seed", "get_state", "set_state", "plain_key", "batch_statistics",
}  # fmt: skip
ELSEWHERE = {"cast", "dropout"}

each_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


def gradients(case: Case, dtype: Any = np.float64) -> tuple[Tensor, np.ndarray, list[Any]]:
    leaves = [Tensor(array.astype(dtype), requires_grad=True) for array in case.inputs]
    out = case.run(*leaves)
    cotangent = np.random.default_rng(1).uniform(0.5, 1.5, out.shape).astype(dtype)
    return out, cotangent, vector_jacobian_product([out], [cotangent], leaves)


def test_every_operation_has_a_case() -> None:
    covered = {case.name for case in CASES}
    names = set(ops.__all__) - NOT_DIFFERENTIABLE - ELSEWHERE
    assert not {name for name in names if not any(one == name or one.startswith(name + "_") for one in covered)}


@each_case
def test_central_differences(case: Case) -> None:
    """The error of a central difference is its third-order term, measured by doubling the step, plus rounding."""
    _, cotangent, found = gradients(case)
    step = 1e-5
    for place, (array, gradient) in enumerate(zip(case.inputs, found, strict=True)):
        for index in np.ndindex(*array.shape):

            def value(shift: float, place: int = place, index: Any = index) -> tuple[float, float]:
                moved = [Tensor(one) for one in case.inputs]
                moved[place]._array[index] += shift
                terms = cotangent * case.run(*moved)._array
                return float(terms.sum()), float(np.abs(terms).sum())

            (right, size), (left, _) = value(step), value(-step)
            wide = (value(2 * step)[0] - value(-2 * step)[0]) / (4 * step)
            narrow = (right - left) / (2 * step)
            # Doubling the step makes the third-order term four times as large; the difference is three times what is left.
            # Rounding: each of the terms that are summed may be off by a few eps (16 allows for what an operation does inside).
            bound = abs(wide - narrow) + 16 * EPS * (size + 1) / step
            assert abs(gradient[index] - narrow) <= bound, (place, index)


@pytest.mark.parametrize("case", [c for c in CASES if c.reference], ids=[c.name for c in CASES if c.reference])
def test_hips_autograd(case: Case) -> None:
    out, cotangent, found = gradients(case)
    vjp, value = autograd.core.make_vjp(lambda xs: case.reference(*xs), autograd.builtins.tuple(tuple(case.inputs)))
    np.testing.assert_allclose(out.numpy(), value, rtol=1e-12, atol=1e-13)
    for ours, theirs in zip(found, vjp(cotangent), strict=True):
        assert np.abs(ours - theirs).max() <= 1e-12 * np.abs(theirs).max()


@each_case
def test_float32_stays_float32(case: Case) -> None:
    """The same in single precision: no dtype of an inner result differs, and values agree to its rounding."""
    _, _, exact = gradients(case)
    out, _, found = gradients(case, np.float32)
    assert out.dtype == np.float32
    for node in walk([out]).nodes:
        assert all(item is None or item.array.dtype != np.float64 for item in node.saved), node
    for single, double in zip(found, exact, strict=True):
        assert single.dtype == np.float32
        # At most some hundred terms are summed; each adds a rounding step of single precision.
        assert np.abs(single - double).max() <= 300 * np.finfo(np.float32).eps * max(np.abs(double).max(), 1)


@each_case
def test_gradients_share_no_memory(case: Case) -> None:
    out, cotangent, found = gradients(case)
    kept = [item.array for node in walk([out]).nodes for item in node.saved if isinstance(item, Saved)]
    others = [cotangent, out._array, *kept]
    for place, gradient in enumerate(found):
        assert gradient.flags.owndata or base_of(gradient).size == gradient.size
        assert gradient.flags.c_contiguous
        assert gradient.flags.writeable
        for other in others + found[:place]:
            assert not np.shares_memory(gradient, other)


@each_case
def test_zero_axes_and_repeats(case: Case) -> None:
    """A second product over the same graph gives the same bits: nothing was used up or written."""
    leaves = [Tensor(array, requires_grad=True) for array in case.inputs]
    out = case.run(*leaves)
    cotangent = np.ones(out.shape)
    first = vector_jacobian_product([out], [cotangent], leaves)
    second = vector_jacobian_product([out], [cotangent], leaves)
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    "operation", [ops.exp, ops.tanh, ops.relu, ops.softplus, ops.gelu, ops.sum, ops.mean, ops.norm]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tensors_without_axes(operation: Any, dtype: Any) -> None:
    """NumPy turns these into scalars, which mix with Python floats differently from arrays."""
    x = Tensor(np.array(0.7, dtype), requires_grad=True)
    out = operation(x * 2.0 + 1.0)
    (gradient,) = vector_jacobian_product([out], [np.ones((), dtype)], [x])
    assert out.dtype == gradient.dtype == dtype
    assert gradient.shape == ()


def test_cast_returns_the_gradient_to_the_first_dtype() -> None:
    x = Tensor(np.array([1.5, 2.5], np.float32), requires_grad=True)
    out = ops.cast(x, np.float64) * Tensor(np.array([2.0, 3.0]))
    (gradient,) = vector_jacobian_product([out], [np.ones(2)], [x])
    assert gradient.dtype == np.float32
    assert gradient.tolist() == [2.0, 3.0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dropout_passes_gradients_where_it_passed_values(dtype: Any) -> None:
    """Case 23: gradient times input is the output, element by element."""
    ops.seed(3)
    x = Tensor(np.arange(1, 101, dtype=dtype), requires_grad=True)
    out = ops.dropout(x, 0.25)
    (gradient,) = vector_jacobian_product([out], [np.ones(100, dtype)], [x])
    np.testing.assert_allclose(gradient * x.data, out.data, rtol=4 * np.finfo(dtype).eps)
    assert 0 < (gradient == 0).sum() < 100
    assert gradient.max() == dtype(1 / 0.75)
    assert ops.dropout(x, 0.25, training=False) is x


def test_seed_and_state_of_the_generator() -> None:
    ops.seed(7)
    first = [ops.normal((3,)).numpy(), ops.uniform((2,), np.float64).numpy()]
    ops.seed(7)
    second = [ops.normal((3,)).numpy()]
    middle = ops.get_state()
    second.append(ops.uniform((2,), np.float64).numpy())
    ops.set_state(middle)
    assert np.array_equal(ops.uniform((2,), np.float64).numpy(), first[1])
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_no_warning_leaves_a_backward() -> None:
    """A derivative that IEEE arithmetic makes infinite or NaN is a value, not a warning (pytest turns warnings into errors)."""
    x = Tensor(np.array([0.0, 1.0]), requires_grad=True)
    (gradient,) = vector_jacobian_product([ops.sqrt(x)], [np.ones(2)], [x])
    assert gradient.tolist() == [np.inf, 0.5]
    assert ops.log(x).numpy().tolist() == [-np.inf, 0.0]
    assert np.isnan(ops.log(-x).numpy()[1])
    assert (x / 0.0).numpy().tolist()[1] == np.inf
