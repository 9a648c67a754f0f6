"""A decoder with every optional call, over one table of laws; its first argument is a JSON object of what it does wrong.

It imports nothing heavy. The law of a token hangs on the one before it; temperature acts on it, 0 is greedy.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
from typing import Any

LAWS = [[0.5, 0.3, 0.2, 0.0], [0.2, 0.5, 0.3, 0.0], [0.3, 0.2, 0.5, 0.0], [0.4, 0.35, 0.25, 0.0]]
WRONG = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
CALLS = ["target_log_probs", "target_log_probs_at", "draft_log_probs", "serve"]
HELLO = {"protocol": 1, "kind": "decoder", "name": "tables", "vocab_size": 4, "calls": CALLS, "prompts": [[0, 1], [2, 3]]}


def law(token: int, temperature: float | None) -> list[float]:
    """The law after a token."""
    if temperature == 0:
        best = max(range(4), key=LAWS[token].__getitem__)
        return [float(v == best) for v in range(4)]
    weights = [p ** (1 / (temperature or 1)) for p in LAWS[token]]
    return [w / sum(weights) for w in weights]


def row(prompt: list[int], length: int, rng: random.Random, temperature: float | None = None, flat: bool = False) -> list[int]:
    """New tokens of one row."""
    ids = list(prompt)
    for _ in range(length):
        weights = [1.0, 1.0, 1.0, 0.0] if flat else law(ids[-1], temperature)
        ids += rng.choices(range(4), weights)
    return ids[len(prompt) :]


def logs(table: list[list[int]], temperature: float | None = None) -> list[Any]:
    """Log-laws, null for -inf."""
    return [[[math.log(p) if p else None for p in law(t, temperature)] for t in ids] for ids in table]


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """What to say to a request."""
    call = asked["call"]
    if call == "hello":
        return HELLO | WRONG.get("hello", {})
    if call in ("generate", "baseline"):
        rng = random.Random(asked["seed"])
        return {"tokens": [row(p, asked["max_new_tokens"], rng, flat=WRONG.get(call) == "flat") for p in asked["prompts"]]}
    if call == "serve":
        rngs = [random.Random(r["seed"]) for r in asked["requests"]]
        ignored = WRONG.get("serve") == "temperature"
        return {
            "tokens": [
                row(r["prompt"], r["max_new_tokens"], rng, None if ignored else r["temperature"])
                for r, rng in zip(asked["requests"], rngs, strict=True)
            ]
        }
    if call in WRONG:
        return {"log_probs": WRONG[call]}
    return {"log_probs": logs(asked["ids"], asked.get("temperature"))}


if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)
        os.write(1, json.dumps({"id": request["id"]} | answer(request)).encode() + b"\n")
