"""Layers of the NumPy backend: values of known cases, registration of members, modes, copies, first values."""

import copy
import math

import numpy as np
import pytest
from unigrad_numpy import nn, ops
from unigrad_numpy.graph import no_grad, observe_uses, vector_jacobian_product, walk
from unigrad_numpy.tensor import Parameter, Tensor


def double(values):
    return Tensor(np.array(values, np.float64))


def given(layer, **values):
    """Replace parameters by given float64 values."""
    for name, value in values.items():
        layer.register_parameter(name, Parameter(np.array(value, np.float64)))
    return layer


def gradients(loss, *targets):
    return vector_jacobian_product([loss], [np.ones(loss.shape)], targets)


def one_dimensional(values):
    return double(values)[None, None, None, :]


def test_dense():
    """Case 94 in the layout of this backend, and cases 35 and 44."""
    layer = given(nn.Dense(2, 2), weight=[[1, 3], [2, 4]], bias=[0, 0])
    assert layer(double([1, 10])).data.tolist() == [31, 42]
    layer = given(nn.Linear(2, 1), weight=[[1, -1]], bias=[0])
    y = layer(double([[1, 2], [3, 5]]))
    dw, db = gradients(ops.sum(y * y), layer.weight, layer.bias)
    assert dw.tolist() == [[-14, -24]]
    assert db.tolist() == [-6]


def test_dense_used_repeatedly():
    """Case 5."""
    for count, loss_value, expected in (
        (1, 2, [[1, 1], [2, 2]]),
        (2, 6, [[5, 1.5], [6, -1]]),
        (5, 8, [[36, 8], [24, 24]]),
    ):
        w = Parameter(np.array([[1, 2], [0.5, -1]]))
        h = double([1, 2])
        for _ in range(count):
            h = h @ w
        loss = ops.sum(h)
        if count != 2:
            assert loss.item() == loss_value
        assert gradients(loss, w)[0].tolist() == expected


def test_flatten_before_dense():
    """Case 90."""
    images = double(np.arange(8).reshape(1, 2, 2, 2))
    layer = given(nn.Dense(8, 1, bias=False), weight=[np.arange(1, 9)])
    assert nn.Sequential(nn.Flatten(), layer)(images).item() == 168


def test_transposed_convolution():
    """Cases 92 and 93."""
    layer = given(nn.ConvTranspose2d(2, 2, 1), weight=np.reshape([[1, 2], [3, 4]], (2, 2, 1, 1)), bias=[0, 0])
    assert layer(double(np.reshape([1, 10], (1, 2, 1, 1)))).data.ravel().tolist() == [31, 42]
    kernel = np.reshape([1, 10, 100], (1, 1, 1, 3))
    x = one_dimensional([1, 2, 3])
    whole = given(nn.ConvTranspose2d(1, 1, (1, 3), (1, 2), bias=False), weight=kernel)
    assert whole(x).data.ravel().tolist() == [1, 10, 102, 20, 203, 30, 300]
    cut = given(nn.ConvTranspose2d(1, 1, (1, 3), (1, 2), (0, 1), (0, 1), bias=False), weight=kernel)
    assert cut(x).data.ravel().tolist() == [10, 102, 20, 203, 30, 300]


def test_convolution_with_stride_and_border():
    """Case 104."""
    layer = given(nn.Conv2d(1, 1, 3, stride=2, padding=1, bias=False), weight=np.ones((1, 1, 3, 3)))
    assert layer(double(np.arange(16).reshape(1, 1, 4, 4))).data[0, 0].tolist() == [[10, 24], [51, 90]]
    layer = given(nn.Conv2d(1, 1, (1, 3), (1, 2), (0, 1), bias=False), weight=np.reshape([1, 2, 3], (1, 1, 1, 3)))
    assert layer(one_dimensional([1, 2, 3, 4, 5, 6])).data.ravel().tolist() == [8, 20, 32]


