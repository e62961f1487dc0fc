"""Units say what values they take, and what follows from it agrees with what they do."""

import inspect
import math
import re
from pathlib import Path

import pytest
import torch
from count_units import Counts
from unit_cases import CASES

from tapmachine import (
    Binary,
    Categorical,
    Custom,
    Gaussian,
    Spin,
    Tilt,
    TruncatedGaussBernoulli,
    TruncatedGaussian,
    exact_log_partition,
    pseudo_log_likelihood,
    rbm,
)
from tapmachine.units import FiniteSet, Interval, Lattice, Simplex, Units
from tapmachine.units.conditioned import Clamped, Tilted
from tapmachine.units.reweighted import Reweighted

SUPPORTS = [
    (Binary(3), FiniteSet((0, 1))),
    (Spin(3), FiniteSet((-1, 1))),
    (Categorical(3, 4), Simplex(4)),
    (Gaussian(3), Interval()),
    (TruncatedGaussian(3, -1.0, 2.0), Interval(-1, 2)),
    (TruncatedGaussian(2, [0.0, -2.0], [1.0, math.inf]), Interval(-2, math.inf)),
    (TruncatedGaussBernoulli(3), Interval(0, 1, atoms=(0.0,))),
    (Custom(3, lambda x: -x, 0.0, 2.0), Interval(0, 2)),
    (Custom(3, lambda x: -x, values=[0.0, 3.0, 1.0]), FiniteSet((0, 3, 1))),
    (Counts(3), Lattice()),
]
of_all = pytest.mark.parametrize(("units", "support"), SUPPORTS, ids=lambda z: type(z).__name__)


@of_all
def test_units_say_what_they_are(units, support):
    assert units.support == support
    assert units.is_categorical == isinstance(support, Simplex)
    assert units.has_two_states == (support in (FiniteSet((0, 1)), FiniteSet((-1, 1))))
    assert units.n_states() == (None if support.n_states is None else [support.n_states] * units.n)
    lower, upper = units.bounds()
    assert (float(lower.min()), float(upper.max())) == support.bounds
    assert units.is_bounded() == bool(torch.isfinite(upper - lower).all())
    assert (units.atoms() is None) == (support.atoms == ())


@of_all
def test_draws_lie_in_the_support(units, support):
    x = units.sample(Tilt(torch.zeros(200, *units.state_shape), 0.0), torch.Generator().manual_seed(0))
    units.check_states(x)
    assert bool(((x >= support.bounds[0]) & (x <= support.bounds[1])).all())


@of_all
def test_states_by_their_indices(units, support):
    if not support.is_countable:
        with pytest.raises(NotImplementedError, match=r"the values of Interval.* cannot be enumerated"):
            units.decode(torch.zeros(1, units.n, dtype=torch.long))
        return
    count = support.n_states or 60
    states = units.decode(torch.arange(count).unsqueeze(-1).expand(-1, units.n))
    assert states.shape == (count, *units.state_shape)
    assert states.dtype == units.dtype
    units.check_states(states)
    mass = units.log_prior(states).detach().exp().sum(0)
    torch.testing.assert_close(mass, torch.ones(units.n))
    assert torch.equal(states, support.decode(torch.arange(count).unsqueeze(-1).expand(-1, units.n), units.dtype))


@of_all
def test_conditioning_does_not_change_it(units, support):
    x = units.sample(Tilt(torch.zeros(units.state_shape), 0.0), torch.Generator().manual_seed(0))
    conditioned: list[Units] = [Tilted(units, Tilt(0.1, 0.0)), Clamped(units, x)]
    if units.is_bounded() and not units.is_categorical:
        conditioned.append(Reweighted(units, lambda y, x: -((y - x) ** 2), torch.zeros(units.n)))
    for derived in (*conditioned, Clamped(conditioned[0], x)):
        assert derived.support == support
        assert derived.state_shape == units.state_shape
        assert (derived.is_categorical, derived.has_two_states) == (units.is_categorical, units.has_two_states)
        assert derived.prior_field is None  # the field of a tilt is evidence, not a parameter
    assert Clamped(units, x).n_states() == [1] * units.n


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_field_of_a_prior(case):
    units = case.simple()
    assert units.prior_field is getattr(units, "field", None)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FiniteSet(()), "one or more distinct numbers"),
        (lambda: FiniteSet((1, 1)), "distinct numbers"),
        (lambda: Lattice(step=0), "a finite, nonzero step"),
        (lambda: Lattice(math.inf), "a finite start"),
        (lambda: Interval(1, 1), "expected lower < upper"),
        (lambda: Simplex(1), "expected an integer, 2 or more"),
    ],
)
def test_a_support_is_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_lattice_may_extend_downwards():
    support = Lattice(3.0, -0.5)
    assert support.bounds == (-math.inf, 3.0)
    assert support.decode(torch.arange(3), torch.float32).tolist() == [3.0, 2.5, 2.0]


# ----- the unit types of docs/how_to_extend.md


def documented():
    path = Path(__file__).parents[1] / "docs" / "how_to_extend.md"
    return re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)[:2]


def test_the_documented_counts_are_those_of_the_tests():
    assert inspect.getsource(Counts).strip() in documented()[1]


def test_the_documented_ternary_units_are_right(capsys):
    names = {"__name__": "documentation"}
    exec(compile(documented()[0], "documentation", "exec"), names)
    assert capsys.readouterr().out
    units = names["Ternary"](4, cost=0.7)
    values = torch.tensor([-1.0, 0.0, 1.0])
    tilt = Tilt(torch.tensor([-2.0, 0.0, 0.3, 5.0]), torch.tensor([0.1, -1.0, 0.0, 2.0]))
    field, precision = (z.unsqueeze(-1) for z in tilt)
    weights = -0.7 * values**2 + field * values - 0.5 * precision * values**2
    normalizer = (-0.7 * values**2).logsumexp(0)
    torch.testing.assert_close(units.log_partition(tilt).detach(), weights.logsumexp(-1) - normalizer)
    torch.testing.assert_close(units.log_prior(values.unsqueeze(-1).expand(-1, 4)).detach().exp().sum(0), torch.ones(4))
    draws = units.sample(Tilt(tilt.field.expand(20000, 4), tilt.precision), torch.Generator().manual_seed(0))
    mean, variance = units.moments(tilt)
    assert bool(((draws.mean(0) - mean).abs() < 5 * (variance / 20000).sqrt() + 1e-4).all())
    states = values.repeat_interleave(10).unsqueeze(-1).expand(-1, 4)
    torch.testing.assert_close(units.fit_to(states, smoothing=0).cost.detach(), torch.zeros(4), atol=1e-6, rtol=0)
    machine = rbm(
        names["Ternary"](2).double(), Binary(2).double(), weights=torch.tensor([[0.5, -1.0], [0.3, 0.8]]).double()
    )
    grid = torch.cartesian_prod(values, values).double()
    visible = machine.layers[0]
    gains = torch.nn.functional.softplus(grid @ machine.weights[0]) - math.log(2)
    joint = (visible.log_prior(grid).sum(-1) + gains.sum(-1)).detach()
    torch.testing.assert_close(exact_log_partition(machine), joint.logsumexp(0))
    rows = joint.view(3, 3)
    pseudo = 2 * rows - rows.logsumexp(0, keepdim=True) - rows.logsumexp(1, keepdim=True)
    torch.testing.assert_close(pseudo_log_likelihood(machine, grid).values, pseudo.flatten())
