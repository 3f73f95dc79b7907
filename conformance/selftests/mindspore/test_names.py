"""Names, roles and what is a buffer, of MindSpore's own layers (clauses B1, B2, B3)."""

import copy

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

import unigrad


def tensor(values):
    return Tensor(np.array(values, "float32"))


def test_canonical_and_native_names():
    model = nn.SequentialCell(nn.Dense(2, 2), nn.BatchNorm1d(2), nn.LayerNorm((2,)), nn.Embedding(3, 2))
    block = unigrad.wrap(model)
    assert {name: (block.native_name(name), block.roles[name]) for name in block.parameters} == {
        "0.weight": ("0.weight", "dense"),
        "0.bias": ("0.bias", "dense"),
        "1.weight": ("1.gamma", "norm"),
        "1.bias": ("1.beta", "norm"),
        "2.weight": ("2.gamma", "norm"),
        "2.bias": ("2.beta", "norm"),
        "3.weight": ("3.embedding_table", "embedding"),
    }
    assert {name: block.native_name(name) for name in block.buffers} == {
        "1.running_mean": "1.moving_mean",
        "1.running_var": "1.moving_variance",
    }


def test_a_name_does_not_follow_the_frameworks_which_changes_with_the_place():
    dense = nn.Dense(2, 2)
    before = dense.weight.name
    nn.SequentialCell(nn.SequentialCell(dense))
    assert dense.weight.name != before
    assert list(unigrad.wrap(dense).parameters) == ["weight", "bias"]


def test_a_three_dimensional_normalization_is_one_layer():
    block = unigrad.wrap(nn.SequentialCell(nn.BatchNorm3d(2)))
    assert list(block.parameters) == ["0.weight", "0.bias"]
    assert list(block.buffers) == ["0.running_mean", "0.running_var"]
    assert block.native_name("0.weight") == "0.bn2d.gamma"


def test_recurrent_names_are_torchs():
    assert list(unigrad.wrap(nn.LSTM(2, 3)).parameters) == ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]


def test_tied_parameters_and_shared_layers():
    class Tied(nn.Cell):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Dense(2, 2), nn.Dense(2, 2)
            self.second.weight = self.first.weight
            self.third = self.first

        def construct(self, x):
            return self.third(self.second(self.first(x)))

    block = unigrad.wrap(Tied())
    assert list(block.parameters) == ["first.weight", "first.bias", "second.bias"]
    assert block.aliases == {
        "second.weight": "first.weight",
        "third.weight": "first.weight",
        "third.bias": "first.bias",
    }


class Counts(nn.Cell):
    """A layer that counts its calls in a parameter, as MindSpore's own layers do."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(tensor([2]), name="weight")
        self.calls = Parameter(tensor([0]), name="calls", requires_grad=False)
        self.register_buffer("limit", tensor([9]))

    def construct(self, x):
        self.calls.set_data(self.calls + 1.0)
        return x * self.weight


def test_a_parameter_that_never_trained_is_a_buffer_and_one_frozen_later_is_none():
    model = Counts()
    model.weight.requires_grad = False
    block = unigrad.wrap(model)
    assert (list(block.parameters), list(block.buffers)) == (["weight"], ["calls", "limit"])
    twin = copy.deepcopy(block)
    assert (list(twin.parameters), list(twin.buffers)) == (["weight"], ["calls", "limit"])
    assert twin.state()["weight"].tolist() == [2]


def test_a_counter_moves_once_under_a_checkpoint():
    model = Counts()
    block = unigrad.wrap(model)
    with unigrad.GradientCollector(block) as collector:
        loss = unigrad.checkpoint(block)(tensor([1])).sum()
        collector.backward(loss, retain_graph=True)
        collector.backward(loss)
    assert model.calls.asnumpy().tolist() == [1]


def test_mixed_precision_wrappers_are_looked_through():
    plain = nn.SequentialCell(nn.Dense(2, 2), nn.ReLU())
    wrapped = mindspore.amp.auto_mixed_precision(plain, "O3", mindspore.float16)
    assert list(unigrad.wrap(wrapped).parameters) == ["0.weight", "0.bias"]


def test_whole_numbers_are_buffers_though_mindspore_makes_them_trainable():
    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.weight = Parameter(tensor([2, 3]), name="weight")
            self.steps = Parameter(Tensor([1, 2], mindspore.int32), name="steps")

        def construct(self, x):
            return x * self.weight * self.steps

    model = Net()
    assert model.steps.requires_grad
    block = unigrad.wrap(model)
    assert (list(block.parameters), list(block.buffers)) == (["weight"], ["steps"])
    with unigrad.GradientCollector(block) as collector:
        collector.backward(block(tensor([1, 1])).sum())
    assert collector.gradients["weight"].asnumpy().tolist() == [1, 2]
    assert list(unigrad.wrap(copy.deepcopy(model)).buffers) == ["steps"]
    with pytest.raises(unigrad.ArgumentError, match="steps"):
        unigrad.wrap({"steps": model.steps})


def test_case_73_parameters_without_values_yet_are_loaded_and_copied():
    def make():
        with mindspore.nn.utils.no_init_parameters():
            model = nn.Dense(3, 2)
        assert model.weight.has_init
        return unigrad.wrap(model)

    values = {"weight": np.ones((2, 3), "float32"), "bias": np.ones(2, "float32")}
    block = make()
    block.load_state(values)
    np.testing.assert_array_equal(block(tensor([[1, 2, 3]])).asnumpy(), [[7, 7]])
    for call in (lambda block: block, unigrad.checkpoint):
        block = make()
        with unigrad.GradientCollector(block) as collector:
            collector.backward(call(block)(tensor([[1, 2, 3]])).sum())
        assert collector.gradients["weight"].asnumpy().tolist() == [[1, 2, 3]] * 2
    twin = copy.deepcopy(make())
    assert twin.state()["weight"].shape == (2, 3)
