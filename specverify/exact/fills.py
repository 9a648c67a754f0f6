"""What if code writes random numbers into a tensor that it made before? A record, per storage, of what stands there.

``torch.empty(n).exponential_()``, ``noise[i].uniform_(generator=g)``, ``coins[b] = torch.rand(k)``: an ordinary tensor then
holds random numbers, and so does every view of it. The record keeps, for each element of the storage, its atom (-1 where an
ordinary number stands) and the maps applied; a tensor that is read is looked up by where its elements lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specverify.exact.shaping import full, widened
from specverify.exact.tensor import Chain, Decider, Link, SymbolicTensor, opaque

_NOISE = torch.Generator()
_NOISE.seed()


@dataclass
class _Record:
    """What stands in one storage: atoms (n,) int64, maps with operands (n,) or numbers, and the storage, kept alive."""

    atoms: Tensor
    chain: Chain
    storage: Any


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
            return self.records.get(tensor.untyped_storage()._cdata)

    def holds(self, tensor: Tensor) -> bool:
        """Whether any element of a tensor is random."""
        record = self._record(tensor)
        if record is None:
            return False
        with torch._C.DisableTorchFunction():
            return bool((_region(record.atoms, tensor) >= 0).any())

    def read(self, tensor: Tensor) -> SymbolicTensor:
        """The random numbers that stand in a tensor; ordinary numbers among them stay what they are."""
        record = self._record(tensor)
        assert record is not None
        with torch._C.DisableTorchFunction():
            atoms = _region(record.atoms, tensor).clone()
            chain = tuple(link.reshaped(lambda flat: _region(flat, tensor).clone()) for link in record.chain)
            plain = atoms < 0
            if bool(plain.any()):
                constants = torch.where(plain, tensor.detach().to(torch.float64), 0.0)
                chain = (*chain, Link("choose", constants, ~plain))
        return SymbolicTensor.make(atoms, self._decider, tensor.dtype, chain)

    def write(self, tensor: Tensor, value: SymbolicTensor, index: Any = ()) -> None:
        """Let ``tensor[index]`` be these random numbers."""
        if not tensor.dtype.is_floating_point:
            raise opaque(f"writing random numbers into a tensor of {tensor.dtype}")
        with torch._C.DisableTorchFunction():
            record = self._record(tensor)
            if record is None:
                storage = tensor.untyped_storage()
                n = storage.nbytes() // tensor.element_size()
                record = _Record(torch.full((n,), -1, dtype=torch.int64), (), storage)
                self.records[storage._cdata] = record
            region = _region(record.atoms, tensor)
            target = torch.arange(record.atoms.numel())
            places = _region(target, tensor)[index]
            value = widened(value, places.shape) if value.atoms.shape != places.shape else value
            all_of_it = bool((record.atoms < 0).all()) or places.numel() == int((record.atoms >= 0).sum()) == region.numel()
            self._write_chain(record, value, places.reshape(-1), fresh=all_of_it)
            record.atoms[places.reshape(-1)] = value.atoms.reshape(-1)
            # Code that reads the memory itself, past torch's functions, finds other numbers in every call: what it then decides
            # differs when paths are walked again, and is refused.
            tensor[index] = torch.rand(places.shape, generator=_NOISE).to(tensor.dtype)

    def _write_chain(self, record: _Record, value: SymbolicTensor, places: Tensor, *, fresh: bool) -> None:
        n = record.atoms.numel()
        if fresh:
            record.chain = tuple(Link(link.name) for link in value.chain)
        if [link.name for link in record.chain] != [link.name for link in value.chain]:
            raise opaque("filling parts of one tensor with random numbers of different kinds", "use a tensor for each")
        chain = []
        for old, new in zip(record.chain, value.chain, strict=True):
            if not isinstance(new.operand, Tensor) and (fresh or old == new):
                chain.append(new)
                continue
            operand = full(old.operand, torch.Size((n,))).clone()
            operand[places] = full(new.operand, value.atoms.shape).reshape(-1)
            where = None
            if new.where is not None:
                where = torch.ones(n, dtype=torch.bool) if old.where is None else old.where.clone()
                where[places] = new.where.reshape(-1)
            chain.append(Link(new.name, operand, where))
        record.chain = tuple(chain)

    def clear(self, tensor: Tensor, index: Any = ()) -> None:
        """Note that ordinary numbers were written into ``tensor[index]``."""
        record = self._record(tensor)
        if record is not None:
            with torch._C.DisableTorchFunction():
                places = _region(torch.arange(record.atoms.numel()), tensor)[index]
                record.atoms[places.reshape(-1)] = -1
