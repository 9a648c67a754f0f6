"""Where do seeds come from? Every stream is derived from one root seed and the names of what it is for."""

from __future__ import annotations

import hashlib

import numpy as np


def derive(root: int, *names: str | int) -> int:
    """A seed in [0, 2**63) that depends on the root seed and on every name, the same on every machine."""
    text = "\0".join([str(root), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def stream(root: int, *names: str | int) -> np.random.Generator:
    """A numpy generator for the named purpose."""
    return np.random.default_rng(derive(root, *names))
