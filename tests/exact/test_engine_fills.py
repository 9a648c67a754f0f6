"""Random numbers that are written into tensors made before, by views, rows, generators and out=."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specverify.errors import OpaqueRandomness
from specverify.exact import induced_law

HALF = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
EXPECTED = {
    (a, b, c): (0.25 if a else 0.75) * 0.5 * (0.75 if c else 0.25)
    for a in (True, False)
    for b in (True, False)
    for c in (True, False)
}


def _rows() -> Tensor:
    noise = torch.empty(3, 2, dtype=torch.float64)
    for row in noise:
        row.uniform_(generator=torch.Generator().manual_seed(int(row.data_ptr()) % 1000))
    return noise[:, 1]


def _assigned() -> Tensor:
    coins = torch.zeros(3, dtype=torch.float64)
    for i in range(3):
        coins[i] = torch.rand((), dtype=torch.float64)
    return coins


def _by_mask() -> Tensor:
    coins = torch.zeros(4, dtype=torch.float64)
    coins[torch.tensor([True, False, True, True])] = torch.rand(3, dtype=torch.float64)
    return coins[torch.tensor([0, 2, 3])]


def _refilled() -> Tensor:
    coins = torch.empty(3, dtype=torch.float64).exponential_()
    coins.uniform_()
    return coins


def _mapped() -> Tensor:
    coins = torch.empty(3, dtype=torch.float64).uniform_()
    coins.mul_(2).add_(1)
    coins -= 1
    return coins.div_(2)


def _from_lists() -> Tensor:
    return torch.tensor(torch.empty(3, dtype=torch.float64).uniform_().tolist())


CODES = {
    "uniform_": lambda: torch.empty(3, dtype=torch.float64).uniform_(),
    "uniform_ on a range": lambda: (torch.empty(3, dtype=torch.float64).uniform_(-1, 3) + 1) / 4,
    "exponential_": lambda: 1 - torch.exp(-torch.empty(3, dtype=torch.float64).exponential_()),
    "rand out": lambda: torch.rand(3, dtype=torch.float64, out=torch.empty(3, dtype=torch.float64)),
    "rows": _rows,
    "assigned": _assigned,
    "by mask": _by_mask,
    "refilled": _refilled,
    "mapped": _mapped,
    "copied": lambda: torch.zeros(3, dtype=torch.float64).copy_(torch.rand(3, dtype=torch.float64)),
    "viewed": lambda: torch.empty(2, 3, dtype=torch.float64).uniform_().view(6)[3:].unsqueeze(0).squeeze(),
    "transposed": lambda: torch.empty(2, 3, dtype=torch.float64).uniform_().T[:, 0],
    "from lists": _from_lists,
    "added to zeros": lambda: torch.zeros(3, dtype=torch.float64).add_(torch.rand(3, dtype=torch.float64)),
    "cat": lambda: torch.cat([torch.empty(1, dtype=torch.float64).uniform_() for _ in range(3)]),
}


@pytest.mark.parametrize("name", CODES)
def test_written_numbers_are_the_numbers_that_are_read(name: str) -> None:
    """Three independent uniforms, however they got into the tensor."""
    assert induced_law(lambda: CODES[name]() < HALF).pmf == pytest.approx(EXPECTED, abs=1e-12)


def test_an_overwritten_number_is_an_ordinary_one() -> None:
    """zero_, fill_, copy_ and assignment take the randomness away, from the elements they reach only."""

    def code() -> Tensor:
        coins = torch.empty(3, dtype=torch.float64).uniform_()
        coins[0] = 0.0
        coins[1:2].fill_(0.9)
        return coins < HALF

    assert induced_law(code).pmf == pytest.approx({(True, False, True): 0.75, (True, False, False): 0.25}, abs=1e-12)

    def cleared() -> Tensor:
        coins = torch.empty(2, dtype=torch.float64).uniform_()
        coins.zero_()
        return coins

    assert induced_law(cleared).pmf == {(0.0, 0.0): 1.0}


def test_rows_that_were_not_filled_stay_what_they_were() -> None:
    """Unfilled noise is an ordinary number: the race it takes part in is decided by it."""

    def code() -> int:
        noise = torch.zeros(2, 2, dtype=torch.float64)
        noise[0].exponential_()
        return int((torch.tensor([0.4, 0.6], dtype=torch.float64) / noise)[1].argmax())

    assert induced_law(code).pmf == {0: 1.0}  # inf against inf: the first


def test_per_row_generators_give_one_path_per_row() -> None:
    """The rows of a batch whose noise comes from a generator each are independent and walked side by side."""
    from specverify.exact import verifier_emission
    from specverify.pairs import named_pair
    from specverify.subjects import Verifier

    def rule(x: Tensor, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        B, K = x.shape
        coins = torch.empty(B, K, dtype=q.dtype)
        noise = torch.empty_like(p[:, 0])
        for b in range(B):
            generator = torch.Generator().manual_seed(b)
            coins[b].uniform_(generator=generator)
            noise[b].exponential_(generator=generator)
        chosen = x[..., None]
        accepted = (coins * q.gather(2, chosen)[..., 0] < p[:, :K].gather(2, chosen)[..., 0]).long().cumprod(1).sum(1)
        rows = torch.arange(B)
        rest = (p[rows, accepted] - torch.nn.functional.pad(q, (0, 0, 0, 1))[rows, accepted]).clamp(min=0)
        last = (rest / noise).argmax(-1)
        return torch.nn.functional.pad(x, (0, 1)).scatter(1, accepted[:, None], last[:, None]), accepted + 1

    from specverify.evidence.measurements import LawMeasurement

    pair = named_pair(3, 2)
    found = verifier_emission(Verifier("rows", rule), pair)
    assert found.coupled is None
    assert found.calls < found.paths / 2
    assert LawMeasurement(pair, 3, found.tokens).judge(0).verdict == "certified"


def test_numbers_that_escape_are_refused() -> None:
    """Random numbers that are returned, made integers of, or read past torch's functions have no finite law."""
    view = torch.empty(1)
    memory = view.numpy()

    def past_torch() -> bool:
        view.uniform_()
        return bool(memory[0] < 0.5)

    for code in (
        lambda: torch.empty(2).uniform_(),
        lambda: torch.empty(2).exponential_().numpy(),
        lambda: float(torch.empty(1).uniform_()),
        past_torch,
    ):
        with pytest.raises(OpaqueRandomness):
            induced_law(code)
