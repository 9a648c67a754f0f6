"""The caches: what was consumed decides the laws, however it was consumed and whatever was taken back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reference.caching import Cache
from reference.decoder import Model
from reference.model import Transformer
from reference.sharing import LEAST_SAVED, read_sharing, shared_beginning
from reference.tables import CachedTable, HashedTable, IdsCache, table_pair


def random_ids(rows: int, length: int, vocab_size: int, seed: int = 0) -> Tensor:
    """Draw ids (rows, length)."""
    return torch.randint(vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=["transformer", "table"])
def model(request: pytest.FixtureRequest, main_model: Transformer) -> Model:
    """Both kinds of cached model."""
    return main_model if request.param == "transformer" else CachedTable(table_pair(5, 3)[0], 5)


def fresh(model: Model, ids: Tensor) -> Tensor:
    """Logits of whole texts, read by the model without its cache."""
    if isinstance(model, CachedTable):
        return model.table(ids)
    assert isinstance(model, Transformer)
    logits: Tensor = model(ids)
    return logits


def same(found: Tensor, expected: Tensor) -> bool:
    """Whether logits are equal up to rounding."""
    return torch.allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_cached_logits_equal_uncached(model: Model) -> None:
    """Reading a text in pieces of several sizes gives the logits of reading it at once."""
    ids = random_ids(3, 20, model.vocab_size)
    cache = model.start(20, 3)
    pieces = [model.extend(piece, cache) for piece in ids.tensor_split((1, 8, 9, 10, 15), 1)]
    assert same(torch.cat(pieces, 1), fresh(model, ids))


def test_rollback_leaves_no_trace(model: Model) -> None:
    """After each row took back another number of tokens, going on gives what a fresh reading of the kept text gives."""
    ids, wrong, more = (random_ids(4, n, model.vocab_size, seed) for seed, n in enumerate((6, 4, 3)))
    cache = model.start(13, 4)
    model.extend(ids, cache)
    model.extend(wrong, cache)
    kept = torch.tensor([6, 7, 10, 8])
    cache.rollback(kept)
    found = model.extend(more, cache)
    for row, n in enumerate(kept.tolist()):
        text = torch.cat([ids[row], wrong[row, : n - 6], more[row]])[None]
        assert same(found[row], fresh(model, text)[0, n:]), f"row {row}, which kept {n} tokens"


def test_the_rejected_token_would_show(model: Model) -> None:
    """The comparison in the test above has teeth: without the rollback the laws differ."""
    ids, wrong, more = (random_ids(4, n, model.vocab_size, seed) for seed, n in enumerate((6, 4, 3)))
    cache = model.start(13, 4)
    for piece in (ids, wrong):
        model.extend(piece, cache)
    assert not same(model.extend(more, cache), fresh(model, torch.cat([ids, more], 1))[:, 6:])


def test_rows_of_unequal_length_do_not_see_padding(model: Model) -> None:
    """Texts of unequal length, padded on the right with anything, go on as they do alone."""
    ids, more = random_ids(3, 9, model.vocab_size), random_ids(3, 2, model.vocab_size, 1)
    lengths = torch.tensor([9, 2, 5])
    cache = model.start(11, 3)
    first = model.extend(ids, cache, lengths)
    assert cache.lengths.tolist() == lengths.tolist()
    found = model.extend(more, cache)
    for row, n in enumerate(lengths.tolist()):
        expected = fresh(model, torch.cat([ids[row, :n], more[row]])[None])[0]
        assert same(first[row, :n], expected[:n])
        assert same(found[row], expected[n:])


def test_a_full_cache_says_so(model: Model) -> None:
    """Reading more than the capacity is an error that names both numbers."""
    cache = model.start(4, 1)
    model.extend(random_ids(1, 3, model.vocab_size), cache)
    with pytest.raises(ValueError, match="holds 4 tokens a row and 5 are needed"):
        model.extend(random_ids(1, 2, model.vocab_size), cache)


def test_a_rollback_cannot_lengthen() -> None:
    """Asking a cache to keep more than it has is an error."""
    with pytest.raises(ValueError, match="cannot lengthen"):
        IdsCache(4, 1).rollback(torch.tensor([1]))


def test_tables_depend_on_position_and_prefix() -> None:
    """A table model's law changes with the position and with early tokens, and has exact zeros."""
    table = table_pair(4, 0)[0]
    laws = table(torch.tensor([[1, 2, 3, 1], [2, 2, 3, 1], [1, 1, 1, 1]])).exp()
    assert not torch.equal(laws[0, 3], laws[1, 3])
    assert not torch.equal(laws[2, 1], laws[2, 2])
    assert (table.laws == 0).any()
    assert ((table.laws > 0).sum(1) >= 2).all()
    assert torch.allclose(table.laws.sum(1), torch.ones((), dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("vocab_size", [1, 9])
def test_tables_have_two_to_eight_tokens(vocab_size: int) -> None:
    """Another size of vocabulary is refused."""
    with pytest.raises(ValueError, match="2 to 8"):
        HashedTable(vocab_size, 0)


def alike(rows: int, n: int, vocab_size: int, seed: int) -> Tensor:
    """Draw ids (rows, n) of which many begin like others: half of the rows copy a beginning of one before."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(vocab_size, (rows, n), generator=generator)
    for row in range(1, rows):
        if torch.rand((), generator=generator) < 0.6:
            upto = int(torch.randint(n + 1, (), generator=generator))
            ids[row, :upto] = ids[int(torch.randint(row, (), generator=generator)), :upto]
    return ids


@pytest.mark.parametrize("ragged", [False, True])
def test_texts_that_begin_alike_are_read_once(model: Model, ragged: bool) -> None:
    """Logits of whole texts, and of what follows, are those of reading every text by itself; fewer tokens are read."""
    for seed in range(12):
        ids = alike(7, 10, 3, seed)
        counts = torch.randint(11, (7,), generator=torch.Generator().manual_seed(seed)) if ragged else None
        read: list[int] = []

        def reading(tokens: Tensor, cache: Cache, counts: Tensor | None, read: list[int] = read) -> Tensor:
            read.append(tokens.numel())
            return model.extend(tokens, cache, counts)

        cache, logits = read_sharing(model.start, reading, ids, counts, 13)
        more = random_ids(7, 3, model.vocab_size, seed)
        after = model.extend(more, cache)
        assert sum(read) < ids.numel() or len(read) == 1
        for row, count in enumerate([10] * 7 if counts is None else counts.tolist()):
            whole = fresh(model, torch.cat([ids[row, :count], more[row]])[None])[0]
            assert same(logits[row, :count], whole[:count]), f"row {row} of {count} tokens, seed {seed}"
            assert same(after[row], whole[count:]), f"what follows row {row} of {count} tokens, seed {seed}"


def test_as_much_is_shared_as_saves_most() -> None:
    """Against trying every length: rows with the same beginning and no others are read as one, and no length saves more."""
    shared_at_all = 0
    for seed in range(60):
        ids = alike(6, 8, 3, seed)
        counts = torch.randint(9, (6,), generator=torch.Generator().manual_seed(seed)) if seed % 2 else None
        real = [row if counts is None else row[: counts[i]] for i, row in enumerate(ids.tolist())]
        saved = [(6 - len({tuple(row[:t]) for row in real})) * t for t in range(9)]
        shared, first, which = shared_beginning(ids, counts)
        assert saved[shared] == (max(saved) if max(saved) >= LEAST_SAVED * 48 else 0)
        assert len(first) == len({tuple(row[:shared]) for row in real}) or shared == 0
        assert all(real[b][:shared] == real[int(first[which[b]])][:shared] for b in range(6))
        shared_at_all += shared > 0
    assert 10 < shared_at_all < 60
