"""Paddle's own layers as blocks: names, layouts, statistics held as parameters, layers without values (clauses B1 to B5, B9)."""

import copy

import numpy as np
import paddle
import pytest
from paddle import nn
from unigrad_paddle.layers import describe

import unigrad
from unigrad import BatchCoupledError, NotBuiltError, RecomputeMismatchError, UnsupportedError

X = paddle.to_tensor(np.random.default_rng(0).standard_normal((4, 3, 5, 5)).astype("float32"))
EPS = float(np.finfo(np.float32).eps)


def test_names_roles_and_native_names():
    model = nn.Sequential(
        nn.Conv2D(3, 4, 3),
        nn.BatchNorm2D(4),
        nn.InstanceNorm2D(4),
        nn.PReLU(),
        nn.Conv2DTranspose(4, 2, 2),
        nn.GroupNorm(1, 2),
        nn.Linear(4, 2),
        nn.Embedding(3, 2),
        nn.LayerNorm([2]),
    )
    block = unigrad.wrap(model)
    assert block.roles == {
        "0.weight": "conv",
        "0.bias": "conv",
        "1.weight": "norm",
        "1.bias": "norm",
        "2.weight": "norm",
        "2.bias": "norm",
        "3.weight": "other",
        "4.weight": "transposed conv",
        "4.bias": "transposed conv",
        "5.weight": "norm",
        "5.bias": "norm",
        "6.weight": "dense",
        "6.bias": "dense",
        "7.weight": "embedding",
        "8.weight": "norm",
        "8.bias": "norm",
    }
    assert list(block.buffers) == ["1.running_mean", "1.running_var"]
    assert block.native_name("1.running_var") == "1._variance"
    assert block.native_name("2.weight") == "2.scale"
    assert block.native_name("3.weight") == "3._weight"
    # A dense weight has its inputs first, as Paddle has it.
    assert block.state()["6.weight"].shape == (4, 2)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.SimpleRNN])
def test_recurrent_layers_have_each_weight_once(kind):
    block = unigrad.wrap(kind(3, 2, num_layers=2, direction="bidirect"))
    assert not block.aliases
    assert set(block.roles.values()) == {"recurrent"}
    assert list(block.parameters)[:4] == ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    assert len(block.parameters) == 16
    assert not block.pending


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.SimpleRNN])
@pytest.mark.parametrize("direction", ["forward", "bidirect"])
def test_a_checkpointed_recurrent_layer_is_the_plain_one(kind, direction):
    """C1: its fused kernel takes weights from a list of the layer's own, past the places of its parameters."""
    model = kind(3, 2, num_layers=2, direction=direction, dropout=0.5)
    model.train()
    found = []
    for run in (model, unigrad.checkpoint(model)):
        unigrad.seed(1)
        with unigrad.GradientCollector(model) as collector:
            x = collector.watch(X[:, :, :, 0].transpose([0, 2, 1]), "x")
            output, state = run(x)
            collector.backward(output.square().sum(), retain_graph=True)
            collector.backward(output.square().sum())
        last = state[0] if isinstance(state, tuple) else state
        found.append(
            {name: value.numpy() for name, value in collector.gradients.items()}
            | {"x": collector.input_gradients["x"].numpy(), "output": output.numpy(), "last": last.numpy()}
        )
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        assert value.tobytes() == found[1][name].tobytes(), name
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.filterwarnings("ignore:When training")
def test_statistics_move_once_and_stay_the_same_objects():
    """C3, B2: batch normalization holds its statistics as frozen parameters and writes them in place."""
    norm = nn.BatchNorm2D(3)
    mean, pointer = norm._mean, norm._mean.data_ptr()
    plain = copy.deepcopy(norm)
    plain(X)
    with unigrad.GradientCollector(norm) as collector:
        loss = unigrad.checkpoint(norm)(X).square().sum()
        collector.backward(loss, retain_graph=True)
        collector.backward(loss)
    assert norm._mean is mean
    assert norm._mean.data_ptr() == pointer
    assert norm._mean.numpy().tobytes() == plain._mean.numpy().tobytes()
    assert norm._variance.numpy().tobytes() == plain._variance.numpy().tobytes()


@pytest.mark.filterwarnings("ignore:When training")
def test_freezing_everything_leaves_statistics_alone():
    """B9: and unfreezing makes no parameter of a statistic."""
    block = unigrad.wrap(nn.BatchNorm2D(3)).train().freeze()
    before = block.state()["running_mean"]
    block(X)
    assert block.state()["running_mean"].tobytes() == before.tobytes()
    block.unfreeze()
    assert block.native._mean.stop_gradient
    block(X)
    assert block.state()["running_mean"].tobytes() != before.tobytes()


