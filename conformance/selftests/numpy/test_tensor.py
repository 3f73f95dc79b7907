"""Tensors of the NumPy backend: dtypes, shapes, in-place writes, and clear errors."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from unigrad_numpy import ops
from unigrad_numpy.graph import no_grad, vector_jacobian_product
from unigrad_numpy.tensor import Parameter, Tensor

from unigrad.errors import StaleGraphError


def test_python_numbers_never_change_the_dtype():
    for dtype in (np.float32, np.float64):
        for x in (Tensor(np.ones(2, dtype)), Tensor(np.ones((), dtype))):
            for y in (x * 2, 2.0 * x, x + True, x / 3.0, x**2, 1 - x, ops.maximum(x, 0.5), x * np.float64(2.0)):
                assert y.dtype == dtype


def test_python_data_is_single_precision_and_arrays_keep_their_dtype():
    assert Tensor([1.0, 2.0]).dtype == np.float32
    assert Tensor(1.5).dtype == np.float32
    assert Tensor(np.array([1.0])).dtype == np.float64
    assert Tensor([1, 2]).dtype.kind == "i"
    assert Tensor([1.0], dtype=np.float64).dtype == np.float64


def test_two_float_dtypes_do_not_mix():
    with pytest.raises(TypeError, match=r"mul of a float32 and a float64 tensor; cast"):
        Tensor(np.ones(2, np.float32)) * Tensor(np.ones(2))
    with pytest.raises(TypeError, match=r"concat of a float32 and a float64"):
        ops.concat([Tensor(np.ones(2, np.float32)), Tensor(np.ones(2))])


def test_integers_beside_floats_take_the_float_dtype():
    assert (Tensor([1, 2]) * Tensor([0.5, 0.5])).dtype == np.float32
    with pytest.raises(TypeError, match="float and a int64"):
        Tensor([1, 2]) * 0.5


@pytest.mark.parametrize("values", [np.ones(2) * 1j, np.array([1.0, 2.0], object), np.array(["1", "2"])])
def test_what_is_no_real_number_is_not_cast_beside_floats(values):
    """NumPy itself casts each of these; of a complex number the imaginary part is gone."""
    for left, right in ((Tensor(values), Tensor([0.5, 0.5])), (Tensor([0.5, 0.5]), Tensor(values))):
        with pytest.raises(TypeError, match="mul of a"):
            left * right


@pytest.mark.parametrize("dtype", [np.float16, np.int64, np.bool_])
def test_only_two_dtypes_take_gradients(dtype):
    with pytest.raises(TypeError, match=np.dtype(dtype).name):
        Tensor(np.ones(2, dtype), requires_grad=True)
    with pytest.raises(TypeError, match=np.dtype(dtype).name):
        ops.exp(Tensor(np.ones(2, dtype)))


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda a, b: a + b, ["(2,3)", "(4,)"]),
        (lambda a, b: a @ b, ["(2, 3)", "(4,)"]),
        (lambda a, b: a.reshape(5), ["(2, 3)", "5"]),
        (lambda a, b: a.transpose(0, 0), ["(2, 3)"]),
        (lambda a, b: ops.concat([a, b]), ["(2, 3)", "(4,)"]),
        (lambda a, b: ops.stack([a, b]), ["(2, 3)", "(4,)"]),
        (lambda a, b: ops.split(a, 2, 1), ["(2, 3)"]),
        (lambda a, b: ops.linear(a, ops.reshape(b, (1, 4))), ["(2, 3)", "(1, 4)"]),
        (lambda a, b: ops.broadcast_to(a, (3, 2)), ["(2, 3)", "(3, 2)"]),
        (lambda a, b: ops.mse(a, b), ["(2, 3)", "(4,)"]),
        (lambda a, b: ops.cross_entropy(a, [0, 1, 2]), ["(2, 3)", "(3,)"]),
        (lambda a, b: ops.conv2d(a, b), ["(2, 3)", "(4,)"]),
        (lambda a, b: ops.layer_norm(a, b), ["(2, 3)", "(4,)"]),
        (lambda a, b: a.assign(b), ["(2, 3)", "(4,)"]),
        (lambda a, b: ops.sum(a, 2), ["axis 2"]),
    ],
)
def test_shapes_that_do_not_fit_are_named(run, words):
    with pytest.raises(ValueError, match=r".") as error:
        run(Tensor(np.ones((2, 3))), Tensor(np.ones(4)))
    assert all(word in str(error.value) for word in words), error.value


def test_ids_and_labels_out_of_range():
    with pytest.raises(IndexError, match="table of 3 rows"):
        ops.take(Tensor(np.ones((3, 2))), [0, 3])
    with pytest.raises(IndexError, match="2 classes"):
        ops.cross_entropy(Tensor(np.ones((1, 2))), [-1])
    with pytest.raises(TypeError, match="integer"):
        ops.take(Tensor(np.ones((3, 2))), [0.5])


def test_values_are_copied_in_and_read_only_out():
    """Case 20: the caller's array changes after the forward."""
    array = np.array([[1.0, 2.0]])
    x = Tensor(array)
    w = Tensor(np.array([[3.0], [4.0]]), requires_grad=True)
    loss = ops.sum(x @ w)
    array += 10
    (gradient,) = vector_jacobian_product([loss], [np.ones(())], [w])
    assert gradient.tolist() == [[1], [2]]
    with pytest.raises(ValueError, match="read-only"):
        x.data[0] = 5
    x.numpy()[0] = 5
    assert x.data.tolist() == [[1, 2]]