def test_transposed_convolution_is_the_transpose():
    """For every x and y: <conv(x), y> = <x, conv_transpose(y)>."""
    numbers = np.random.default_rng(0)
    weight = double(numbers.standard_normal((4, 3, 3, 2)))
    x = double(numbers.standard_normal((2, 3, 7, 8)))
    y = ops.conv2d(x, weight, stride=2, padding=1)
    other = double(numbers.standard_normal(y.shape))
    back = ops.conv_transpose2d(other, weight, stride=2, padding=1, output_padding=(0, 0))
    assert back.shape == x.shape
    # Sums of some 500 products of numbers of size one.
    assert ops.sum(y * other).item() == pytest.approx(ops.sum(x * back).item(), rel=1e-12, abs=1e-12)


def test_batch_norm_in_training():
    """Cases 30, 83, 100, 102 and 6."""
    layer = nn.BatchNorm(1, dtype=np.float64)
    layer(double([[1], [3]]))
    assert layer.running_mean.item() == pytest.approx(0.2)
    assert layer.running_var.item() == pytest.approx(1.1)
    assert layer.num_batches_tracked.item() == 1
    for data, mean, variance in (([[1], [3], [5], [7]], 0.4, 1.566667), ([[1], [2], [6]], 0.3, 1.6)):
        layer = nn.BatchNorm(1, dtype=np.float64)
        layer(double(data))
        assert layer.running_mean.item() == pytest.approx(mean)
        assert layer.running_var.item() == pytest.approx(variance, rel=1e-6)
    layer = nn.BatchNorm(1, momentum=0.01, dtype=np.float64)
    layer(double([[1], [3]]))
    assert layer.running_mean.item() == pytest.approx(0.02)
    layer = nn.BatchNorm(3, dtype=np.float64)
    x = Tensor(np.arange(12.0).reshape(1, 3, 2, 2), requires_grad=True)
    loss = ops.sum(layer(x) * double([[1, 2], [3, 4]]))
    dw, db = gradients(loss, layer.weight, layer.bias)
    np.testing.assert_allclose(dw, [4.472118] * 3, rtol=1e-6)
    np.testing.assert_allclose(db, [10] * 3, rtol=1e-12)
    x = Tensor(np.array([[1.0], [3.0]]), requires_grad=True)
    layer = nn.BatchNorm(1, dtype=np.float64)
    dw, db = gradients(ops.sum(layer(x) * double([[1], [2]])), layer.weight, layer.bias)
    assert dw[0] == pytest.approx(0.999995, abs=1e-6)
    assert db[0] == 3


def test_batch_norm_in_inference():
    """Cases 98 and 101."""
    layer = nn.BatchNorm(1, dtype=np.float64).eval()
    layer.running_mean.assign(0.5)
    layer.running_var.assign(4.0)
    assert layer(double([[2.5]])).item() == pytest.approx(0.99999875, rel=1e-9)
    assert layer.num_batches_tracked.item() == 0
    for epsilon, expected in ((1e-5, 1.906925), (1e-3, 0.603023)):
        layer = nn.BatchNorm(1, epsilon=epsilon, dtype=np.float64).eval()
        layer.running_var.assign(1e-4)
        assert layer(double([[0.02]])).item() == pytest.approx(expected, rel=1e-6)


def test_statistics_may_move_between_forward_and_backward():
    """An inference forward keeps its own copy of the statistics it used."""
    layer = nn.BatchNorm(1, dtype=np.float64).eval()
    x = Tensor(np.array([[2.0]]), requires_grad=True)
    loss = ops.sum(layer(x))
    layer.running_var.assign(100.0)
    assert gradients(loss, x)[0].item() == pytest.approx(1 / math.sqrt(1 + 1e-5))


