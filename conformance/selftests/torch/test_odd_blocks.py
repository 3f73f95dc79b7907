"""Blocks of unusual modules: lazy buffers, tied buffers, parameters that a forward changes (clauses B3, C3, C8, G14)."""

import copy

import pytest
import torch
from torch import nn

import unigrad
from unigrad.errors import BatchCoupledError, StaleGraphError


def test_a_block_with_lazy_buffers_can_be_copied():
    """B3: torch itself copies no buffer that has no shape yet."""
    block = unigrad.wrap(nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d()))
    twin = copy.deepcopy(block)
    twin(torch.randn(4, 2))
    assert twin.pending == ()
    assert block.pending == ("0", "1")
    assert twin.buffers["1.running_mean"].shape == (3,)
    assert twin.buffers["1.num_batches_tracked"].item() == 1
    block(torch.randn(4, 5))
    assert block.parameters["0.weight"].shape == (3, 5)


def test_a_parameter_that_the_region_changes_itself_is_named():
    """C8: an embedding with a largest norm scales its rows in each forward."""
    table = nn.Embedding(4, 2, max_norm=0.1)
    run = unigrad.checkpoint(table)
    with unigrad.GradientCollector(table, on_unused="ignore") as collector:
        loss = (run(torch.tensor([1, 2])) ** 2).sum()
        with pytest.raises(StaleGraphError, match=r"changes its own parameters in its forward \(weight\)"):
            collector.backward(loss)


class TiedBuffers(nn.Module):
    """Doubles a buffer in one layer and reads it in another."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.writer, self.reader = nn.Module(), nn.Module()
        self.writer.register_buffer("scale", torch.tensor(1.0))
        self.reader.register_buffer("scale", self.writer.scale)

    def forward(self, x):
        with torch.no_grad():
            self.writer.scale.mul_(2)
        return x * self.weight * self.reader.scale.clone()


def test_a_recompute_sees_a_tied_buffer_as_the_forward_did():
    """C3."""
    model = TiedBuffers()
    with unigrad.GradientCollector(model) as collector:
        loss = unigrad.checkpoint(model)(torch.tensor([1.0, 3.0])).sum()
        collector.backward(loss, retain_graph=True)
        collector.backward(loss)
    assert collector.gradients["weight"].tolist() == [2, 6]
    assert model.reader.scale.item() == 2
    assert model.reader.scale is model.writer.scale


def test_a_frozen_tied_buffer_is_one_buffer_during_the_call():
    """B3: the call sees what it writes, and nothing of it lasts."""
    model = TiedBuffers()
    block = unigrad.wrap(model).freeze("*.scale")
    assert block(torch.tensor([1.0, 3.0])).tolist() == [2, 6]
    assert model.reader.scale.item() == 1


def test_a_complex_parameter_is_frozen_and_unfrozen():
    """B3: its dtype is no floating-point one, which does not make it trainable for ever."""
    block = unigrad.wrap({"w": nn.Parameter(torch.ones(2, dtype=torch.complex64))}).freeze("w")
    assert not block.parameters["w"].requires_grad
    block.unfreeze("w")
    assert block.parameters["w"].requires_grad


class Counting(nn.Module):
    """Fills a registered but empty buffer in its first forward, and counts from then on."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", None)
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        self.count = torch.ones(()) if self.count is None else self.count + 1
        return self.linear(x).tanh()


def test_a_buffer_that_the_forward_fills_is_filled_once():
    """C3."""
    model = Counting()
    run = unigrad.checkpoint(model)
    for expected in (1, 2):
        with unigrad.GradientCollector(model) as collector:
            loss = run(torch.ones(3, 2)).sum()
            collector.backward(loss, retain_graph=True)
            collector.backward(loss)
        assert model.count.item() == expected


def test_parts_that_fill_a_buffer_are_coupled():
    """M5: and the place is empty again."""
    model = Counting()
    with pytest.raises(BatchCoupledError, match="count is a buffer"):
        unigrad.microbatch(model, size=2)(torch.ones(3, 2))
    assert model.count is None


def test_a_sparse_buffer_is_loaded():
    """B5: a graph network keeps its adjacency so."""
    model = nn.Linear(2, 2)
    model.register_buffer("edges", torch.eye(3).to_sparse())
    block = unigrad.wrap(model)
    state = block.state()
    state["edges"] = state["edges"][::-1].copy()
    block.load_state(state)
    assert model.edges.layout is torch.sparse_coo
    assert model.edges.to_dense().tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]


class Neighbours(nn.Module):
    """Sums over the neighbours in a graph, whose edges are a sparse buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("edges", (torch.eye(3) + torch.ones(3, 3).triu(1)).to_sparse())
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        return torch.sparse.mm(self.edges, self.linear(x)).tanh()


class TrainedBuffer(nn.Module):
    """Multiplies by a buffer that needs a gradient."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor([2.0, 3.0], requires_grad=True))

    def forward(self, x):
        return (x * self.scale).tanh()


@pytest.mark.parametrize("kind", [Neighbours, TrainedBuffer])
def test_a_recompute_sees_buffers_of_every_kind(kind):
    """C3."""
    model = kind()
    leaves = dict(model.named_parameters()) or {"scale": model.scale}
    found = []
    for call in (model, unigrad.checkpoint(model)):
        with unigrad.GradientCollector(leaves) as collector:
            collector.backward(call(torch.ones(3, 2).cumsum(0)).sum())
        found.append({name: value.tolist() for name, value in collector.gradients.items()})
    assert found[0] == found[1]


def test_a_layer_that_replaced_a_frozen_one_is_frozen_at_its_first_call():
    """B3: nobody looks at the block in between."""
    block = unigrad.wrap(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))).freeze("0")
    block(torch.ones(2, 3))
    block.native[0] = nn.Linear(3, 3)
    block(torch.ones(2, 3)).sum().backward()
    assert block.native[0].weight.grad is None
    assert block.native[1].weight.grad is not None


def test_a_normalization_layer_added_later_and_frozen_natively_keeps_its_statistics():
    """B9: the model had no such layer when the block last looked at it."""
    block = unigrad.wrap(nn.Sequential(nn.Linear(3, 3)))
    assert list(block.parameters) == ["0.weight", "0.bias"]
    block.native.append(nn.BatchNorm1d(3).requires_grad_(False))
    block.train()
    block(torch.randn(4, 3))
    assert block.native[1].num_batches_tracked.item() == 0
