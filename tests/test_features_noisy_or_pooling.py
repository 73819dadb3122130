"""From cells to a picture (eq-fang-1): the product in log odds, whatever the cells say."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from captionlab.features.noisy_or_pooling import POOLINGS, noisy_or

logits = st.lists(st.floats(-60, 60), min_size=1, max_size=60)


@given(logits)
def test_noisy_or_is_the_product_in_64_bits(values):
    z = torch.tensor(values, dtype=torch.float64)
    with np.errstate(all="ignore"):
        odds = np.expm1(
            np.log1p(np.exp(np.array(values, dtype=np.longdouble))).sum()
        )  # 1 + O = product of 1 + o
    torch.testing.assert_close(
        noisy_or(z[:, None])[0],
        torch.tensor(float(np.log(odds)), dtype=torch.float64),
        rtol=1e-6,
        atol=2e-6,
    )
    torch.testing.assert_close(
        noisy_or(z.float()[:, None])[0].double(), noisy_or(z[:, None])[0], rtol=1e-5, atol=1e-4
    )


@given(logits)
def test_the_pull_at_a_cell_is_its_share(values):
    z = torch.tensor(values, dtype=torch.float64)[:, None].requires_grad_()
    noisy_or(z).sum().backward()
    share = (F.logsigmoid(z) - F.logsigmoid(noisy_or(z))).exp()
    torch.testing.assert_close(z.grad, share, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", POOLINGS)
def test_extremes_stay_finite(name, dtype):
    for low, high in ((-1e4, -1e4), (1e4, 1e4), (-1e4, 1e4), (-104, -103), (-16, -14), (0, 0)):
        z = torch.tensor([[low], [high], [low]], dtype=dtype, requires_grad=True)
        P = POOLINGS[name](z)
        F.binary_cross_entropy_with_logits(P, torch.ones_like(P)).backward()
        assert P.isfinite().all()
        assert z.grad.isfinite().all()


@pytest.mark.parametrize("name", POOLINGS)
def test_of_one_cell_a_pool_is_that_cell(name):
    z = torch.linspace(-30, 30, 61)[None]
    torch.testing.assert_close(POOLINGS[name](z), z[0], rtol=1e-5, atol=1e-5)


def test_a_hopeless_cell_changes_a_noisy_or_by_nothing_and_order_does_not_matter():
    z = torch.randn(9, 4)
    torch.testing.assert_close(noisy_or(torch.cat([z, torch.full((40, 4), -1e4)])), noisy_or(z))
    torch.testing.assert_close(noisy_or(z.flip(0)), noisy_or(z))


def test_pools_against_probabilities():
    z = torch.randn(3, 9, 4, dtype=torch.float64)
    torch.testing.assert_close(POOLINGS["mean"](z).sigmoid(), z.sigmoid().mean(1))
    torch.testing.assert_close(POOLINGS["max"](z).sigmoid(), z.sigmoid().amax(1))
    torch.testing.assert_close(noisy_or(z).sigmoid(), 1 - (1 - z.sigmoid()).prod(1))
