"""MindSpore's optimizers step what has a gradient, with the state that belongs to it, and nothing else (clauses R4, D2)."""

import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.experimental import optim

import unigrad
from unigrad.errors import ArgumentError, ArgumentTypeError, StateMismatchError, UnsupportedError


def tensor(values):
    return Tensor(np.array(values, "float32"))


OPTIMIZERS = {
    "SGD": lambda parameters: nn.SGD(parameters, learning_rate=0.1, momentum=0.9, weight_decay=0.01),
    "Momentum": lambda parameters: nn.Momentum(parameters, learning_rate=0.1, momentum=0.9),
    "Adam": lambda parameters: nn.Adam(parameters, learning_rate=0.1),
    "AdamWeightDecay": lambda parameters: nn.AdamWeightDecay(parameters, learning_rate=0.1, weight_decay=0.01),
    "RMSProp": lambda parameters: nn.RMSProp(parameters, learning_rate=0.1),
    "Adagrad": lambda parameters: nn.Adagrad(parameters, learning_rate=0.1),
    "experimental SGD": lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9),
    "experimental Adam": lambda parameters: optim.Adam(parameters, lr=0.1),
    "experimental AdamW": lambda parameters: optim.AdamW(parameters, lr=0.1, weight_decay=0.01),
    "experimental NAdam": lambda parameters: optim.NAdam(parameters, lr=0.1),
    "experimental ASGD": lambda parameters: optim.ASGD(parameters, lr=0.1),
}

ALL = OPTIMIZERS | {
    "AMSGrad": lambda parameters: nn.Adam(parameters, learning_rate=0.1, use_amsgrad=True),
    "AdaFactor": lambda parameters: nn.AdaFactor(
        parameters, learning_rate=0.1, beta1=0.9, relative_step=False, scale_parameter=False
    ),
    "AdaMax": lambda parameters: nn.AdaMax(parameters, learning_rate=0.1),
    "Adadelta": lambda parameters: nn.Adadelta(parameters, learning_rate=0.1),
    "ASGD": lambda parameters: nn.ASGD(parameters, learning_rate=0.1),
    "AdamOffload": lambda parameters: nn.AdamOffload(parameters, learning_rate=0.1),
    "FTRL": lambda parameters: nn.FTRL(parameters, learning_rate=0.1),
    "LazyAdam": lambda parameters: nn.LazyAdam(parameters, learning_rate=0.1),
    "ProximalAdagrad": lambda parameters: nn.ProximalAdagrad(parameters, learning_rate=0.1),
    "Rprop": lambda parameters: nn.Rprop(parameters, learning_rate=0.1),
    "centered RMSProp": lambda parameters: nn.RMSProp(parameters, learning_rate=0.1, momentum=0.9, centered=True),
    "a list of rates": lambda parameters: nn.SGD(parameters, learning_rate=[0.1, 0.05, 0.02, 0.01]),
    "experimental Adadelta": lambda parameters: optim.Adadelta(parameters, lr=0.1),
    "experimental Adagrad": lambda parameters: optim.Adagrad(parameters, lr=0.1),
    "experimental Adamax": lambda parameters: optim.Adamax(parameters, lr=0.1),
    "experimental RAdam": lambda parameters: optim.RAdam(parameters, lr=0.1),
    "experimental RMSprop": lambda parameters: optim.RMSprop(parameters, lr=0.1, momentum=0.9, centered=True),
    "experimental Rprop": lambda parameters: optim.Rprop(parameters, lr=0.1),
}


def leaves():
    # of one name, as parameters of two Cells may be
    return {name: Parameter(tensor(values), name="weight") for name, values in (("a", [1, 2]), ("b", [3, -1]))}


def step(block, optimizer, loss):
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        collector.backward(loss())
        collector.apply(optimizer)


