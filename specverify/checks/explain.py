"""How is a refutation shown to a person? The pair as fractions, the two laws side by side, code that prints them."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from specverify.checks.base import Counterexample
from specverify.evidence.measurements import LawMeasurement
from specverify.exact import Emission
from specverify.laws import Array, Pair, as_fractions, first_difference


def show_law(law: tuple[Fraction, ...] | list[Fraction]) -> str:
    """A law as ``[1/3, 2/3]``."""
    return "[" + ", ".join(str(x) for x in law) + "]"


def confirm_refutation(measurement: LawMeasurement, found: Emission) -> None:
    """Before a deviation is believed, walk paths again. Errors: OpaqueRandomness when the code draws by other means."""
    judgement = measurement.judge(0)
    if judgement.verdict == "refuted":
        found.confirm_deviation(judgement.numbers["tv"])


def _small(pair: Pair, prefix: tuple[int, ...]) -> tuple[list[Fraction], list[Fraction]]:
    return (
        [x.limit_denominator(10_000) for x in pair.target.fractions(prefix)],
        [x.limit_denominator(10_000) for x in pair.draft.fractions(prefix)],
    )


def _conditional(law: Array, context: tuple[int, ...]) -> Array:
    """Law of the token at position len(context) given the context."""
    at = law[context]
    flat: Array = at.reshape(at.shape[0], -1).sum(1)
    return flat / flat.sum() if flat.sum() > 0 else flat


def counterexample_from(measurement: LawMeasurement, spec: str, part: str, rounds: bool = False) -> Counterexample | None:
    """The first context and token where the law parts from the right one; None when it does not."""
    ours, right = measurement.laws()
    found = first_difference(ours, right, measurement.tolerance)
    if found is None:
        return None
    context, token = found
    got, wanted = _conditional(ours, context), _conditional(right, context)
    impossible = [t for t in range(len(got)) if wanted[t] == 0 and got[t] > measurement.tolerance]
    token = max(impossible, key=lambda t: float(got[t]), default=token)
    pair = measurement.pair
    lines = [f"V = {pair.vocab_size} tokens, K = {pair.k} drafted per round, prompt {list(pair.prompt)}"]
    for place in range(len(context) + 1):
        p, q = _small(pair, (*pair.prompt, *context[:place]))
        where = f"token {place + 1} after {list(context[:place]) if place else 'the prompt'}"
        lines.append(f"    {where}: target p {show_law(p)}, draft q {show_law(q)}")
    lines += [
        f"the law of token {len(context) + 1} after {list(context) if context else 'the prompt'}:",
        f"    came out      {show_law(as_fractions(got))}   = {np.array2string(got, precision=6)}",
        f"    should be     {show_law(as_fractions(wanted))}   = {np.array2string(wanted, precision=6)}",
        f"token {token} comes out with probability {got[token]:.6g} instead of {wanted[token]:.6g}",
    ]
    return Counterexample(
        pair.to_json(),
        context,
        token,
        float(got[token]),
        float(wanted[token]),
        tuple(lines),
        _snippet(measurement, spec, part, rounds, context),
    )


def _snippet(measurement: LawMeasurement, spec: str, part: str, rounds: bool, context: tuple[int, ...]) -> str:
    pair = measurement.pair
    head = [
        "from specverify.laws import Pair, complete, sequence_law",
        "from specverify.plan import find_part",
        f"part = find_part({spec!r}, {part!r})",
        f"pair = Pair.from_json({pair.to_json()!r})",
    ]
    if rounds:
        head += [
            "from specverify.checks.rounds import rounds_law",
            f"emitted = rounds_law(part, pair, {measurement.length})",
        ]
    else:
        head += ["from specverify.exact import round_law", "emitted = round_law(part, pair)"]
    return "\n".join(
        [
            *head,
            f"context = {context!r}  # laws of the token after it, not normalised: what came out, what should have",
            f"print(complete(emitted, pair.target, {len(context) + 1}, pair.prompt)[context])",
            f"print(sequence_law(pair.target, {len(context) + 1}, pair.prompt)[context])",
        ]
    )