def test_operators_and_conversions():
    x = Tensor([1.0, -2.0, 3.0])
    assert len(x) == 3
    assert [element.item() for element in x] == [1, -2, 3]
    assert (x > 0).data.tolist() == [True, False, True]
    assert (x == x).data.all()
    assert bool(x[0] > 0)
    assert float(x[1]) == -2
    assert int(x[2]) == 3
    assert [10, 20][Tensor(1)] == 20
    assert (np.ones(3, np.float32) * x).data.tolist() == [1, -2, 3]
    assert np.asarray(x).tolist() == [1, -2, 3]
    assert abs(x).data.tolist() == [1, 2, 3]
    assert "float32" in repr(x)
    assert x.max().item() == 3
    assert x.min().item() == -2
    assert x.argmax().item() == 2
    assert x.mean().item() == pytest.approx(2 / 3)
    assert {x: 1}[x] == 1
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        bool(x)
    with pytest.raises(TypeError, match="needs a gradient"):
        np.asarray(Tensor([1.0], requires_grad=True))
    with pytest.raises(TypeError, match="no length"):
        len(x[0])


@settings(max_examples=60, deadline=None)
@given(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=3))
def test_broadcasting_sums_back(shapes):
    """The gradient of a broadcast operand is the sum over its repetitions, for every pair of shapes that fit."""
    left, right = shapes.input_shapes
    x = Tensor(np.full(left, 2.0), requires_grad=True)
    y = Tensor(np.full(right, 3.0), requires_grad=True)
    out = x * y
    dx, dy = vector_jacobian_product([out], [np.ones(shapes.result_shape)], [x, y])
    size = int(np.prod(shapes.result_shape))
    assert out.shape == shapes.result_shape
    assert dx.shape == left
    assert dy.shape == right
    # Each element of an operand appears size / operand size times.
    assert np.all(dx == 3 * (size // x.size if x.size else 0))
    assert np.all(dy == 2 * (size // y.size if y.size else 0))


@st.composite
def keys(draw, shape):
    """Draw an index, with each part of it written in one of the forms that NumPy reads alike."""
    parts = draw(
        st.one_of(
            hnp.basic_indices(shape, allow_newaxis=True).map(lambda key: key if isinstance(key, tuple) else (key,)),
            hnp.integer_array_indices(shape),
            hnp.arrays(np.bool_, shape).map(lambda mask: (mask,)),
            mixed_parts(shape),
        )
    )
    return tuple(draw(st.sampled_from(forms(part))) for part in parts)


@st.composite
def mixed_parts(draw, shape):
    length = draw(st.integers(0, 3))
    parts = [
        draw(
            st.one_of(
                st.integers(-side, side - 1),
                st.slices(side),
                hnp.arrays(np.intp, length, elements=st.integers(-side, side - 1)),
            )
        )
        for side in shape[: draw(st.integers(1, len(shape)))]
    ]
    for extra in (None, True, np.True_, np.array(True)):
        if draw(st.booleans()):
            parts.insert(draw(st.integers(0, len(parts))), extra)
    if draw(st.booleans()):
        parts.append(...)
    return tuple(parts)


def nested_tuple(values):
    return tuple(map(nested_tuple, values)) if isinstance(values, list) else values


def forms(part):
    """Return the ways to write one part of an index."""
    if isinstance(part, np.ndarray):
        values = part.tolist()
        ranges = [range(len(values))] if part.ndim == 1 and values == [*range(len(values))] else []
        return [part, Tensor(part), *([values, nested_tuple(values)] if part.ndim else [values]), *ranges]
    if type(part) is int:
        return [part, np.int32(part), np.array(part), Tensor(part)]
    if isinstance(part, slice):
        return [
            part,
            slice(*(None if bound is None else np.int64(bound) for bound in (part.start, part.stop, part.step))),
        ]
    return [part]


def as_numpy(key):
    return tuple(part.numpy() if isinstance(part, Tensor) else part for part in key)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_indexing_counts_how_often_an_element_is_selected(data):
    """The values are those of NumPy, and the gradient is what ``numpy.add.at`` gives, in each form of index."""
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=4))
    key = data.draw(keys(shape))
    if len(key) == 1 and not isinstance(key[0], tuple) and data.draw(st.booleans()):
        (key,) = key
    plain = as_numpy(key) if isinstance(key, tuple) else as_numpy((key,))[0]
    x = Tensor(np.arange(np.prod(shape), dtype=np.float64).reshape(shape), requires_grad=True)
    expected = np.asarray(x.data[plain])
    cotangent = np.arange(1.0, 1.0 + expected.size).reshape(expected.shape)
    summed = np.zeros(shape)
    np.add.at(summed, plain, cotangent)
    out = x[key]
    assert np.array_equal(out.data, expected)
    assert np.shares_memory(out.data, x.data) <= (out._counter is x._counter)
    for outputs, factor in (([out], 1), ([out, x[key]], 2)):
        (gradient,) = vector_jacobian_product(outputs, [cotangent] * len(outputs), [x])
        assert np.array_equal(gradient, factor * summed)
    written = Tensor(np.zeros(shape))
    written[key] = cotangent
    summed[...] = 0
    summed[plain] = cotangent
    assert np.array_equal(written.data, summed)


def test_a_selected_element_counts_as_often_as_a_tuple_names_it():
    x = Tensor(np.arange(12.0).reshape(3, 4), requires_grad=True)
    for key, expected in (
        ((slice(None), (0, 0, 2)), [[2, 0, 1, 0]] * 3),
        (((0, 0), (1, 1)), [[0, 2, 0, 0], [0] * 4, [0] * 4]),
        ((range(2), (1, 1)), [[0, 1, 0, 0], [0, 1, 0, 0], [0] * 4]),
        (([[0, 0]], [[1], [1]]), [[0, 4, 0, 0], [0] * 4, [0] * 4]),
        ([], [[0] * 4] * 3),
    ):
        (gradient,) = vector_jacobian_product([x[key].sum()], [np.ones(())], [x])
        assert gradient.tolist() == expected


def test_an_index_is_what_it_was_in_the_forward():
    """A list, an array or a tensor in an index, also as the bound of a slice, is written before the backward."""
    x = Tensor(np.arange(4.0), requires_grad=True)
    for index in ([0, 1], np.array([0, 1]), Tensor([0, 1])):
        out = x[index]
        index[1] = 3
        assert vector_jacobian_product([out], [np.ones(2)], [x])[0].tolist() == [1, 1, 0, 0]
    bound = Tensor(2)
    out = x[:bound]
    bound[...] = 1
    assert vector_jacobian_product([out], [np.ones(2)], [x])[0].tolist() == [1, 1, 0, 0]


def test_writes_are_counted_through_every_view():
    x = Tensor(np.arange(6.0).reshape(2, 3))
    views = [x.reshape(6), x.T, x[0], x.detach(), ops.identity(x), ops.broadcast_to(x, (4, 2, 3))]
    x.assign(1.0)
    x[0, 0] = 2.0
    x.add_(1.0)
    x.mul_(np.full((2, 3), 2.0))
    assert {view.version for view in views} == {x.version} == {4}
    views[1][0, 0] = 7.0
    assert x[0, 0].item() == 7
    assert x.version == 5
    assert x[[0, 1]].version == 0


def test_a_value_that_the_graph_needs_was_written():
    """Clause G14."""
    w = Parameter(np.array([1.0, 2.0]))
    loss = ops.sum(w * w)
    w.assign(np.array([5.0, 5.0]))
    with pytest.raises(StaleGraphError, match=r"'mul' needs a tensor of shape \(2,\).*version 0, now at 1"):
        vector_jacobian_product([loss], [np.ones(())], [w])


def test_a_write_that_changes_no_derivative_does_not_matter():
    w = Parameter(np.array([1.0, 2.0]))
    loss = ops.sum(w + w)
    w.assign(5.0)
    assert vector_jacobian_product([loss], [np.ones(())], [w])[0].tolist() == [2, 2]


def test_writing_into_a_result_is_refused_or_noticed():
    """Case 19: never another number."""
    a = Tensor(np.array([1.0, 2.0, 3.0]), requires_grad=True)
    for build in (ops.sigmoid, lambda x: 1 / (1 + ops.exp(-x))):
        b = build(a)
        with pytest.raises(RuntimeError, match="cut its graph"):
            b[1] = 2.0
        changed = ops.where(np.array([False, True, False]), 2.0, b)
        (gradient,) = vector_jacobian_product([changed.sum()], [np.ones(())], [a])
        np.testing.assert_allclose(gradient, [0.196612, 0, 0.045177], atol=1e-6)
    b = ops.sigmoid(a)
    b.detach()[1] = 2.0
    with pytest.raises(StaleGraphError, match="sigmoid"):
        vector_jacobian_product([b.sum()], [np.ones(())], [a])


def test_values_with_a_graph_cannot_be_written():
    x = Tensor(np.zeros(2))
    with pytest.raises(RuntimeError, match="where"):
        x[0] = Tensor(np.array(1.0), requires_grad=True)
    with no_grad():
        x[0] = Tensor(np.array(1.0), requires_grad=True)
    assert x.data.tolist() == [1, 0]


def test_assign_takes_exact_shape_and_dtype():
    x = Tensor(np.zeros((2, 2)))
    for values, error in ((np.zeros(2), ValueError), (np.zeros((2, 2), np.float32), TypeError), ("a", TypeError)):
        with pytest.raises(error):
            x.assign(values)
    assert x.version == 0


def test_adding_in_place_by_the_operator_makes_a_new_tensor():
    x = Tensor(np.zeros(2))
    before = x
    x += 1.0
    assert before.data.tolist() == [0, 0]
    assert x.data.tolist() == [1, 1]


def test_deep_copy_of_leaves_only():
    w = Parameter(np.array([1.0]), requires_grad=False)
    w.grad = Tensor(np.array([2.0]))
    twin = copy.deepcopy([w, w])
    assert twin[0] is twin[1]
    assert type(twin[0]) is Parameter
    assert not twin[0].requires_grad
    assert twin[0].grad.item() == 2
    twin[0].assign(9.0)
    assert w.item() == 1
    with pytest.raises(RuntimeError, match="leaf"):
        copy.deepcopy(Tensor(np.array([1.0]), requires_grad=True) * 2)


def test_the_gradient_switch_of_a_result_cannot_be_turned_off():
    x = Tensor(np.array([1.0]), requires_grad=True)
    with pytest.raises(RuntimeError, match="detach"):
        (x * 2).requires_grad = False
    assert not (x * 2).detach().requires_grad
    x.requires_grad = False
    assert not (x * 2).requires_grad
