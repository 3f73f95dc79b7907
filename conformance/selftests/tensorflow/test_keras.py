"""Keras' own layers: names, roles, saving, fit, mixed precision, added losses (B1, B2, B3, C1, C13)."""

import copy
import random
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import unigrad

X = np.random.default_rng(0).standard_normal((24, 8)).astype("float32")


def gradients_of(block, loss):
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        collector.backward(loss())
    return {name: value.numpy() for name, value in collector.gradients.items()}


def same(left, right):
    assert sorted(left) == sorted(right)
    for name, value in left.items():
        np.testing.assert_array_equal(value, right[name], err_msg=name)


NAMES = {
    "dense": (layers.Dense(2), (3,), "dense", ["weight", "bias"], []),
    "convolution": (layers.Conv2D(2, 3), (5, 5, 1), "conv", ["weight", "bias"], []),
    "transposed": (layers.Conv2DTranspose(2, 3), (5, 5, 1), "transposed conv", ["weight", "bias"], []),
    "volume": (layers.Conv3D(2, 2), (4, 4, 4, 1), "conv", ["weight", "bias"], []),
    "norm": (layers.BatchNormalization(), (3,), "norm", ["weight", "bias"], ["running_mean", "running_var"]),
    "layer-norm": (layers.LayerNormalization(), (3,), "norm", ["weight", "bias"], []),
    "lstm": (layers.LSTM(2), (4, 3), "recurrent", ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0"], []),
    "gru": (layers.GRU(2), (4, 3), "recurrent", ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0"], []),
}


@pytest.mark.parametrize("kind", NAMES)
def test_names_and_roles_of_a_layer(kind):
    layer, shape, role, parameters, buffers = NAMES[kind]
    block = unigrad.wrap(layer)
    assert block.pending == ("",)
    layer(tf.zeros((2, *shape)))
    assert block.pending == ()
    assert list(block.parameters) == parameters
    assert list(block.buffers) == buffers
    assert set(block.roles.values()) == {role}
    assert all(isinstance(value, keras.Variable) for value in block.parameters.values())


def test_names_are_attribute_paths_whatever_counters_keras_has_used():
    class Inner(layers.Layer):
        def __init__(self):
            super().__init__()
            self.parts = [layers.Dense(2), layers.Dense(2)]
            self.named = {"a": layers.Dense(2)}
            self._hidden = layers.Dense(2)
            self.raw = tf.Variable(1.0)

        def call(self, x):
            for part in (*self.parts, self.named["a"], self._hidden):
                x = part(x)
            return x * self.raw

    for _ in range(2):
        outer = keras.Sequential([Inner(), layers.Dense(1)])
        outer(tf.zeros((1, 2)))
        names = [name for name in unigrad.wrap(outer).parameters if name.endswith(("weight", "raw"))]
        assert sorted(names) == sorted(
            ["0.raw", "0.parts.0.weight", "0.parts.1.weight", "0.named.a.weight", "0.hidden.weight", "1.weight"]
        )


def test_names_in_a_functional_model_are_the_same_whatever_was_made_before():
    """Keras counts all layers of a process in the names that it makes."""

    def build():
        inputs = keras.Input((4, 4, 1))
        hidden = layers.Conv2DTranspose(2, 2)(layers.Conv2D(2, 2)(layers.Conv2D(2, 2)(inputs)))
        hidden = keras.Sequential([layers.Flatten(), layers.Dense(3)])(hidden)
        return keras.Model(inputs, layers.Dense(2, name="head")(layers.Dense(2)(hidden)))

    first, second = (unigrad.wrap(build()) for _ in range(2))
    names = [name for name in first.parameters if name.endswith("weight")]
    assert names == [f"{layer}.weight" for layer in NAMES_OF_A_FUNCTIONAL_MODEL]
    assert list(second.parameters) == list(first.parameters)
    second.load_state(first.state())


NAMES_OF_A_FUNCTIONAL_MODEL = ["conv2d", "conv2d_1", "conv2d_transpose", "sequential.1", "dense", "head"]


def test_layers_of_equal_name_are_told_apart():
    class Two(keras.Model):
        def __init__(self):
            super().__init__()
            self.left, self.right = layers.Dense(2, name="same"), layers.Dense(2, name="same")

        def call(self, x):
            return self.left(x) + self.right(x)

    model = Two()
    model(tf.zeros((1, 2)))
    block = unigrad.wrap(model)
    assert list(block.parameters) == ["left.weight", "left.bias", "right.weight", "right.bias"]
    assert len({block.native_name(name) for name in block.parameters}) == 4


def test_keras_says_what_is_trainable():
    """TensorFlow goes on watching a layer that Keras has frozen."""
    model = keras.Sequential([layers.Dense(3), layers.Dense(1)])
    model(tf.constant(X))
    block = unigrad.wrap(model)
    model.layers[0].trainable = False
    assert sorted(gradients_of(block, lambda: tf.reduce_sum(model(tf.constant(X))))) == ["1.bias", "1.weight"]
    model.layers[0].trainable = True
    assert len(gradients_of(block, lambda: tf.reduce_sum(model(tf.constant(X))))) == 4


def test_a_layer_made_frozen_and_unfrozen_later_is_collected():
    layer = layers.Dense(2, trainable=False)
    layer(tf.zeros((1, 8)))
    layer.trainable = True
    assert sorted(gradients_of(layer, lambda: tf.reduce_sum(layer(tf.constant(X))))) == ["bias", "weight"]


def test_rows_looked_up_twice_are_summed_and_dense():
    table = layers.Embedding(5, 3)
    table(tf.constant([0]))
    found = gradients_of(table, lambda: tf.reduce_sum(table(tf.constant([0, 1, 1]))))
    assert found["weight"][:, 0].tolist() == [1, 2, 0, 0, 0]


def functional(wrap):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8,))
    part = keras.Sequential([layers.Dense(16, activation="relu"), layers.BatchNormalization(), layers.Dropout(0.2)])
    hidden = wrap(layers.Dense(8, activation="tanh"))(wrap(part)(inputs))
    model = keras.Model(inputs, layers.Dense(2)(hidden))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def test_fit_with_checkpoints_is_fit_without():
    found = []
    for wrap in (lambda layer: layer, unigrad.checkpoint):
        model = functional(wrap)
        history = model.fit(X, X[:, :2], epochs=3, batch_size=10, shuffle=False, verbose=0).history["loss"]
        found.append([np.array(history), *model.get_weights()])
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_saved_model_keeps_its_checkpoints(tmp_path):
    model = functional(unigrad.checkpoint)
    model.layers[2].enabled = False
    model.fit(X, X[:, :2], verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict(X, verbose=0), model.predict(X, verbose=0))
    assert [getattr(layer, "enabled", None) for layer in again.layers] == [None, True, False, None]
    again.fit(X, X[:, :2], verbose=0)


