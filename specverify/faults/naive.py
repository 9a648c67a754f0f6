"""What is the smallest example that refutes naive acceptance? Found by search, printed so that a person can check it.

``python -m specverify.faults.naive`` prints it. Naive acceptance keeps a drafted token exactly when it is the target's
most likely one; otherwise it emits that most likely token ("else argmax p") or a draw from the target ("else y ~ p").
All numbers are fractions: nothing is rounded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

Law = tuple[Fraction, ...]
NAMES = "AB"
LARGEST_SUM = 99


@dataclass(frozen=True)
class Branch:
    """One drafted token: how often it is drafted, how often it is then accepted, and the law of what replaces it."""

    token: int
    drafted: Fraction
    accepted: Fraction
    replacement: Law


Rule = Callable[[Law, Law], list[Branch]]


def likeliest(p: Law) -> int:
    """Return the most likely token, the lowest one when several are."""
    return p.index(max(p))


def naive_accept(p: Law, q: Law) -> list[Branch]:
    """Accept iff x = argmax p, else argmax p."""
    top = likeliest(p)
    certain = tuple(Fraction(int(t == top)) for t in range(len(p)))
    return [Branch(x, q[x], Fraction(int(x == top)), certain) for x in range(len(p))]


def naive_accept_resample(p: Law, q: Law) -> list[Branch]:
    """Accept iff x = argmax p, else y ~ p."""
    return [Branch(x, q[x], Fraction(int(x == likeliest(p))), p) for x in range(len(p))]


def token_rejection(p: Law, q: Law) -> list[Branch]:
    """Accept with min(1, p(x)/q(x)), else y ~ (p - q)+ normalised."""
    excess = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
    residual = tuple(e / sum(excess) for e in excess) if any(excess) else p
    return [Branch(x, q[x], min(Fraction(1), p[x] / q[x]) if q[x] else Fraction(1), residual) for x in range(len(p))]


def emitted_law(branches: list[Branch]) -> Law:
    """Law of the emitted token: the sum over what was drafted and whether it was accepted."""
    law = [Fraction(0)] * len(branches)
    for b in branches:
        law[b.token] += b.drafted * b.accepted
        for t, replaced in enumerate(b.replacement):
            law[t] += b.drafted * (1 - b.accepted) * replaced
    return tuple(law)


def total_variation(p: Law, q: Law) -> Fraction:
    """Half the sum of the absolute differences."""
    return sum((abs(a - b) for a, b in zip(p, q, strict=True)), Fraction(0)) / 2


def weights_by_size() -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Positive integer weights of p and q on two tokens, those with the smallest sum first."""
    for total in range(4, LARGEST_SUM + 1):
        for a in range(1, total - 2):
            for b in range(1, total - a - 1):
                for c in range(1, total - a - b):
                    yield (a, b), (c, total - a - b - c)


def law_of(weights: tuple[int, int]) -> Law:
    """Turn weights into a law."""
    return tuple(Fraction(w, sum(weights)) for w in weights)


def smallest_counterexample(rule: Rule) -> tuple[Law, Law]:
    """Smallest (p, q) on two tokens for which the rule does not emit p.

    Every token can be drafted, and p has one most likely token, named A: no tie and no zero plays a part.
    """
    for pw, qw in weights_by_size():
        p, q = law_of(pw), law_of(qw)
        if p[0] > p[1] and emitted_law(rule(p, q)) != p:
            return p, q
    raise LookupError("the rule emits p for all small weights")


def _show(law: Law) -> str:
    return ", ".join(f"{NAMES[t]} {x}" for t, x in enumerate(law))


def explain(title: str, rule: Rule, p: Law, q: Law) -> list[str]:
    """Lines that derive the law that the rule emits, branch by branch."""
    branches = rule(p, q)
    lines = [title]
    for b in branches:
        token, rejected = NAMES[b.token], 1 - b.accepted
        if b.accepted:
            share = f"{b.drafted} * {b.accepted} = {b.drafted * b.accepted}"
            lines.append(f"  {token} drafted {b.drafted}, accepted {b.accepted}:  {token} gets {share}")
        for t, replaced in enumerate(b.replacement):
            if rejected and replaced:
                share = f"{b.drafted} * {rejected} * {replaced} = {b.drafted * rejected * replaced}"
                outcome = f"rejected {rejected}, then {NAMES[t]} {replaced}"
                lines.append(f"  {token} drafted {b.drafted}, {outcome}:  {NAMES[t]} gets {share}")
    law = emitted_law(branches)
    verdict = "exact" if law == p else f"wrong, TV = {total_variation(law, p)}"
    return [*lines, f"  law: {_show(law)}   ({verdict})"]


def text() -> str:
    """Return the whole page: the counterexample for each form and the right calculation beside it."""
    forms: list[tuple[str, Rule]] = [
        ("accept iff x = argmax p, else argmax p", naive_accept),
        ("accept iff x = argmax p, else y ~ p", naive_accept_resample),
    ]
    found: dict[tuple[Law, Law], list[tuple[str, Rule]]] = {}
    for title, rule in forms:
        found.setdefault(smallest_counterexample(rule), []).append((title, rule))
    lines: list[str] = []
    for (p, q), refuted in found.items():
        lines += [f"target p: {_show(p)}", f"draft  q: {_show(q)}", ""]
        for title, rule in [*refuted, ("token rejection: accept with min(1, p/q), else y ~ (p - q)+", token_rejection)]:
            lines += [*explain(title, rule, p, q), ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