def test_batch_norm_refuses_what_it_cannot_normalize():
    layer = nn.BatchNorm(2)
    before = [layer.running_mean.numpy(), layer.running_var.numpy()]
    with pytest.raises(ValueError, match=r"\(1, 2\)"):
        layer(Tensor(np.ones((1, 2), np.float32)))
    with pytest.raises(ValueError, match=r"2 channels .* \(4, 3\)"):
        layer(Tensor(np.ones((4, 3), np.float32)))
    assert [layer.running_mean.numpy().tolist(), layer.running_var.numpy().tolist()] == [b.tolist() for b in before]
    assert layer.num_batches_tracked.item() == 0


def test_layer_norm_has_mean_zero_and_variance_one():
    y = nn.LayerNorm((3, 4), dtype=np.float64)(double(np.random.default_rng(0).standard_normal((2, 3, 4)))).numpy()
    np.testing.assert_allclose(y.mean(axis=(1, 2)), 0, atol=1e-14)
    np.testing.assert_allclose(y.var(axis=(1, 2)), 1, rtol=1e-4)  # the epsilon of 1e-5 against a variance near one


LSTM_WEIGHTS = {
    "weight_ih": [[0.1], [0.2], [0.3], [0.4]],
    "weight_hh": [[0.5], [0.6], [0.7], [0.8]],
    "bias_ih": [0.01, 0.02, 0.03, 0.04],
    "bias_hh": [0.1, 0.2, 0.3, 0.4],
}
GRU_WEIGHTS = {
    "weight_ih": [[0.1], [0.2], [0.3]],
    "weight_hh": [[0.5], [0.6], [0.7]],
    "bias_ih": [0.01, 0.02, 0.03],
    "bias_hh": [0.1, 0.2, 0.3],
}


def test_lstm():
    """Case 95; the layer over time and the cell agree."""
    cell = given(nn.LSTMCell(1, 1), **LSTM_WEIGHTS)
    layer = given(nn.LSTM(1, 1), **{f"{name}_l0": value for name, value in LSTM_WEIGHTS.items()})
    first = cell(double([[1]]))
    second = cell(double([[2]]), first)
    outputs, last = layer(double([[[1], [2]]]))
    np.testing.assert_allclose(outputs.data.ravel(), [0.208711, 0.478152], atol=1e-6)
    assert [first[0].item(), second[0].item()] == outputs.data.ravel().tolist()
    assert last[0].item() == second[0].item()
    assert last[1].item() == second[1].item()
    parameters = [layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0, layer.bias_hh_l0]
    found = gradients(ops.sum(outputs), *parameters)
    expected = [
        [0.352987, 0.069785, 0.663646, 0.265333],
        [0.020533, 0.007283, 0.024322, 0.019631],
        [0.254607, 0.034893, 0.547112, 0.171275],
        [0.254607, 0.034893, 0.547112, 0.171275],
    ]
    for gradient, values in zip(found, expected, strict=True):
        np.testing.assert_allclose(gradient.ravel(), values, atol=1e-6)


def test_gru():
    """Case 96."""
    layer = given(nn.GRU(1, 1), **{f"{name}_l0": value for name, value in GRU_WEIGHTS.items()})
    cell = given(nn.GRUCell(1, 1), **GRU_WEIGHTS)
    outputs, last = layer(double([[[1], [2]]]))
    np.testing.assert_allclose(outputs.data.ravel(), [0.181891, 0.353527], atol=1e-6)
    assert cell(double([[2]]), cell(double([[1]]))).item() == last.item() == outputs[0, 1, 0].item()


def test_attention_of_equal_keys_is_the_mean_of_the_values():
    layer = nn.MultiheadAttention(4, 2, dtype=np.float64)
    layer.in_proj_weight.assign(np.concatenate([np.zeros((8, 4)), np.eye(4)]))
    layer.out_proj.weight.assign(np.eye(4))
    x = double(np.random.default_rng(0).standard_normal((3, 5, 4)))
    np.testing.assert_allclose(layer(x).data, np.repeat(x.data.mean(axis=1, keepdims=True), 5, axis=1), rtol=1e-12)
    causal = np.tril(np.ones((5, 5), bool))
    means = np.cumsum(x.data, axis=1) / np.arange(1, 6)[:, None]
    np.testing.assert_allclose(layer(x, mask=causal).data, means, rtol=1e-12, atol=1e-15)
    with pytest.raises(ValueError, match="3 heads"):
        nn.MultiheadAttention(4, 3)


