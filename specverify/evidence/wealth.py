"""What came of all bets on a stream of tokens? The wealth of each, and with it verdict, diagnosis and what a pass means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np

from specverify.evidence.bets import FAULT_LEVELS
from specverify.evidence.contamination import Growth, growths, largest_share, ratios_of
from specverify.evidence.counted import Counted
from specverify.evidence.diagnosis import diagnosed
from specverify.evidence.eprocess import Alternative, EProcess
from specverify.evidence.judging import Judgement
from specverify.evidence.passing import Power, bounds_by_level, listed, power, worst_share
from specverify.evidence.pointwise import FAULT_LAWS
from specverify.evidence.watch import StreamWatch, TableWatch
from specverify.laws import Ints


@dataclass(frozen=True, eq=False)
class WealthMeasurement:
    """The wealth of every bet after so many tokens, which sums to E by the bets' weights.

    bets: one alternative each with ln of its wealth. impossible: tokens seen that the target never gives. counted: for table
    models, all that the bets on faults depend on. logit_tolerance: rounding that was declared, whose price every bet has paid;
    strict: ln E without it, which is evidence against the reference to the last bit.
    highest: the largest ln E that was seen on the way, which decides: it reaches ln(1 / alpha) with probability alpha at most.
    until: the share of tokens at which every known fault was looked for, where a pass needs all of them seen. growing: for
    other models, how each fault would have grown along the run. stopped: why the run ended before that. Guarantee: see
    :mod:`specverify.evidence.eprocess`.
    """

    label: str
    bets: Bets
    tokens: int
    impossible: int = 0
    counted: Counted | None = None
    logit_tolerance: float = 0.0
    strict: float | None = None
    highest: float = 0.0
    until: float | None = None
    growing: Mapping[str, Growth] | None = None
    stopped: str = ""
    _judged: dict[float, Judgement] = field(default_factory=dict, init=False, repr=False)
    kind = "wealth"

    @property
    def faults(self) -> tuple[str, ...]:
        """The known faults that were bet on: all of them where the draft's laws are known."""
        return tuple(dict.fromkeys(one.name for one, _ in self.bets if one.family == "fault"))

    def process(self) -> EProcess:
        """The wealth as a process that stands where the measurement was taken."""
        process = EProcess([one for one, _ in self.bets])
        process.add(np.array([log for _, log in self.bets]), self.tokens)
        return process

    def judge(self, alpha: float) -> Judgement:
        """Refuted when E has reached 1 / alpha, with the fault that fits; else certified, with what may still be hidden."""
        if alpha not in self._judged:
            self._judged[alpha] = self._judge(alpha)
        return self._judged[alpha]

    def _judge(self, alpha: float) -> Judgement:
        log_e = max(self.process().log_e, self.highest)
        numbers = {
            "p": 0.0 if self.impossible else math.exp(-max(log_e, 0.0)),
            "log_e": log_e,
            "tokens": float(self.tokens),
            "draws": float(self.tokens),
            "impossible": float(self.impossible),
        }
        if wrong := self._wrong_bet():
            return Judgement("error", f"{self.label}: what is recorded of {wrong} does not follow from the counts", numbers)
        if self.impossible:
            return Judgement("refuted", f"{self.label}: {self.impossible} tokens came that the target never gives", numbers)
        if self.strict is not None:
            numbers["log_e_without_tolerance"] = self.strict
        if self.tokens == 0:
            return Judgement("skipped", f"{self.label}: no token came", numbers)
        if alpha > 0 and log_e >= math.log(1 / alpha):
            return Judgement(
                "refuted",
                f"{self.label}: evidence of e^{log_e:.0f} in {self.tokens} tokens{self._rounding(alpha)}; {self.diagnosis()}",
                numbers,
            )
        return self._not_refuted(alpha, numbers)

    def _rounding(self, alpha: float) -> str:
        """What rounding has to do with it, where a tolerance was declared: two questions, two answers."""
        if self.strict is None:
            return ""
        log_e = max(self.process().log_e, self.highest)
        if log_e >= math.log(1 / alpha):
            return f" beyond what logits off by {self.logit_tolerance:g} explain"
        strict = self.strict
        if strict >= math.log(1 / alpha):
            return f" beyond the declared tolerance; without it e^{strict:.0f}, so rounding of that size shows"
        return f" beyond the declared tolerance; without it e^{strict:.0f}, so no rounding shows either"

    def diagnosis(self) -> str:
        """What the wealth lies with, and the token that is furthest off; see :mod:`specverify.evidence.diagnosis`."""
        found = diagnosed(self.process().log_wealth())
        return found.words + ("" if found.family == "dependence" else self._showing())

    def _showing(self) -> str:
        """The token that is furthest off, in standard deviations, where tokens were counted."""
        if self.counted is None:
            return ""
        counts, p = self.counted.counts, self.counted.p
        totals = counts.sum(1, keepdims=True)
        expected = totals * p
        off = np.abs(counts - expected) / np.sqrt(np.maximum(expected * (1 - p), 1e-9)) * (totals > 0)
        context, token = np.unravel_index(int(off.argmax()), off.shape)
        seen, right = int(counts[context, token]), float(expected[context, token])
        return f"; furthest off is token {token} of law {context}: {seen} times, {right:.1f} expected"

    def power(self, alpha: float) -> Power | None:
        """Which known faults would have been refuted by now; None where it was not measured."""
        level, growing = self.until or 1.0, self.growing
        if self.counted is not None:
            counts, rows = self.counted.counts, self.counted.rows()
            shares = counts.sum(1) / max(counts.sum(), 1)
            growing = growths(rows, shares, self.counted.q is not None, level=level, tolerance=self.logit_tolerance)
        bets = [one for one, _ in self.bets]
        return None if growing is None else power(growing, bets, level, self.logit_tolerance, self.tokens, alpha)

    def bounds(self, alpha: float) -> dict[str, float]:
        """Upper bound on the share of tokens that follow each fault; 1 where nothing is known. Each holds at ``alpha``."""
        if self.counted is None:
            return bounds_by_level(self.bets, alpha)
        rows, counts = self.counted.rows(), self.counted.counts
        return {name: largest_share(counts, ratios_of(rows, name), alpha) for name in self.faults}

    def _not_refuted(self, alpha: float, numbers: dict[str, float]) -> Judgement:
        said = f"{self.label}: {self.tokens} tokens, E = {math.exp(min(numbers['log_e'], 50)):.2g}"
        if alpha <= 0:
            return Judgement("certified", said, numbers)
        said += f" ({1 / alpha:.2g} refutes){self._rounding(alpha)}"
        found = self.power(alpha)
        seen = [] if found is None else [*found.seen, *found.needed]
        said += self._bounded(seen if found is not None else None, alpha, numbers)
        if found is None:
            return Judgement("certified", said, numbers)
        numbers |= {"faults_seen": float(len(found.seen)), "faults_unseen": float(len(found.needed) + len(found.hidden))}
        if found.hidden:
            said += (
                f"; no or hardly larger than the declared tolerance, and so not told from rounding: {', '.join(found.hidden)}"
            )
        if self.until is None:
            return Judgement(
                "certified", said + (f"; too few to see {', '.join(found.needed)}" if found.needed else ""), numbers
            )
        if not found.needed:
            share = "every token" if self.until == 1.0 else f"{self.until:.0%} of the tokens"
            differs = "is larger than the tolerance" if found.hidden else "differs"
            few = len(self.faults)
            if few < len(FAULT_LAWS):
                said += f"; only {few} of {len(FAULT_LAWS)} known faults were bet on, for the draft's laws are not known: "
                said += f"of these every one that {differs} here would have been refuted, had it governed {share}"
            else:
                said += f"; every known fault that {differs} here would have been refuted, had it governed {share}"
            return Judgement("certified", said, numbers)
        why = f" ({self.stopped})" if self.stopped else ""
        most = max(found.needed.values())
        do = f"; --max-tokens {math.ceil(1.1 * most):d} would do" if math.isfinite(most) else ""
        return Judgement("inconclusive", f"{said}; too few tokens{why} to have refuted {listed(found.needed)}{do}", numbers)

    def _bounded(self, different: Sequence[str] | None, alpha: float, numbers: dict[str, float]) -> str:
        """The largest share of tokens that may follow a known fault, in words; nothing where logits may be off as well."""
        if self.logit_tolerance > 0:
            return ""
        bounds = self.bounds(alpha)
        names = list(bounds) if different is None else different
        known = {name: bounds[name] for name in names if bounds[name] < 1}
        left = [name for name in names if name not in known] if different is None else []
        if different is None:
            numbers |= {"faults_seen": float(len(known)), "faults_unseen": float(len(left))}
        if not known:
            return "; too few to exclude any known fault"
        worst, most = worst_share(known)
        numbers["contamination"] = most
        said = f"; at most {most:.2g} of them follow any of {len(known)} known faults (most may be hidden of {worst})"
        return said + (f"; not excluded: {', '.join(left)}" if left else "")

    def _wrong_bet(self) -> str:
        """What is recorded and cannot be: a share nobody bets at, tokens or a fault's wealth that the counts do not give."""
        if self.until is not None and self.until not in FAULT_LEVELS:
            return f"the share {self.until:g}"
        if self.counted is None:
            return ""
        if int(self.counted.counts.sum()) != self.tokens:
            return f"{self.tokens} tokens"
        for one, log in self.bets:
            if one.family == "fault" and one.name in FAULT_LAWS:
                given = self.counted.log_of(one.name, one.level, self.logit_tolerance)
                if abs(given - log) > 1e-6 * max(1.0, abs(given)):
                    return f"{one.name} at {one.level:g}"
        return ""

    def to_json(self) -> dict[str, Any]:
        """Every bet with its wealth, and the counts behind them."""
        counted = None
        if self.counted is not None:
            q = None if self.counted.q is None else self.counted.q.tolist()
            counted = {"counts": self.counted.counts.tolist(), "p": self.counted.p.tolist(), "q": q}
        return {
            "kind": self.kind,
            "label": self.label,
            "bets": _written(self.bets),
            "tokens": self.tokens,
            "impossible": self.impossible,
            "counted": counted,
            "logit_tolerance": self.logit_tolerance,
            "strict": self.strict,
            "highest": self.highest,
            "until": self.until,
            "growing": None if self.growing is None else {name: list(astuple(g)) for name, g in self.growing.items()},
            "stopped": self.stopped,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> WealthMeasurement:
        """Rebuild from :meth:`to_json`."""
        bets = _read(data["bets"])
        held, counted = data["counted"], None
        if held is not None:
            q = None if held["q"] is None else np.array(held["q"], float)
            counted = Counted(np.array(held["counts"], np.int64), np.array(held["p"], float), q)
        growing = data.get("growing")
        return cls(
            data["label"],
            bets,
            int(data["tokens"]),
            int(data["impossible"]),
            counted,
            data.get("logit_tolerance", 0.0),
            data.get("strict"),
            float(data.get("highest", 0.0)),
            data.get("until"),
            None if growing is None else {name: Growth(*map(float, values)) for name, values in growing.items()},
            data.get("stopped", ""),
        )


Bets = tuple[tuple[Alternative, float], ...]


def _written(bets: Bets) -> dict[str, str]:
    """Bets in a few lines: by family and name, "level weight ln-wealth" for every level, in their order."""
    out: dict[str, str] = {}
    for one, log in bets:
        key = f"{one.family}: {one.name}"
        out[key] = (out[key] + "; " if key in out else "") + f"{one.level!r} {one.weight!r} {log!r}"
    return out


def _read(written: Mapping[str, str]) -> Bets:
    out = []
    for key, values in written.items():
        family, name = key.split(": ", 1)
        for value in values.split("; "):
            level, weight, log = map(float, value.split())
            out.append((Alternative(family, name, level, weight), log))
    return tuple(out)


def measured(label: str, watch: TableWatch | StreamWatch, **more: Any) -> WealthMeasurement:
    """What a watch has seen, as a measurement; ``more`` are its further fields."""
    process, tolerance = watch.process, watch.logit_tolerance
    return WealthMeasurement(
        label,
        tuple(zip(process.alternatives, process.logs.tolist(), strict=True)),
        process.tokens,
        watch.impossible,
        Counted(watch.counts, watch.p, watch.q) if isinstance(watch, TableWatch) else None,
        tolerance,
        watch.log_e_strict if tolerance > 0 else None,
        process.highest,
        **more,
    )


def calls_of(sequences: Sequence[Sequence[int]], calls: Sequence[int]) -> list[Ints]:
    """Sequences (N, L) split into the rows of each call."""
    ids = np.array(sequences, np.int64)
    return [part for part in np.split(ids, np.cumsum(calls)[:-1]) if len(part)]