@pytest.mark.filterwarnings("ignore:When training, we now always track")  # Paddle's, of this setting
@pytest.mark.parametrize("training", [True, False])
def test_a_layer_that_always_uses_the_batch_keeps_its_statistics_when_frozen(training):
    """B3: by name; in either mode it normalizes as it was told, and couples the samples of a part (M4)."""
    block = unigrad.wrap(nn.Sequential(nn.Conv2D(3, 4, 3), nn.BatchNorm2D(4, use_global_stats=False))).freeze("1")
    (block.train if training else block.eval)()
    before = block.state()
    plain = block.native(X).numpy()
    block.load_state(before)
    np.testing.assert_array_equal(block(X).numpy(), plain)
    assert all(array.tobytes() == before[name].tobytes() for name, array in block.state().items())
    with pytest.raises(BatchCoupledError, match="1"):
        unigrad.microbatch(block, 2)(X)


def test_a_layer_made_under_lazy_guard_is_pending_until_it_has_values():
    """B4, B5."""
    with paddle.LazyGuard():
        model = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    block = unigrad.wrap(model)
    assert block.pending == ("0",)
    with pytest.raises(NotBuiltError, match="0"):
        block.state()
    with pytest.raises(NotBuiltError, match="LazyGuard"):
        block(paddle.ones([1, 3]))
    for parameter in model.parameters():
        parameter.initialize()
    assert block.pending == ()
    assert sorted(block.state()) == ["0.bias", "0.weight"]


@pytest.mark.filterwarnings("ignore:The program will return to single-card")
def test_data_parallel_is_looked_through():
    """B1: names are the inner model's."""
    model = nn.Sequential(nn.Linear(3, 2))
    wrapped = paddle.DataParallel(model)
    block = unigrad.wrap(wrapped)
    assert list(block.parameters) == ["0.weight", "0.bias"]
    with unigrad.GradientCollector(wrapped) as collector:
        assert collector.engine == "pure"  # one process
        collector.backward(wrapped(paddle.ones([1, 3])).sum())
    assert len(collector.gradients) == 2


def test_a_copy_of_a_recurrent_layer_is_a_model_of_its_own():
    """B3."""
    block = unigrad.wrap(nn.LSTM(3, 2))
    twin = copy.deepcopy(block)
    twin.load_state({name: value + 1 for name, value in block.state().items()})
    before = block.native(paddle.ones([1, 2, 3]))[0].numpy()
    assert twin.native(paddle.ones([1, 2, 3]))[0].numpy().tobytes() != before.tobytes()
    assert list(twin.parameters) == list(block.parameters)


def test_what_was_described_stays_while_nothing_changes():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1D(2))
    backend = unigrad.get_backend("paddle")
    known = describe(model)
    assert backend.block.structure(model, known) is known
    model.add_sublayer("more", nn.Linear(2, 2))
    assert backend.block.structure(model, known) is not known


def test_a_checkpointed_layer_is_a_layer_in_containers():
    """C13: names, state keys and saving are those of the plain one."""
    inner = nn.Linear(3, 3)
    model = nn.Sequential(unigrad.checkpoint(inner), nn.Tanh())
    assert isinstance(model[0], nn.Linear)
    assert list(model.state_dict()) == ["0.weight", "0.bias"]
    assert [name for name, _ in model.named_parameters()] == ["0.weight", "0.bias"]
    model.eval()
    assert not inner.training
    twin = copy.deepcopy(model)
    assert twin[0].weight is not inner.weight
    model.set_state_dict({name: value * 2 for name, value in twin.state_dict().items()})
    assert np.array_equal(inner.weight.numpy(), 2 * twin[0].weight.numpy())


@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.spectral_norm])
@pytest.mark.parametrize("run", [unigrad.checkpoint, lambda model: unigrad.microbatch(model, 3)])
@pytest.mark.parametrize("around", [False, True])
def test_a_weight_that_a_hook_computes_leads_to_its_parameters(norm, run, around):
    """C1, C10: the hook of a layer runs before the region of that layer, and leaves a tensor with a graph among the buffers."""
    if around and norm is nn.utils.spectral_norm and run is not unigrad.checkpoint:
        run = unigrad.checkpoint  # parts are refused, see below
    model = nn.Sequential(norm(nn.Linear(3, 2)), nn.Tanh())
    block = unigrad.wrap(model)
    state = block.state()
    found = []
    for form in (model, run(model) if around else nn.Sequential(run(model[0]), model[1])):
        block.load_state(state)
        with unigrad.GradientCollector(model) as collector:
            loss = form(X[:, :, 0, 0]).square().sum()
            collector.backward(loss, retain_graph=True)
            collector.backward(loss)
        found.append(({name: value.numpy() for name, value in collector.gradients.items()}, block.state()))
    (plain, after), (other, after_other) = found
    assert len(plain) > 1
    assert plain.keys() == other.keys()
    for name, value in plain.items():
        np.testing.assert_allclose(other[name], value, rtol=0, atol=40 * EPS * np.abs(value).max(), err_msg=name)
    for name, value in after.items():
        assert value.tobytes() == after_other[name].tobytes(), name


