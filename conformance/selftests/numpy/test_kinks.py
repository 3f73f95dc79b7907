"""What the NumPy backend chooses where no derivative exists (clause X2; cases 106 to 109 and 114)."""

import numpy as np
import pytest
from unigrad_numpy import ops
from unigrad_numpy.graph import vector_jacobian_product
from unigrad_numpy.tensor import Tensor


def slope(function, *values):
    leaves = [Tensor(np.array(value, np.float64), requires_grad=True) for value in values]
    out = function(*leaves)
    found = vector_jacobian_product([out], [np.ones(out.shape)], leaves)
    return [gradient.tolist() for gradient in found] if len(found) > 1 else found[0].tolist()


@pytest.mark.parametrize(
    ("function", "x", "expected"),
    [
        (ops.relu, 0.0, 0.0),
        (ops.abs, 0.0, 0.0),
        (lambda x: ops.maximum(x, 0.0), 0.0, 0.5),
        (lambda x: ops.clip(x, low=0.0), 0.0, 1.0),
        (lambda x: ops.clip(x, high=2.0), 2.0, 1.0),
        (lambda x: ops.clip(x, high=2.0), 2.5, 0.0),
        (ops.relu6, 6.0, 0.0),
        (ops.relu6, 0.0, 0.0),
        (ops.hardswish, 3.0, 1.0),
        (ops.hardswish, -3.0, 0.0),
        (ops.sqrt, 0.0, np.inf),
        (lambda x: x**0.0, 0.0, 0.0),
        (ops.round, 0.5, 0.0),
        (ops.sign, 0.0, 0.0),
    ],
)
def test_kink(function, x, expected):
    assert slope(function, x) == expected


def test_pairwise_tie_is_halved():
    assert slope(ops.maximum, [1.0, 2.0], [1.0, 1.0]) == [[0.5, 1.0], [0.5, 0.0]]
    assert slope(ops.minimum, [1.0, 2.0], [1.0, 1.0]) == [[0.5, 0.0], [0.5, 1.0]]


def test_reduce_max_shares_equally():
    third = 1 / 3
    assert slope(ops.max, [1.0, 2.0, 2.0, 2.0]) == [0, third, third, third]
    assert slope(lambda x: ops.max(x, 1), [[1.0, 1.0], [0.0, 5.0]]) == [[0.5, 0.5], [0, 1]]
    assert slope(ops.min, [1.0, 1.0]) == [0.5, 0.5]


def test_max_pool_takes_the_first():
    assert slope(lambda x: ops.max_pool2d(x, 2), [[[[1.0, 2.0], [2.0, 2.0]]]]) == [[[[0, 1], [0, 0]]]]


def test_norm_at_zero_is_zero_and_the_root_form_is_not_a_number():
    assert slope(ops.norm, [0.0, 0.0]) == [0, 0]
    assert slope(lambda x: ops.norm(x, 1), [[3.0, 4.0], [0.0, 0.0]]) == [[0.6, 0.8], [0, 0]]
    assert np.isnan(slope(lambda x: ops.sqrt(ops.sum(x * x)), [0.0, 0.0])).all()


def test_zero_to_a_power():
    assert slope(ops.pow, [0.0], [2.0]) == [[0], [0]]


def test_not_a_number_passes_through():
    nan = float("nan")
    assert np.isnan(ops.relu(Tensor([nan])).item())
    assert slope(ops.relu, [nan]) == [1.0]
    assert np.isnan(slope(ops.exp, [nan])).all()


def test_not_a_number_is_the_extremum_and_gets_its_derivative():
    """NumPy's maximum and minimum of what holds a NaN are that NaN; several of them share, as at a tie."""
    nan = float("nan")
    for reduced, paired in ((ops.max, ops.maximum), (ops.min, ops.minimum)):
        assert np.isnan(reduced(Tensor([0.0, nan])).item())
        assert slope(reduced, [0.0, nan, 5.0]) == [0, 1, 0]
        assert slope(reduced, [nan, 0.0, nan]) == [0.5, 0, 0.5]
        assert slope(lambda x, reduced=reduced: reduced(x, 1), [[nan, 1.0], [3.0, 3.0]]) == [[1, 0], [0.5, 0.5]]
        assert slope(paired, [nan, 1.0, nan], [1.0, nan, nan]) == [[1, 0, 0.5], [0, 1, 0.5]]
    assert slope(lambda x: ops.max_pool2d(x, 2), [[[[1.0, nan], [5.0, 2.0]]]]) == [[[[0, 1], [0, 0]]]]


def test_a_value_used_twice_in_one_product():
    """Case 114."""

    def loss(s):
        w = Tensor(np.array([1.0, 1.0, 2.0])) * s
        return ops.sum(w * ops.sum(w))

    assert slope(loss, [1.0, 2.0, 3.0]) == [18, 18, 36]


def test_repeated_rows_add_up_and_the_padding_row_gets_nothing():
    """Cases 85 and 89."""
    table = np.ones((4, 2)).tolist()
    assert slope(lambda t: ops.take(t, [0, 0, 2]), table) == [[2, 2], [0, 0], [1, 1], [0, 0]]
    assert slope(lambda t: ops.take(t, [0, 0, 2], padding_index=0), table) == [[0, 0], [0, 0], [1, 1], [0, 0]]


def test_one_part_of_a_split():
    """Case 68."""
    assert slope(lambda x: 2.0 * ops.split(x, 3)[0], [1.0, 1.0, 1.0]) == [2, 0, 0]


def test_softmax_gradient():
    """Case 8."""
    found = slope(lambda x: ops.softmax(x) * Tensor(np.array([1.0, 2.0, 3.0])), [0.0, 1.0, 2.0])
    np.testing.assert_allclose(found, [-0.141817, -0.140770, 0.282587], atol=1e-6)


def test_contrastive_loss_of_one_shared_weight():
    """Case 82."""
    a = Tensor(np.array([[1.0, 0], [0, 1], [1, 1], [2, -1]]))
    b = Tensor(np.array([[1.0, 1], [0, 2], [1, 0], [1, -1]]))
    w = Tensor(np.eye(2), requires_grad=True)
    loss = ops.cross_entropy((a @ w) @ (b @ w).T, np.arange(4))
    (gradient,) = vector_jacobian_product([loss], [np.ones(())], [w])
    assert abs(loss.item() - 0.996032) < 1e-6
    np.testing.assert_allclose(gradient, [[-0.258821, 0.299120], [0.299120, 0.100383]], atol=1e-6)
