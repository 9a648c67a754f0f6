"""Ten verification steps in ten styles, written without knowledge of the engine: five exact, five subtly wrong."""

from __future__ import annotations

import pytest
import style_verifiers

from specverify import subjects
from specverify.checks.single_step import measure
from specverify.evidence import worst
from specverify.pairs import named_pair
from specverify.subjects import Facts, Step, Verifier

EXACT = {
    "style_vectorised": "the window ends with the first unlikely draft, and whether it goes on depends on emitted tokens only",
    "style_gumbel": "a refused token's noise entry was the coin, but its residual is 0, so that entry never races again",
    "style_inverse_cdf": "one uniform for everything, stretched to [0, 1) again after every decision",
    "style_uniforms": "one of two lossless rules by the draft's law alone",
    "style_logspace": "block verification with its running product in closed form",
}
WRONG = {
    "style_loop": "after a refusal at the last place a bonus token follows, conditioned on the draft that was refused",
    "style_numpy": "the draft stops at an unlikely token and drops it: the drop depends on the token",
    "style_reseed": "the bonus stream starts anew, so that its uniform is the coin of the last place",
    "style_inplace": "the token cleared before the last draw is also cleared where nothing was refused",
    "style_mixed": "coins of bfloat16 for laws of float32",
}
FACTS = {
    "style_loop": Facts(max_batch=1),
    "style_inplace": Facts(dtype="float32"),
    "style_mixed": Facts(dtype="float32"),
}


def _subject(name: str) -> Verifier | Step:
    function, facts = getattr(style_verifiers, name), FACTS.get(name, Facts())
    if name in ("style_gumbel", "style_numpy"):
        return Step(name, function, style_verifiers.DRAFT_LENGTH, facts)
    if name == "style_uniforms":
        return subjects.verifier(function, given="uniforms")
    return Verifier(name, function, facts)


@pytest.mark.parametrize("name", [*EXACT, *WRONG])
def test_every_style_gets_the_right_verdict_from_its_exact_law(name: str) -> None:
    """Exact ones are certified and wrong ones refuted, from the law of the code as it stands."""
    subject = _subject(name)
    sizes = [(3, 2)] if name == "style_mixed" else [(3, 2), (4, 2)]
    verdicts = [measure(subject, named_pair(v, k))[0].judge(0).verdict for v, k in sizes]
    assert worst(verdicts) == ("certified" if name in EXACT else "refuted"), (EXACT | WRONG)[name]
