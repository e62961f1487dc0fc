"""The method of a posterior is chosen by a trial: TAP where it holds, and what restores known rows best elsewhere."""

import pytest
import torch
from machine_cases import Tensors

from tapmachine import TAP, Binary, BinarySymmetric, CustomNoise, Spin, denoise, impute, rbm
from tapmachine.exact import mixture_of
from tapmachine.posterior.methods import CHOSEN


def correlated(strength):
    """Hidden units that all see the same pattern: TAP treats their couplings as independent."""
    pattern = torch.where(Tensors(0).normal(24, 1) > 0, 1.0, -1.0)
    weights = strength * pattern * (1 + 0.1 * Tensors(1).normal(24, 8))
    return rbm(Spin(24).double(), Spin(8).double(), weights)


@pytest.fixture(autouse=True)
def forgotten():
    CHOSEN.clear()


def noisy(machine, p, count=60):
    x = samples(machine, count)
    return x, BinarySymmetric(p).corrupt(x, torch.Generator().manual_seed(1), machine.layers[0])


def samples(machine, count):
    """Independent samples."""
    return mixture_of(machine, bits=8).sample(count, torch.Generator().manual_seed(0))


def test_tap_is_used_where_it_holds():
    machine = correlated(0.02)
    _, y = noisy(machine, 0.2)
    found = denoise(machine, y, BinarySymmetric(0.2))
    assert found.method == "tap"
    assert torch.equal(found.mean, denoise(machine, y, BinarySymmetric(0.2), method="tap").mean)
    assert "method tap" in repr(found)


def test_what_restores_known_rows_best_is_used_where_tap_fails():
    machine = correlated(0.1)
    _, y = noisy(machine, 0.4)
    by_tap, found = (denoise(machine, y, BinarySymmetric(0.4), method=method) for method in ("tap", None))
    exact = mixture_means(machine, y, 0.4)
    assert found.method in ("adaptive", "gibbs")
    assert float((found.mean - exact).square().mean()) < 0.25 * float((by_tap.mean - exact).square().mean())


def mixture_means(machine, y, p):
    """Posterior means, from the sum over the hidden states h of P(h) P(y | h)."""
    weights = machine.weights[0].detach()
    n = weights.shape[1]
    h = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0]).double()] * n)
    odds = 0.5 * torch.tensor((1 - p) / p).double().log() * y  # field of an observation
    field = h @ weights.T  # (H, n_visible)
    log_weight = torch.logaddexp(field + odds.unsqueeze(1), -field - odds.unsqueeze(1)).sum(2)
    return torch.einsum("kh,khv->kv", log_weight.softmax(1), torch.tanh(field + odds.unsqueeze(1)))


def test_a_method_can_be_named():
    machine = correlated(0.05)
    _, y = noisy(machine, 0.2, 5)
    chains = denoise(machine, y, BinarySymmetric(0.2), method="gibbs")
    assert chains.method == "gibbs"
    assert chains.free_energy.isnan().all()
    assert chains.converged.all()
    torch.testing.assert_close(chains.mean, mixture_means(machine, y, 0.2), atol=0.05, rtol=0)
    torch.testing.assert_close(chains.variance, 1 - chains.mean**2, atol=1e-9, rtol=0)  # of spins, for any distribution
    adaptive = denoise(machine, y, BinarySymmetric(0.2), method="adaptive")
    torch.testing.assert_close(adaptive.mean, mixture_means(machine, y, 0.2), atol=0.01, rtol=0)
    assert denoise(machine, y, BinarySymmetric(0.2), scheme=TAP()).method == "TAP"
    with pytest.raises(ValueError, match="method is 'fog'; expected one of tap, adaptive, gibbs"):
        denoise(machine, y, BinarySymmetric(0.2), method="fog")
    with pytest.raises(ValueError, match="method and scheme cannot be combined"):
        denoise(machine, y, BinarySymmetric(0.2), method="tap", scheme=TAP())


def test_the_trial_runs_once_for_a_machine_and_a_channel():
    machine = correlated(0.05)
    _, y = noisy(machine, 0.2, 5)
    denoise(machine, y, BinarySymmetric(0.2))
    denoise(machine, y, BinarySymmetric(0.2))
    assert len(CHOSEN) == 1
    denoise(machine, y, BinarySymmetric(0.3))
    assert len(CHOSEN) == 2
    with torch.no_grad():
        machine.weights[0].mul_(1.1)
    denoise(machine, y, BinarySymmetric(0.2))
    assert len(CHOSEN) == 3


def test_gaps_and_examples():
    machine = correlated(0.1)
    x = samples(machine, 200)
    gappy = x[:20].clone()
    gappy[:, 6:] = torch.nan
    for found in (impute(machine, gappy), impute(machine, gappy, data=x[20:])):
        torch.testing.assert_close(found.mean[:, :6], x[:20, :6], rtol=0, atol=1e-12)
        assert (found.variance[:, :6] < 1e-12).all()
        assert float((found.mean - x[:20]).square()[:, 6:].mean()) < 0.9
    everything = impute(machine, torch.full((3, 24), torch.nan).double())
    assert float(everything.mean.abs().max()) <= 1


def test_a_channel_that_cannot_draw_needs_no_trial():
    machine = rbm(Binary(4), Binary(2))
    found = denoise(machine, torch.rand(3, 4), CustomNoise(lambda y, x: -3 * (y - x).abs()))
    assert found.method == "tap"
    assert not CHOSEN