def test_embedding_with_a_padding_row():
    layer = nn.Embedding(4, 2, padding_index=0)
    assert layer.weight.data[0].tolist() == [0, 0]
    loss = ops.sum(layer(np.array([0, 0, 2])))
    (gradient,) = vector_jacobian_product([loss], [None], [layer.weight])
    assert gradient.tolist() == [[0, 0], [0, 0], [1, 1], [0, 0]]


def test_a_tied_table():
    """Case 116."""
    table = nn.Embedding(3, 2)
    head = nn.Dense(2, 3, bias=False)
    table.weight = head.weight = Parameter(np.array([[1.0, 2], [3, 4], [5, 6]]))
    model = nn.Sequential(table, head)
    assert [name for name, _ in model.named_parameters()] == ["0.weight"]
    loss = ops.sum(model(np.array([0, 2, 0])))
    assert loss.item() == 183
    assert gradients(loss, table.weight)[0].tolist() == [[25, 34], [7, 10], [16, 22]]


def test_dropout_and_modes():
    """Case 105: kept units are scaled in training by 1 / (1 - rate), nothing is done in inference."""
    model = nn.Sequential(nn.Dropout(0.25), nn.Sequential(nn.Dropout(0.5)))
    assert model.eval()(Tensor([4.0])).item() == 4
    assert not model[1][0].training
    layer = nn.Dropout(0.25)
    values = set(layer(Tensor(np.full(200, 4.0, np.float32))).numpy().tolist())
    assert values == {0.0, float(np.float32(4) * np.float32(1 / 0.75))}
    assert nn.Dropout(1.0)(Tensor([1.0, 2.0])).numpy().tolist() == [0, 0]
    with pytest.raises(ValueError, match="rate"):
        nn.Dropout(1.5)


def test_a_lazy_layer_is_built_by_its_first_call():
    """Cases 43 and 74."""
    model = nn.Sequential(nn.LazyDense(2), nn.Tanh())
    twin = copy.deepcopy(model)
    told = []
    undo = model[0].on_built(lambda: told.append("model"))
    assert model[0].pending
    assert model.parameters() == []
    model(Tensor(np.ones((1, 3), np.float32)))
    twin(Tensor(np.ones((1, 5), np.float32)))
    assert [p.shape for p in model.parameters()] == [(2, 3), (2,)]
    assert [p.shape for p in twin.parameters()] == [(2, 5), (2,)]
    assert told == ["model"]
    assert not model[0].pending
    undo()
    undo()


def test_members_are_registered_by_assignment():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Dense(2, 3), nn.ReLU())
            self.scale = Parameter([1.0])
            self.register_buffer("count", Tensor(0))
            self.note = "text"

    model = Model()
    assert [name for name, _ in model.named_parameters()] == ["scale", "encoder.0.weight", "encoder.0.bias"]
    assert [name for name, _ in model.named_buffers()] == ["count"]
    assert [name for name, _ in model.named_modules()] == ["", "encoder", "encoder.0", "encoder.1"]
    model.count = Tensor(5)
    assert dict(model.named_buffers())["count"].item() == 5
    model.scale = None
    assert "scale" not in dict(model.named_parameters())
    model.encoder = "replaced"
    assert model.parameters() == []
    del model.count
    with pytest.raises(AttributeError, match="count"):
        _ = model.count
    with pytest.raises(KeyError, match="dot"):
        model.add_module("a.b", nn.ReLU())
    with pytest.raises(NotImplementedError, match="Model"):
        model(1)
    with pytest.raises(TypeError, match="modules"):
        nn.Sequential("text")


