"""Which random stream was drawn from, and where does it stand? Known draws by the state that the stream had.

A stream that is re-seeded inside the code, or a second generator with the same seed, hands out the *same* numbers again, as
it really would. Streams move as they really would: one found in a state where no draw that was seen has left it was drawn
from unseen, and the code is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from specverify.errors import OpaqueRandomness
from specverify.exact.refusals import heard, opaque

State = tuple[str, Any]
"""Where a stream stands: its kind and what decides the numbers to come."""


def cpu_state(raw: torch.Tensor) -> State:
    """State of a CPU stream. Its first 8 bytes name the seed; 1 and 1 + 2**32 give the same numbers."""
    return "cpu", raw.numpy().tobytes()[8:]


def torch_state(generator: torch.Generator | None) -> State:
    """State of a torch generator, or of torch's global stream."""
    if generator is None:
        return cpu_state(torch.get_rng_state())
    if generator.device.type == "cpu":
        return cpu_state(generator.get_state())
    return generator.device.type, generator.get_state().numpy().tobytes()


def _seeded_only(state: State) -> bool:
    """Tell whether this stream was seeded and not drawn from since, where its state tells."""
    kind, where = state
    if kind == "cpu":
        left, _seeded, following = struct.unpack_from("<iiQ", where)
        return bool(left == 1 and following == 0)
    if kind == "python":
        return bool(where[1][-1] == 624)  # all of its table is still to be used
    return kind.startswith("cuda")


@dataclass
class Streams:
    """What was drawn in one call, by the state that the stream had, and the states in which known draws left a stream."""

    drawn: dict[State, tuple[Hashable, Any]] = field(default_factory=dict)
    left: set[State] = field(default_factory=set)
    generators: list[torch.Generator] = field(default_factory=list)
    """Generators in the order in which they were drawn from, for rows that have one each."""
    _first: list[tuple[torch.Generator, torch.Tensor]] = field(default_factory=list)

    def insist_on_known(self, state: State) -> None:
        """Refuse a stream that stands where no draw that was seen has left it."""
        if state not in self.left and not _seeded_only(state):
            raise heard(
                OpaqueRandomness(
                    "random numbers were drawn where the exact engine does not see it (compiled or scripted code, another "
                    "thread, an operation that draws inside, a function imported by its name, a stream put into a state from "
                    "elsewhere); to be analysable, draw with torch.rand or torch.multinomial in Python, or with functions of "
                    "random and numpy.random called by their modules"
                )
            )

    def draw_torch(self, spec: Hashable, generator: torch.Generator | None, really: Callable[[], Any]) -> tuple[State, Any]:
        """Move a torch stream as the real draw does; see :meth:`draw`."""
        state = torch_state(generator)
        if generator is not None and all(generator is not g for g, _ in self._first):
            self._first.append((generator, generator.get_state()))
            self.left.add(state)
        self.insist_on_known(state)
        with torch._C.DisableTorchFunction():
            really()
        self.left.add(torch_state(generator))
        return state, self.known(state, spec)

    def known(self, state: State, spec: Hashable) -> Any:
        """What was drawn from this state before, or None. Errors: OpaqueRandomness when it was something of another kind:
        different draws from one state share numbers in part.
        """
        if state not in self.drawn:
            return None
        before, found = self.drawn[state]
        if before != spec or spec is None:
            raise opaque(
                "a different draw from a stream that was re-seeded, or seeded as another one,", "seed each stream once"
            )
        return found

    def remember(self, state: State, spec: Hashable, what: Any) -> None:
        """Note what was drawn from a state."""
        self.drawn[state] = (spec, what)

    def insist_on_all_known(self) -> None:
        """Refuse when any torch stream stands where no draw that was seen has left it."""
        for generator in (None, *(g for g, _ in self._first)):
            self.insist_on_known(torch_state(generator))

    def restore(self) -> None:
        """Put every generator that was drawn from back to where it stood."""
        for generator, state in self._first:
            generator.set_state(state)

    def number(self, generator: torch.Generator) -> int:
        """The place of a generator among those drawn from, in order of first use."""
        if all(generator is not g for g in self.generators):
            self.generators.append(generator)
        return next(i for i, g in enumerate(self.generators) if g is generator)
