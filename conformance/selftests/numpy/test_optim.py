"""Optimizers of the NumPy backend: their formulas in exact arithmetic, and what happens without a gradient (clause R4)."""

from fractions import Fraction

import numpy as np
import pytest
from unigrad_numpy import optim
from unigrad_numpy.graph import vector_jacobian_product
from unigrad_numpy.tensor import Parameter, Tensor

GRADIENTS = [1.0, -2.0, 0.5, 3.0]


def run(optimizer, parameter, gradients):
    values = []
    for gradient in gradients:
        parameter.grad = None if gradient is None else Tensor(np.full(parameter.shape, gradient, parameter.dtype))
        optimizer.step()
        values.append(parameter.item())
    return values


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_stochastic_gradient_descent(momentum, decay):
    parameter = Parameter(np.array([2.0]))
    found = run(optim.SGD([parameter], lr=0.1, momentum=momentum, weight_decay=decay), parameter, GRADIENTS)
    value, buffer, expected = Fraction(2), None, []
    for gradient in GRADIENTS:
        direction = Fraction(gradient) + value * Fraction(decay)
        if momentum:
            buffer = direction if buffer is None else Fraction(momentum) * buffer + direction
            direction = buffer
        value -= Fraction(0.1) * direction
        expected.append(float(value))
    # A few roundings in each of four steps.
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_adamw():
    parameter = Parameter(np.array([2.0]))
    found = run(optim.AdamW([parameter], lr=0.1, weight_decay=0.1), parameter, GRADIENTS)
    value, mean, square, expected = 2.0, 0.0, 0.0, []
    for step, gradient in enumerate(GRADIENTS, 1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        value -= 0.1 * 0.1 * value
        value -= 0.1 * (mean / (1 - 0.9**step)) / ((square / (1 - 0.999**step)) ** 0.5 + 1e-8)
        expected.append(value)
    # The same formula in another order of operations.
    np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_one_update_for_a_window_of_parts():
    """Case 84: SGD on the mean of 12 samples, two epochs."""
    v = Parameter(np.array([1.0, 2.0]))
    optimizer = optim.SGD([v], lr=0.1, weight_decay=0.1)
    x = Tensor(np.arange(1.0, 13.0))
    for _ in range(2):
        residual = v[0] * x - v[1]
        loss = 0.01 * (residual * residual).mean()
        v.grad = Tensor(vector_jacobian_product([loss], [None], [v])[0])
        optimizer.step()
    np.testing.assert_allclose(v.data, [0.826116, 1.976932], atol=1e-6)


@pytest.mark.parametrize("make", [lambda p: optim.SGD(p, 0.1, 0.9, 0.1), lambda p: optim.AdamW(p, 0.1)])
def test_no_gradient_no_move_and_no_state(make):
    """Case 67: neither decay nor momentum."""
    used, unused = Parameter([1.0, 1.0]), Parameter([1.0])
    optimizer = make([used, unused])
    assert optimizer.state == {}
    used.grad = Tensor([1.0, 1.0])
    optimizer.step()
    assert list(optimizer.state) == [used]
    assert unused.data.tolist() == [1]
    assert unused.version == 0
    before = used.numpy()
    optimizer.zero_grad()
    assert used.grad is None
    optimizer.step()
    assert np.array_equal(used.data, before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("make", [lambda p: optim.SGD(p, 0.1, 0.9, 0.1), lambda p: optim.AdamW(p, 0.1)])
def test_dtype_version_and_shape_are_kept(make, dtype):
    parameter = Parameter(np.ones((), dtype))
    optimizer = make([parameter])
    run(optimizer, parameter, [1.0, 1.0])
    assert parameter.dtype == dtype
    assert parameter.version == 2
    state = [value for value in optimizer.state[parameter].values() if isinstance(value, np.ndarray)]
    assert state
    assert {array.dtype for array in state} == {np.dtype(dtype)}
    parameter.grad.assign(7.0)
    run(optimizer, parameter, [None])
    assert all(np.abs(array).max() < 7 for array in state)


def test_parameters_are_served_once():
    a, b = Parameter([1.0]), Parameter([1.0])
    optimizer = optim.SGD([a], lr=0.5)
    optimizer.add_parameters([b])
    assert run(optimizer, b, [1.0]) == [0.5]
    for wrong in ([a], [Parameter([1.0]) * 2.0], ["text"]):
        with pytest.raises(ValueError, match="optimizer"):
            optimizer.add_parameters(wrong)
    with pytest.raises(ValueError, match="twice"):
        optim.SGD([a, a])
    assert len(optimizer.parameters) == 2