def rate_of(native):
    return native.param_groups[0]["lr"] if isinstance(native, optim.Optimizer) else native.learning_rate


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_each_parameter_is_stepped_as_if_it_had_an_optimizer_of_its_own(kind):
    """The reference is one native optimizer for each parameter, stepped where the parameter has a gradient."""
    own, alone = leaves(), leaves()
    native = {name: OPTIMIZERS[kind]([leaf]) for name, leaf in alone.items()}
    block = unigrad.wrap(own)
    optimizer = unigrad.Optimizer(block, OPTIMIZERS[kind])
    for used in ("ab", "a", "ab", "b", "a", "ab"):
        step(block, optimizer, lambda used=used: ops.sum(sum(own[name] * own[name] for name in used)))
        for name in used:
            native[name]((2 * alone[name],))
        for name in "ab":
            np.testing.assert_array_equal(own[name].asnumpy(), alone[name].asnumpy())


@pytest.mark.parametrize("kind", ["SGD", "Adam", "experimental AdamW"])
def test_a_learning_rate_changed_on_the_native_optimizer_is_that_of_all(kind):
    own = leaves()
    block = unigrad.wrap(own)
    optimizer = unigrad.Optimizer(block, OPTIMIZERS[kind])
    step(block, optimizer, lambda: (own["a"] * 1.0).sum())
    step(block, optimizer, lambda: (own["a"] * own["b"]).sum())
    ops.assign(rate_of(optimizer.native), tensor(0.0))
    before = own["b"].asnumpy().copy()
    step(block, optimizer, lambda: (own["a"] * own["b"]).sum())
    np.testing.assert_array_equal(own["b"].asnumpy(), before)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "experimental AdamW"])
@pytest.mark.parametrize("how", ["load_state", "set_data"])
def test_a_load_between_two_steps_does_not_stop_the_training(kind, how):
    """A compiled optimizer keeps the memory that a parameter had; after ``set_data`` its steps are lost in silence."""
    own = leaves()
    block = unigrad.wrap(own)
    optimizer = unigrad.Optimizer(block, OPTIMIZERS[kind])
    step(block, optimizer, lambda: (own["a"] * own["b"]).sum())
    if how == "load_state":
        block.load_state({"a": np.array([5, 6], "float32"), "b": np.array([7, 8], "float32")})
    else:
        own["a"].set_data(tensor([5, 6]))
    step(block, optimizer, lambda: (own["a"] * own["b"]).sum())
    moved = own["a"].asnumpy() - [5, 6]
    assert (np.abs(moved) > 0.05).all()


def numbers(place, depth=0):
    """Yield every tensor that an optimizer holds, however deep, but for what its compiler keeps."""
    if isinstance(place, Tensor):
        yield place
    elif depth < 5:
        within = vars(place) if isinstance(place, nn.Cell) else place
        parts = within.values() if isinstance(within, dict) else within if isinstance(within, list | tuple) else ()
        for part in parts:
            yield from numbers(part, depth + 1)


@pytest.mark.parametrize("kind", ALL)
def test_all_that_changes_in_a_step_is_in_the_state(kind):
    """Whatever tensor a native optimizer changes is one that ``slots_of`` finds, or a parameter; nothing else is."""
    from unigrad_mindspore.slots import slots_of

    parameters = [Parameter(tensor([[1, 2], [3, 4]]), name="a"), Parameter(tensor([3, -1]), name="b")]
    native = ALL[kind](parameters)
    slots = slots_of(native)
    found = [*(one for several in slots.each.values() for one in several), *slots.shared.values()]
    assert not {id(one) for one in found} & set(map(id, parameters)), "a parameter is no state"
    known = {id(one) for one in (*found, *parameters)}
    before = {id(one): (one, one.asnumpy().copy()) for one in numbers(native) if id(one) not in known}
    for _ in range(2):
        native(tuple(tensor(np.full(one.shape, 0.5)) for one in parameters))
    changed = [one.name for one, values in before.values() if not np.array_equal(one.asnumpy(), values)]
    assert changed == []


@pytest.mark.parametrize("kind", ALL)
def test_a_state_of_each_is_resumed_and_moves_no_parameter(kind):
    """Clause D2; the control is that the saved optimizer's next step is the loaded one's, from the same values."""
    own = leaves()
    block = unigrad.wrap(own)
    optimizer, other = (unigrad.Optimizer(block, ALL[kind]) for _ in range(2))

    def loss():
        return (own["a"] * own["a"] * own["b"]).sum()

    for _ in range(2):
        step(block, optimizer, loss)
    saved = optimizer.state()
    block.load_state(moved := {name: values + 0.25 for name, values in block.state().items()})
    other.load_state(saved)
    assert all(np.array_equal(block.state()[name], values) for name, values in moved.items())
    after = []
    for one in (optimizer, other):
        block.load_state(moved)
        step(block, one, loss)
        after.append(block.state())
    for name in moved:
        np.testing.assert_array_equal(after[0][name], after[1][name])