def test_members_before_the_base_is_initialized():
    class Broken(nn.Module):
        def __init__(self):
            self.weight = Parameter([1.0])

    with pytest.raises(AttributeError, match="super"):
        Broken()


def test_a_copy_keeps_ties_and_shares_nothing():
    model = nn.Sequential(nn.Dense(2, 2), nn.Dense(2, 2), nn.BatchNorm(2))
    model[1].weight = model[0].weight
    twin = copy.deepcopy(model).eval()
    assert twin[0].weight is twin[1].weight
    assert twin[0].weight is not model[0].weight
    twin[0].weight.assign(0.0)
    twin[2].running_mean.assign(7.0)
    assert np.all(model[0].weight.data != 0)
    assert model[2].running_mean.data.tolist() == [0, 0]
    assert model.training
    assert not twin.training


def test_dtype_is_changed_in_place():
    model = nn.Sequential(nn.Dense(2, 2), nn.BatchNorm(2))
    before = model.parameters()
    model.to(np.float64)
    assert all(a is b for a, b in zip(model.parameters(), before, strict=True))
    assert {p.dtype for p in before} == {np.dtype(np.float64)}
    assert model[1].num_batches_tracked.dtype == np.int64
    assert model(double([[1, 2], [3, 5]])).dtype == np.float64


def test_only_a_recorded_operation_is_a_use_of_a_parameter():
    """Clause R1: a mere reading is none, as on frameworks that cannot see it."""
    layer = nn.Dense(2, 2)
    seen = []
    with observe_uses(seen.extend):
        layer.parameters()
        repr(layer)
        weight = layer.weight
        with no_grad():
            layer(double([[1, 2]]).astype(np.float32))
        assert seen == []
        _ = weight * 2.0
        assert seen[0] is vars(layer)["_parameters"]["weight"]


def test_first_values_lie_within_their_bounds_and_follow_the_seed():
    def build():
        ops.seed(5)
        return [
            nn.Dense(16, 400),
            nn.Conv2d(4, 100, 2),
            nn.ConvTranspose2d(100, 4, 2),
            nn.LSTM(3, 16),
            nn.MultiheadAttention(64, 2),
        ]

    first, second = build(), build()
    for a, b in zip(first, second, strict=True):
        assert all(np.array_equal(x.data, y.data) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    bounds = [1 / 4, 1 / 4, 1 / 4, 1 / 4, math.sqrt(6 / (3 * 64 + 64))]
    for layer, bound in zip(first, bounds, strict=True):
        largest = np.abs(layer.parameters()[0].data).max()
        assert 0.95 * bound < largest <= bound


def test_repr_shows_the_tree():
    text = repr(nn.Sequential(nn.Dense(2, 3), nn.Sequential(nn.Dropout(0.5), nn.LazyDense(1))))
    assert "(0): Dense(2, 3, bias=True)" in text
    assert "    (0): Dropout(0.5)" in text
    assert "pending" in text


@pytest.mark.parametrize(
    ("layer", "operation"),
    [
        (nn.ReLU(), ops.relu),
        (nn.ReLU6(), ops.relu6),
        (nn.Tanh(), ops.tanh),
        (nn.Sigmoid(), ops.sigmoid),
        (nn.GELU(), ops.gelu),
        (nn.SiLU(), ops.silu),
        (nn.Hardswish(), ops.hardswish),
        (nn.Softmax(), ops.softmax),
        (nn.MaxPool2d(2), lambda x: ops.max_pool2d(x, 2)),
        (nn.AvgPool2d(2), lambda x: ops.avg_pool2d(x, 2)),
    ],
)
def test_layers_that_are_one_operation(layer, operation):
    x = Tensor(np.random.default_rng(0).standard_normal((2, 2, 4, 4)), requires_grad=True)
    assert np.array_equal(layer(x).data, operation(x).data)
    assert len(walk([layer(x)]).nodes) == 1
    assert nn.Identity()(x) is x