def test_loading_without_the_backend_says_what_to_do(tmp_path):
    """Keras takes classes from its register only, which a process that has not loaded the backend has not filled."""
    functional(unigrad.checkpoint).save(tmp_path / "model.keras")
    program = "import keras, sys; keras.models.load_model(sys.argv[1])"
    for begin, fine in (("import unigrad; ", False), ("import unigrad; unigrad.get_backend('tensorflow'); ", True)):
        done = subprocess.run(
            [sys.executable, "-c", begin + program, str(tmp_path / "model.keras")],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode == 0) == fine, done.stderr
        assert ("call unigrad.get_backend('tensorflow') before loading" in done.stderr) != fine


def test_weights_are_saved_as_those_of_the_plain_model(tmp_path):
    model, plain = functional(unigrad.checkpoint), functional(lambda layer: layer)
    model.fit(X, X[:, :2], verbose=0)
    plain.fit(X, X[:, :2], epochs=2, verbose=0)
    model.save_weights(tmp_path / "model.weights.h5")
    plain.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(plain.predict(X, verbose=0), model.predict(X, verbose=0))


def test_a_microbatched_layer_is_saved_with_its_settings(tmp_path):
    inputs = keras.Input((8,), batch_size=24)
    model = keras.Model(inputs, unigrad.microbatch(layers.Dense(2), 5)(inputs))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(tf.constant(X)), model(tf.constant(X)))
    with pytest.raises(unigrad.UnsupportedError, match="can't be saved"):
        unigrad.microbatch(layers.Dense(2), 5, combine=lambda parts: parts[0]).get_config()


def test_a_copy_has_variables_of_its_own():
    model = functional(unigrad.checkpoint)
    twin = copy.deepcopy(unigrad.wrap(model)).native
    before = [value.copy() for value in model.get_weights()]
    assert all(a is not b for a, b in zip(model.variables, twin.variables, strict=True))
    twin.fit(X, X[:, :2], verbose=0)
    for one, two in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(twin(tf.constant(X)).shape, (24, 2))


class Nested(keras.Model):
    """A subclassed model that holds another."""

    def __init__(self, wrap):
        super().__init__()
        self.block = wrap(keras.Sequential([layers.Dense(8, activation="tanh"), layers.LayerNormalization()]))
        self.head = layers.Dense(1)

    def call(self, x):
        return self.head(self.block(self.block(x)))


