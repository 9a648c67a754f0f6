"""Are the grids of the samplers what they are said to be? The claims against draws, value by value."""

import math

import pytest
import torch

from specverify.exact.boundaries import (
    DIGITS,
    exponential_ends,
    grid_bits,
    halves_are_rounded,
    last_step,
    uniform_at,
    uniform_chance,
    uniform_ends,
)

every_dtype = pytest.mark.parametrize("dtype", list(DIGITS), ids=lambda d: str(d).removeprefix("torch."))
halves = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])


def uniforms(dtype, number, seed=0):
    """Uniforms of a stream of their own."""
    return torch.rand(number, generator=torch.Generator().manual_seed(seed), dtype=dtype).double()


@every_dtype
def test_every_uniform_is_one_of_the_grid(dtype):
    """Uniforms are made of the integer k in the way that uniform_at makes them."""
    drawn = uniforms(dtype, 300)
    if dtype in (torch.float16, torch.bfloat16) and halves_are_rounded():
        steps = (uniforms(torch.float32, 300) * 2**24).long()  # the same stream, before it is rounded
    else:
        steps = (drawn * 2.0 ** grid_bits(dtype)).long()
    assert [uniform_at(k, dtype) for k in steps.tolist()] == drawn.tolist()
    assert len(set(steps.tolist())) > 250


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float32, 24), (torch.float64, 53)])
def test_the_grid_is_no_finer_and_no_coarser(dtype, bits):
    """In float32 and float64 uniforms are multiples of 2^-bits and not of twice that."""
    steps = uniforms(dtype, 1000) * 2.0**bits
    assert (steps == steps.round()).all()
    assert (steps % 2 == 1).any()
    assert uniform_chance(0.0, dtype) == 2.0**-bits


@halves
def test_a_uniform_of_half_precision_is_0_as_often_as_claimed(dtype):
    """Zeros among 400,000 uniforms lie within five standard deviations of the stated probability."""
    zeros, expected = int((uniforms(dtype, 400_000) == 0).sum()), 400_000 * uniform_ends(dtype)[0].chance
    assert abs(zeros - expected) < 5 * math.sqrt(expected)


@halves
def test_probabilities_of_half_precision_count_the_float32_uniforms_behind_them(dtype):
    """For 0 and the top the stated probability is the counted one, for the other values it is within a factor of two."""
    if not halves_are_rounded():
        pytest.skip("this torch draws half precision from a grid of its own")
    values = (torch.arange(2**24, dtype=torch.float64) / 2**24).to(torch.float32).to(dtype)
    values = torch.where(values == 1, 0, values)
    found, counts = values.double().unique(return_counts=True)
    chances = dict(zip(found.tolist(), (counts.double() / 2**24).tolist(), strict=True))
    low, top = uniform_ends(dtype)
    assert max(chances) == top.value
    assert chances[0.0] == low.chance
    for value in [top.value, *found.tolist()[1 :: max(len(found) // 500, 1)]]:
        assert 0.5 <= uniform_chance(value, dtype) / chances[value] <= 2.0, value


@every_dtype
def test_the_last_step_gives_the_largest_uniform_below_1(dtype):
    """Its value is 1 - 2^-digits; a step more is 1, or 0 in its place."""
    k, top = last_step(dtype), uniform_ends(dtype)[1].value
    assert uniform_at(k, dtype) == top == 1 - 2.0 ** -DIGITS[dtype]
    assert uniform_at(k + 1, dtype) == 0.0
    assert uniform_at(0, dtype) == 0.0


@every_dtype
def test_exponentials_are_logarithms_of_float64_uniforms(dtype):
    """The CPU sampler is -log(1 - v) of a 53-bit v, rounded: so its ends follow from those of v."""
    v = uniforms(torch.float64, 1000, seed=3)
    drawn = torch.empty(1000, dtype=dtype).exponential_(generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(drawn, (-torch.log1p(-v)).to(dtype), rtol=1e-13 if dtype == torch.float64 else 0, atol=0)
    ends = exponential_ends(dtype)
    assert ends[0].value == float((-torch.log1p(torch.tensor(-(2.0**-53), dtype=torch.float64))).to(dtype))
    most = -torch.log1p(torch.tensor(2.0**-53 - 1, dtype=torch.float64))
    assert ends[1].value == pytest.approx(float(most.to(dtype)), rel=1e-12)


def test_only_in_float16_does_an_exponential_of_0_count():
    """Elsewhere it would take v = 0, which the documentation of torch excludes; in float16 small values are rounded to it."""
    zeros = {str(d): [e.chance for e in exponential_ends(d) if e.value == 0] for d in DIGITS}
    assert zeros == {"torch.float64": [0.0], "torch.float32": [0.0], "torch.float16": [2.0**-25], "torch.bfloat16": [0.0]}
    assert float(torch.tensor(2.0**-25, dtype=torch.float64).to(torch.float16)) == 0.0
    assert float(torch.tensor(2.0**-25 * 1.01, dtype=torch.float64).to(torch.float16)) > 0.0