def test_parts_of_a_layer_whose_weight_is_computed_after_a_step():
    """M5: the weight differs from that of the last forward, and is no buffer that couples samples; the vector of a power iteration is."""
    for norm in (nn.utils.weight_norm, nn.utils.spectral_norm):
        model = nn.Sequential(norm(nn.Linear(3, 2)))
        run = unigrad.microbatch(model, 2)
        run.enabled = False
        run(X[:, :, 0, 0])
        run.enabled = True
        with paddle.no_grad():
            for parameter in model.parameters():
                parameter.scale_(2.0)
        if norm is nn.utils.weight_norm:
            np.testing.assert_allclose(run(X[:, :, 0, 0]).numpy(), model(X[:, :, 0, 0]).numpy(), rtol=0, atol=40 * EPS)
        else:
            with pytest.raises(BatchCoupledError, match=r"0\.weight_[uv]"):
                run(X[:, :, 0, 0])


def test_what_is_not_reached_again_in_a_recompute_is_an_error():
    """C8: its gradient would be zero in silence."""
    model = nn.Linear(3, 2)
    used = [True]

    def scaled(x):
        return x * (model.bias[0] if used[0] else model.bias[0].detach())

    x = paddle.ones([2])
    with unigrad.GradientCollector(model, on_unused="ignore") as collector:
        loss = unigrad.checkpoint(scaled, blocks=[model])(collector.watch(x, "x")).sum()
        used[0] = False
        with pytest.raises(RecomputeMismatchError, match=r"\(2,\).*needs a gradient"):
            collector.backward(loss)
        assert not collector.gradients
        used[0] = True
        collector.backward(loss)
    assert collector.gradients["bias"].tolist() == [2, 0]


def test_a_parameter_that_was_taken_out_since_the_forward_is_in_its_place_in_the_recompute():
    """C8: the values are those of the forward, and afterwards the place is empty again."""
    model = nn.Linear(3, 2)
    bias = model.bias
    with unigrad.GradientCollector({"bias": bias}) as collector:
        loss = unigrad.checkpoint(model)(paddle.ones([1, 3])).sum()
        del model._parameters["bias"]
        collector.backward(loss)
    assert collector.gradients["bias"].tolist() == [1, 1]
    assert "bias" not in model._parameters


class _Holds(nn.Layer):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = unigrad.checkpoint(nn.Linear(3, 2))

    def forward(self, x):
        return self.second(self.first(x))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("enabled", [True, False])
def test_a_checkpointed_layer_in_a_compiled_one_is_refused_unless_switched_off(enabled):
    """C12, C13."""
    model = _Holds()
    model.second.enabled = enabled
    x = paddle.ones([4, 3])
    plain = model(x).numpy()
    compiled = paddle.jit.to_static(model, full_graph=True)
    if enabled:
        with pytest.raises(UnsupportedError, match="to_static"):
            compiled(x)
    else:
        np.testing.assert_allclose(compiled(x).numpy(), plain, rtol=0, atol=40 * EPS)
    assert paddle.in_dynamic_mode()
    assert _Holds()(x).shape == [4, 2]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_checkpointed_layer_itself_is_not_compiled():
    """C12."""
    with pytest.raises(UnsupportedError, match="to_static"):
        paddle.jit.to_static(unigrad.checkpoint(nn.Linear(3, 2)), full_graph=True)


def test_layers_made_by_the_class_of_a_checkpointed_one_are_plain_ones():
    """C13: paddle.nn.TransformerEncoder keeps the layer that it is given, and calls its class for the others."""
    given = unigrad.checkpoint(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0))
    model = nn.TransformerEncoder(given, 3)
    assert [type(layer) is nn.TransformerEncoderLayer for layer in model.layers] == [False, True, True]
    plain = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), 3)
    plain.set_state_dict(model.state_dict())
    x = paddle.to_tensor(np.random.default_rng(1).standard_normal((2, 3, 4)).astype("float32"))
    found = []
    for one in (plain, model):
        with unigrad.GradientCollector(one) as collector:
            collector.backward(one(x).square().sum())
        found.append([value.numpy().tobytes() for value in collector.gradients.values()])
    assert found[0] == found[1]