@pytest.mark.parametrize("kind", ["SGD", "Adam", "experimental SGD", "experimental AdamW"])
def test_a_rate_that_was_changed_is_resumed(kind):
    """``/key`` holds the settings that a schedule or the user may have changed."""
    own = leaves()
    block = unigrad.wrap(own)
    optimizer, other = (unigrad.Optimizer(block, OPTIMIZERS[kind]) for _ in range(2))
    step(block, optimizer, lambda: (own["a"] * own["b"]).sum())
    ops.assign(rate_of(optimizer.native), tensor(0.0125))
    other.load_state(optimizer.state())
    assert float(rate_of(other.native).asnumpy()) == np.float32(0.0125)


def test_the_rate_of_a_schedule_is_resumed():
    own = leaves()
    block = unigrad.wrap(own)
    optimizer = unigrad.Optimizer(
        block,
        OPTIMIZERS["experimental SGD"],
        schedule=lambda native: optim.lr_scheduler.ExponentialLR(native, 0.5),
    )
    for _ in range(3):
        step(block, optimizer, lambda: (own["a"] * own["b"]).sum())
        optimizer.schedule.step()
    other = unigrad.Optimizer(block, OPTIMIZERS["experimental SGD"])
    other.load_state(optimizer.state())
    assert float(rate_of(other.native).asnumpy()) == pytest.approx(0.0125)


def test_a_state_of_other_groups_is_refused():
    own = leaves()
    block = unigrad.wrap(own)
    optimizer = unigrad.Optimizer(block, lambda two: optim.SGD([{"params": [one]} for one in two], lr=0.1))
    step(block, optimizer, lambda: (own["a"] * own["b"]).sum())
    other = unigrad.Optimizer(block, OPTIMIZERS["experimental SGD"])
    with pytest.raises(StateMismatchError, match=r"1\.lr.* 1 groups"):
        other.load_state(optimizer.state())


def test_the_control_a_native_step_after_set_data_is_lost():
    leaf = leaves()["a"]
    native = OPTIMIZERS["SGD"]([leaf])
    native((tensor([1, 1]),))
    leaf.set_data(tensor([5, 6]))
    native((tensor([1, 1]),))
    assert leaf.asnumpy().tolist() == [5, 6], "MindSpore has mended it: reconnect() is not needed any more"


def test_an_optimizer_that_changes_nothing_is_refused():
    own = leaves()
    block = unigrad.wrap(own)
    optimizer = unigrad.Optimizer(block, lambda parameters: mint.optim.SGD(parameters, lr=0.1))
    with unigrad.GradientCollector(block) as collector:
        collector.backward((own["a"] * own["b"]).sum())
        with pytest.raises(UnsupportedError, match=r"mint\.optim"):
            collector.apply(optimizer)


def test_a_factory_that_returns_something_else():
    own = leaves()
    block = unigrad.wrap(own)
    optimizer = unigrad.Optimizer(block, lambda parameters: nn.Dense(1, 1))
    with unigrad.GradientCollector(block) as collector:
        collector.backward((own["a"] * own["b"]).sum())
        with pytest.raises(ArgumentTypeError, match="Dense"):
            collector.apply(optimizer)
    assert [leaf.name for leaf in own.values()] == ["weight", "weight"]


def test_a_factory_that_leaves_parameters_out():
    own = leaves()
    block = unigrad.wrap(own)
    optimizer = unigrad.Optimizer(block, lambda parameters: nn.SGD(parameters[:1], 0.1))
    with unigrad.GradientCollector(block) as collector:
        collector.backward((own["a"] * own["b"]).sum())
        with pytest.raises(ArgumentError, match="given 2 parameters, and its optimizer serves 1"):
            collector.apply(optimizer)
    assert own["a"].asnumpy().tolist() == [1, 2]