def test_one_block_called_twice_in_a_subclassed_model_inside_another():
    found = []
    for wrap in (lambda layer: layer, unigrad.checkpoint):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([Nested(wrap), layers.Dense(1)])
        model(tf.constant(X))
        found.append(gradients_of(model, lambda model=model: tf.reduce_mean(model(tf.constant(X)) ** 2)))
    assert sorted(found[0]) == sorted(found[1])
    for name, value in found[0].items():
        # Two contributions of each call: three additions, in another order.
        bound = 3 * np.finfo("float32").eps * 24 * np.abs(value).max()
        np.testing.assert_allclose(found[1][name], value, rtol=0, atol=bound, err_msg=name)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float64"])
def test_a_dtype_policy_holds_in_the_recompute(policy):
    found = []
    for wrap in (lambda layer: layer, unigrad.checkpoint):
        keras.utils.set_random_seed(0)
        part = keras.Sequential([layers.Dense(8, activation="tanh", dtype=policy), layers.Dropout(0.5, dtype=policy)])
        run = wrap(part)
        run(tf.constant(X))
        found.append(gradients_of(run, lambda run=run: tf.reduce_sum(run(tf.constant(X), training=True) ** 2)))
        assert {value.dtype.name for value in found[-1].values()} == {"float64" if policy == "float64" else "float32"}
    same(*found)


def test_losses_added_inside_a_region_reach_the_parameters():
    found = []
    for wrap in (lambda layer: layer, unigrad.checkpoint):
        keras.utils.set_random_seed(0)
        layer = layers.Dense(4, activity_regularizer=keras.regularizers.L2(0.1))
        part = keras.Sequential([layer, layers.Dense(2)])
        run = wrap(part)
        run(tf.constant(X))

        def loss(run=run):
            value = tf.reduce_sum(run(tf.constant(X)))
            assert len(run.losses) == 1
            return value + run.losses[0]

        found.append(gradients_of(run, loss))
        assert len(run.losses) == 1
    same(*found)


def test_a_mask_goes_through_a_region():
    ids = tf.constant([[1, 2, 0, 0], [3, 0, 0, 0]])
    found = []
    for wrap in (lambda layer: layer, unigrad.checkpoint):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([layers.Embedding(5, 4, mask_zero=True), wrap(layers.LSTM(3))])
        model(ids)
        found.append(gradients_of(model, lambda model=model: tf.reduce_sum(model(ids) ** 2)))
    same(*found)


def test_the_first_region_of_a_process_draws_nothing_from_python():
    """C2: Keras makes its global generator, whose state a region keeps, with a seed that it draws from Python's generator."""
    keras.utils.clear_session()  # as in a new process
    net = keras.Sequential([layers.Dense(2)])
    net.build((None, 8))
    before = random.getstate()
    with unigrad.GradientCollector(net) as collector:
        collector.backward(tf.reduce_sum(unigrad.checkpoint(net)(X)))
    assert random.getstate() == before


def test_a_seed_gives_the_same_draws_of_python_the_first_time_too():
    """D1, of the first use of Keras' global generator."""
    keras.utils.clear_session()
    drawn = []
    for _ in range(2):
        unigrad.seed(3)
        drawn.append(random.random())
    assert drawn[0] == drawn[1]


WRAPPED = {
    "as they are": lambda layer: layer,
    "checkpoint": unigrad.checkpoint,
    "parts": lambda layer: unigrad.microbatch(layer, 2),
    "parts that are probed": lambda layer: unigrad.microbatch(layer, 2, verify=True),
}


@pytest.mark.parametrize("built", [True, False], ids=["built", "pending"])
@pytest.mark.parametrize("wrap", WRAPPED)
def test_runs_of_the_library_s_own_add_no_losses(wrap, built):
    """M1: looks at other lengths, probes, and the run that builds a region; a loss of theirs would be another number in silence."""
    net = keras.Sequential([layers.Dense(3, activity_regularizer=keras.regularizers.L2(0.5))])
    if built:
        net.build((None, 4))
    run = WRAPPED[wrap](net)
    x = np.random.default_rng(0).standard_normal((6, 4)).astype("float32")
    for _ in range(2):
        outputs = run(x).numpy()
        parts = np.split(outputs, 3) if wrap.startswith("parts") else [outputs]
        expected = [0.5 * (part**2).sum() / len(part) for part in parts]  # Keras divides by the size of the batch
        np.testing.assert_allclose([loss.numpy() for loss in net.losses], expected, rtol=1e-5)
