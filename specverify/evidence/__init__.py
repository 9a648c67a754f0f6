"""Statistics with stated guarantees, the error ledger, and measurements that anyone can judge again."""

from specverify.evidence.ledger import DEFAULT_ALPHA, Ledger
from specverify.evidence.measurements import (
    AnyMeasurement,
    BoundMeasurement,
    CellMeasurement,
    CoverageMeasurement,
    Judgement,
    LawMeasurement,
    OutcomeMeasurement,
    RateMeasurement,
    Verdict,
    ViolationMeasurement,
    worst,
)
from specverify.evidence.multinomial import CellGroup, FitTest, draws_to_refute, fit_test
from specverify.evidence.rates import rate_above, trials_to_refute

__all__ = [
    "DEFAULT_ALPHA",
    "AnyMeasurement",
    "BoundMeasurement",
    "CellGroup",
    "CellMeasurement",
    "CoverageMeasurement",
    "FitTest",
    "Judgement",
    "LawMeasurement",
    "Ledger",
    "OutcomeMeasurement",
    "RateMeasurement",
    "Verdict",
    "ViolationMeasurement",
    "draws_to_refute",
    "fit_test",
    "rate_above",
    "trials_to_refute",
    "worst",
]
