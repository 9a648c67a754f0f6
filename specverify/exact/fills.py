"""What if code writes random numbers into a tensor that it made before? A record, per storage, of what stands there.

``torch.empty(n).exponential_()``, ``noise[i].uniform_(generator=g)``, ``coins[b] = torch.rand(k)``: an ordinary tensor then
holds random numbers, and so does every view of it. The record keeps, for each element of the storage, its atom and which of
the writes it comes from, and for each write the maps applied; a tensor that is read is looked up by where its elements lie.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specverify.exact.links import Chain, Link, full
from specverify.exact.refusals import opaque
from specverify.exact.shaping import widened
from specverify.exact.tensor import HANDLERS, Decider, SymbolicTensor

_NOISE = torch.Generator()
_NOISE.seed()


@dataclass
class _Record:
    """What stands in one storage of n elements: atoms (n,), the write each comes from (n,), -1 where an ordinary number
    stands, the maps of every write with operands (n,) or numbers, and the storage, kept alive.
    """

    atoms: Tensor
    write: Tensor
    dtype: torch.dtype
    storage: Any
    chains: list[Chain] = field(default_factory=list)


def _region(flat: Tensor, tensor: Tensor) -> Tensor:
    """The part of a record (n,) where the elements of ``tensor`` stand, in its shape, as a view."""
    return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


class Fills:
    """The records of one call."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider
        self.records: dict[int, _Record] = {}
        """By storage: what stands there."""

    def __bool__(self) -> bool:
        return bool(self.records)

    def _record(self, tensor: Tensor) -> _Record | None:
        with torch._C.DisableTorchFunction():
            if isinstance(tensor, SymbolicTensor) or tensor.layout != torch.strided or tensor.device.type == "meta":
                return None
            record = self.records.get(tensor.untyped_storage()._cdata)
        if record is not None and record.dtype != tensor.dtype:
            raise opaque(f"reading numbers of {record.dtype} as {tensor.dtype} bit by bit", "convert with .to(dtype)")
        return record

    def holds(self, tensor: Tensor) -> bool:
        """Whether any element of a tensor is random."""
        record = self._record(tensor)
        if record is None:
            return False
        with torch._C.DisableTorchFunction():
            return bool((_region(record.write, tensor) >= 0).any())

    def read(self, tensor: Tensor) -> SymbolicTensor:
        """The random numbers that stand in a tensor; ordinary numbers among them stay what they are."""
        record = self._record(tensor)
        assert record is not None
        with torch._C.DisableTorchFunction():
            writes = _region(record.write, tensor)
            plain = writes < 0
            chain = _merged([(w, record.chains[w]) for w in sorted(set(writes[~plain].tolist()))], tensor, writes)
            if bool(plain.any()):
                constants = torch.where(plain, tensor.detach().to(torch.float64), 0.0)
                chain = (*chain, Link("choose", constants, ~plain))
            return SymbolicTensor.make(_region(record.atoms, tensor).clone(), self._decider, tensor.dtype, chain)

    def write(self, tensor: Tensor, value: SymbolicTensor, index: Any = ()) -> None:
        """Let ``tensor[index]`` be these random numbers."""
        if not tensor.dtype.is_floating_point:
            raise opaque(f"writing random numbers into a tensor of {tensor.dtype}")
        record = self._record(tensor)
        with torch._C.DisableTorchFunction():
            if record is None:
                storage = tensor.untyped_storage()
                n = storage.nbytes() // tensor.element_size()
                nothing = torch.full((n,), -1, dtype=torch.int64)
                record = _Record(nothing, nothing.clone(), tensor.dtype, storage)
                self.records[storage._cdata] = record
            places = _region(torch.arange(record.atoms.numel()), tensor)[index]
            value = HANDLERS["to"]("to", (value, tensor.dtype), {}) if value.dtype != tensor.dtype else value
            value = widened(value, places.shape) if value.atoms.shape != places.shape else value
            flat = places.reshape(-1)
            record.atoms[flat] = value.atoms.reshape(-1)
            record.write[flat] = len(record.chains)
            record.chains.append(tuple(_spread(link, flat, record.atoms.numel()) for link in value.chain))
            # Code that reads the memory itself, past torch's functions, finds other numbers in every call: what it then decides
            # differs when paths are walked again, and is refused. Often they are such as code that asks for rare ones heeds.
            noise = torch.rand(places.shape, generator=_NOISE)
            extreme = int(torch.randint(4, (1,), generator=_NOISE))
            tensor[index] = (noise, noise * 0, 1 - noise * 2**-24, noise * 1e-6)[extreme].to(tensor.dtype)

    def clear(self, tensor: Tensor, index: Any = ()) -> None:
        """Note that ordinary numbers were written into ``tensor[index]``."""
        record = self._record(tensor)
        if record is not None:
            with torch._C.DisableTorchFunction():
                places = _region(torch.arange(record.atoms.numel()), tensor)[index]
                record.write[places.reshape(-1)] = -1


def _spread(link: Link, places: Tensor, n: int) -> Link:
    """A link of the numbers written at ``places`` with operands for the whole storage (n,)."""

    def over(values: Tensor) -> Tensor:
        out = torch.zeros(n, dtype=values.dtype)
        out[places] = values.reshape(-1)
        return out

    return link.reshaped(over)


def _merged(chains: list[tuple[int, Chain]], tensor: Tensor, writes: Tensor) -> Chain:
    """One chain for elements that come from several writes. Errors: OpaqueRandomness when they were mapped differently."""
    local = [(w, tuple(link.reshaped(lambda flat: _region(flat, tensor).clone()) for link in chain)) for w, chain in chains]
    if not local:
        return ()
    _, first = local[0]
    for w, chain in local[1:]:
        if [link.name for link in chain] != [link.name for link in first]:
            raise opaque("reading random numbers of different kinds as one tensor", "use a tensor for each")
        at = writes == w
        first = tuple(_either(mine, theirs, at) for mine, theirs in zip(first, chain, strict=True))
    return first


def _either(mine: Link, theirs: Link, at: Tensor) -> Link:
    """The link of the one write, with that of the other where ``at``."""
    plain = not any(isinstance(o, Tensor) for o in (*mine[1:], *theirs[1:]))
    if plain and mine == theirs:
        return mine
    operand = torch.where(at, full(theirs.operand, at.shape), full(mine.operand, at.shape))
    if mine.where is None or theirs.where is None:
        return Link(mine.name, operand)
    return Link(mine.name, operand, torch.where(at, theirs.where, mine.where))
