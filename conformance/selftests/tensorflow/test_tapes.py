"""Regions among the user's own tapes and accumulators, and what goes in or out that is no plain tensor (C5, C10, C12, C13)."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import unigrad

X = tf.constant(np.random.default_rng(0).standard_normal((4, 3)).astype("float32"))
MODES = {"eager": lambda function: function, "traced": tf.function}


def model():
    keras.utils.set_random_seed(1)
    made = keras.Sequential([layers.Dense(4, activation="tanh"), layers.Dense(2, activation="tanh")])
    made.build((None, 3))
    return made


def slope(call, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(call(x) ** 2)
    return tape.gradient(loss, x)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("collected", [False, True], ids=["tape", "collector-in-tape"])
def test_a_tape_inside_a_region_under_a_tape_outside(mode, collected):
    """A stop of recording is one for all tapes of a thread; the inner tape must record all the same."""
    net = model()
    variables = [v.value for v in net.trainable_variables]
    found = []
    for run in (lambda x: slope(net, x), unigrad.checkpoint(lambda x: slope(net, x), blocks=[net])):

        @MODES[mode]
        def step(x, run=run):
            with tf.GradientTape() as tape, unigrad.GradientCollector(net, on_unused="ignore") as collector:
                tape.watch(x)
                loss = tf.reduce_sum(run(x) ** 2)
                if collected:
                    collector.backward(loss)
            return loss, tape.gradient(loss, [x, *variables[:3]]), dict(collector.gradients)

        found.append([value.numpy() for value in tf.nest.flatten(step(X))])
    assert len(found[0]) == len(found[1])
    for one, two in zip(*found, strict=True):
        # A second derivative: sums of up to 16 products, in another order.
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6)


MADE = {
    "computed": lambda x: x * 2.0,
    "stopped": tf.stop_gradient,
    "constant": lambda x: tf.constant(np.ones((4, 3), "float32")),
    "the argument": lambda x: x,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("followed", [False, True], ids=["data", "watched outside"])
@pytest.mark.parametrize("what", MADE)
def test_a_tape_inside_a_region_watches_what_the_region_made(what, followed, mode):
    """C10: only what a tape outside wants is captured."""
    net = model()

    def penalized(x):
        hidden = MADE[what](x)
        return net(x) * tf.reduce_sum(tf.stop_gradient(slope(net, hidden)))

    found = []
    for run in (penalized, unigrad.checkpoint(penalized, blocks=[net])):

        @MODES[mode]
        def step(x, run=run):
            with tf.GradientTape() as tape:
                if followed:
                    tape.watch(x)
                loss = tf.reduce_sum(run(x))
            wanted = [*([x] if followed else []), *(v.value for v in net.trainable_variables)]
            return tape.gradient(loss, wanted)

        found.append([value.numpy() for value in step(X)])
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(two, one)


def _deep(net, run):
    return unigrad.checkpoint(lambda x: unigrad.checkpoint(run, blocks=[])(net(x)), blocks=[net])


def _collecting(net, run):
    def function(x):
        with unigrad.GradientCollector(net, on_unused="ignore"):
            return run(net(x))

    return unigrad.checkpoint(function, blocks=[net])


CAPTURING = {
    "a region": lambda net, run: lambda x: unigrad.checkpoint(run, blocks=[])(net(x)),
    "a region inside a region": _deep,
    "a collector inside a region": _collecting,
    "parts": lambda net, run: unigrad.microbatch(lambda x: run(net(x)), blocks=[net], size=4),
}


@pytest.mark.parametrize("given", [True, False], ids=["an argument of the function", "an array that it closes over"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("collected", [False, True], ids=["tape", "collector-in-tape"])
@pytest.mark.parametrize("where", CAPTURING)
def test_a_tensor_of_the_users_tape_is_found_where_it_is_captured(where, collected, mode, given):
    """C10: its gradient would be lost in silence."""
    net = model()

    @MODES[mode]
    def step(x):
        x = x if given else X
        with tf.GradientTape() as tape:
            tape.watch(x)
            factor = x[:, :2] * 2.0
            run = CAPTURING[where](net, lambda value: value * factor)
            with unigrad.GradientCollector(net, on_unused="ignore") if collected else contextlib.nullcontext():
                loss = tf.reduce_sum(run(x))
        return tape.gradient(loss, x)

    with pytest.raises(unigrad.CapturedTensorError, match="stop_gradient"):
        step(X)


@pytest.mark.parametrize("size", [4, 400], ids=["small", "large"])
@pytest.mark.parametrize(
    "wrap", [unigrad.checkpoint, lambda net: unigrad.microbatch(net, 2)], ids=["checkpoint", "parts"]
)
def test_an_array_that_a_traced_function_closes_over_is_an_argument_like_any_other(wrap, size):
    """C5: TensorFlow puts a constant or a placeholder in its place, which may have been used before."""
    net, x = model(), tf.constant(np.random.default_rng(0).standard_normal((size, 3)).astype("float32"))
    found = []
    for run in (net, wrap(net)):

        @tf.function
        def step(run=run):
            with tf.GradientTape() as tape:
                tape.watch(x)
                before = tf.reduce_sum(x**2)
                loss = tf.reduce_sum(run(x)) + before
            return tape.gradient(loss, [x, *(v.value for v in net.trainable_variables)])

        found.append([value.numpy() for value in step()])
    for one, two in zip(*found, strict=True):
        # Sums over the batch, part by part.
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_a_collector_inside_a_region_hides_no_random_operation(mode):
    """C12: that of TensorFlow's own kernels can't be replayed."""
    net = model()

    def noisy(x):
        with unigrad.GradientCollector(net, on_unused="ignore"):
            return net(x + tf.random.normal([4, 3]))

    @MODES[mode]
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(unigrad.checkpoint(noisy, blocks=[net])(x))
        return tape.gradient(loss, net.trainable_variables[0].value)

    with pytest.raises(unigrad.UnsupportedError, match="RandomStandardNormal"):
        step(X)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("own", [False, True], ids=["another model", "the same model"])
def test_a_collector_inside_a_region_under_one_outside(mode, own):
    """C5: its releasing backward must not end the tape that the recompute of the region records on."""
    net, other = model(), model()
    other.set_weights([value * 0.5 for value in other.get_weights()])

    def scaled(x):
        inner = net if own else other
        with unigrad.GradientCollector(inner) as collector:
            collector.backward(tf.reduce_sum(inner(tf.stop_gradient(x)) ** 2))
        return net(x) * tf.reduce_sum(next(iter(collector.gradients.values())))

    found = []
    for run in (scaled, unigrad.checkpoint(scaled, blocks=[net, other])):

        @MODES[mode]
        def step(x, run=run):
            with unigrad.GradientCollector(net) as collector:
                x = collector.watch(x, name="x")
                collector.backward(tf.reduce_sum(run(x)))
            return {**collector.gradients, **collector.input_gradients}

        found.append({name: value.numpy() for name, value in step(X).items()})
    assert found[0].keys() == found[1].keys() == {*unigrad.wrap(net).parameters, "x"}
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-6)  # a sum of 4 products, in another order


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wrap", [unigrad.checkpoint, lambda net: unigrad.microbatch(net, 2)], ids=["whole", "parts"])
@pytest.mark.parametrize("primal", ["input", "variable"])
def test_forward_mode_through_a_region_is_refused(mode, wrap, primal):
    net = model()
    run = wrap(net)
    followed = net.layers[0].kernel.value if primal == "variable" else X

    def step(x):
        target = followed if primal == "variable" else x
        with tf.autodiff.ForwardAccumulator(target, tf.ones_like(target)) as accumulator:
            y = run(x)
        return accumulator.jvp(y)

    with pytest.raises(unigrad.UnsupportedError, match="ForwardAccumulator"):
        MODES[mode](step)(X)
    run.enabled = False
    assert MODES[mode](step)(X) is not None


def test_an_accumulator_that_follows_something_else_is_no_matter():
    net = model()
    run, other = unigrad.checkpoint(net), tf.constant(2.0)
    with tf.autodiff.ForwardAccumulator(other, 1.0) as accumulator:
        with unigrad.GradientCollector(net) as collector:
            collector.backward(tf.reduce_sum(run(X)))
        square = other * other
    assert float(accumulator.jvp(square)) == 4.0
    assert len(collector.gradients) == 4


def test_a_jacobian_of_a_region_is_refused_where_its_backward_is_traced_and_right_where_not():
    net = model()
    run = unigrad.checkpoint(net)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(X)
        y, plain = run(X), net(X)
    with pytest.raises(unigrad.UnsupportedError, match="experimental_use_pfor=False"):
        tape.jacobian(y, X)
    found = tape.jacobian(y, X, experimental_use_pfor=False)
    np.testing.assert_array_equal(found, tape.jacobian(plain, X, experimental_use_pfor=False))


@pytest.mark.parametrize(
    "wrap",
    [unigrad.checkpoint, lambda function, blocks: unigrad.microbatch(function, 2, blocks=blocks)],
    ids=["whole", "parts"],
)
def test_a_function_on_a_symbolic_tensor_is_refused_and_a_layer_is_not(wrap):
    """Keras would put what the function calls into the model, without the region."""
    layer = layers.Dense(2)
    inputs = keras.Input((3,), batch_size=4)
    with pytest.raises(unigrad.UnsupportedError, match=r"checkpoint\(layer\)"):
        wrap(lambda x: layer(x), blocks=[layer])(inputs)
    assert keras.Model(inputs, unigrad.checkpoint(layer)(inputs)).output_shape == (4, 2)


RETURNED = {
    "TensorArray": lambda y: tf.TensorArray(tf.float32, 4).unstack(y),
    "RaggedTensor": lambda y: tf.RaggedTensor.from_row_splits(y, [0, 4]),
    "IndexedSlices": lambda y: tf.IndexedSlices(y, tf.range(4)),
}


@pytest.mark.parametrize("kind", RETURNED)
def test_an_output_whose_tensors_would_lose_their_gradient_is_refused(kind):
    net = model()
    run = unigrad.checkpoint(lambda x: RETURNED[kind](net(x)), blocks=[net])
    with unigrad.GradientCollector(net, on_unused="ignore"), pytest.raises(unigrad.UnsupportedError, match=kind):
        run(X)


def test_an_argument_of_several_tensors_that_needs_a_gradient_is_refused_and_any_other_is_not():
    net = model()
    run = unigrad.checkpoint(lambda rows: net(rows.values), blocks=[net])
    rows = tf.RaggedTensor.from_row_splits(X, [0, 1, 4])
    with unigrad.GradientCollector(net, on_unused="ignore") as collector:
        collector.backward(tf.reduce_sum(run(rows)))
        assert len(collector.gradients) == 4
        watched = collector.watch(X, "x")
        with pytest.raises(unigrad.UnsupportedError, match="RaggedTensor"):
            run(tf.RaggedTensor.from_row_splits(watched, [0, 1, 4]))
