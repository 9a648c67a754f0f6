"""A step that is given its random numbers. Certify it with ``specverify certify THIS_FILE``, then put in your own code."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

import specverify

Numbers = NDArray[np.float64]

# Kernels often draw nothing: coins and noise come in as tensors. ``given`` names them in the order of the arguments, and
# specverify draws them. "uniforms" are (B, K+1), "exponentials" (B, K+1, V); others are named with their shapes, as here.
# hands="torch" hands tensors, "lists" plain lists. The code need not be PyTorch: it may call anything.
# Draft tokens, laws and what may be returned are those of any verifier: specverify init verifier shows them.


@specverify.verifier(name="my kernel", given={"coins": "uniforms (B, K)", "final_coin": "uniforms (B,)"}, hands="numpy")
def subject(
    draft_tokens: NDArray[np.int64], draft_probs: Numbers, target_probs: Numbers, coins: Numbers, final_coin: Numbers
) -> list[list[Any]]:
    """Emit, for every row, the accepted drafts and one more token; every decision is made by one of the given numbers."""
    emitted = []
    for drafted, q, p, coin, final in zip(draft_tokens, draft_probs, target_probs, coins, final_coin, strict=True):
        # --- yours from here: one row, whose drafts and coins are (K,), q (K, V), p (K+1, V), final a number
        tokens: list[Any] = []
        law = p[-1]
        for place, x in enumerate(drafted):
            if coin[place] * q[place, x] >= p[place, x]:
                residual = np.clip(p[place] - q[place], 0, None)
                law = residual if residual.any() else p[place]  # p = q up to rounding leaves nothing
                break
            tokens.append(x)
        cumulative = law.cumsum()
        tokens.append(np.searchsorted(cumulative, final * cumulative[-1], side="right"))
        # --- to here
        emitted.append(tokens)
    return emitted
