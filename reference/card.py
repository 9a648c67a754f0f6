"""What the trained models are, what they were trained on, and how often drafts are accepted.

The card is written from numbers: those stored with the weights, and acceptances measured when it is written.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

from reference import weights
from reference.decoder import acceptance_per_tested_token, generate
from reference.families import FAMILIES, family_named
from reference.noise import BatchNoise
from reference.processors import Processors
from reference.rules import rule_named
from reference.text import EOS_ID, VOCAB_SIZE, prompts

NAME = "MODEL_CARD.md"
ROWS, PROMPT_LENGTH, NEW_TOKENS, K = 32, 64, 256, 4

TEMPLATE = """\
# Models of the reference decoder

Three character-level transformers over {vocab} ids (newline, printable ASCII, one end-of-document id), made by

    python -m reference.train

with seed {seed}, {threads} thread, torch {torch}, Python {python}. The same seed, thread
count and builds give the same bits. Seconds are wall time, on a machine shared with other work.

| model | layers x width | parameters | data | loss: training | held out | steps | seconds |
|---|---|---|---|---|---|---|---|
{rows}

Losses are nats per character at context up to 256.

- **main** and **aligned** read the documentation topics that Python ships (`pydoc_data.topics`); every tenth
  topic is held out.
- **aligned** has never seen the next characters themselves: it is distilled from main on the same text, with
  the Kullback-Leibler divergence for the first half of its steps and then with the total variation distance,
  which is one minus the acceptance.
- **mismatched** has the shape of aligned and reads the source code of Python's character codecs (`encodings`),
  mostly tables, without comments and docstrings; every tenth module is held out. On held-out
  documentation its loss is {mismatched_on_docs}, that of aligned {aligned_on_docs}.

## Networks that draft from the states of main

Trained with main frozen, on its states and laws along the same text, with the same two distances. Overlap is the mean of
sum min(p, q) over held-out text: the acceptance of the first, second .. draft of a round, each after accepted ones.

| network | parameters | steps | seconds | overlap |
|---|---|---|---|---|
{heads}

- **medusa**: {medusa_heads} heads on the last hidden state. Their top-1 accuracies, head by head, on held-out text:
  {top1}
- **early_exit**: a head on the states after {early} of the {layers} layers.
- **feature_layer**: one layer that reads the token and the state before it, and foresees the next state (EAGLE).

## Acceptance

Accepted / (accepted + rejected) under token rejection at temperature 1, {n} continuations of {length} held-out
characters by up to {new} characters, K = {k}:

{acceptances}

Measured when this card was written, and again by

    python -m reference.train --measure

These models exist to exercise a decoder and to be timed. Their text is of no use.
"""


CHAINS = tuple(name for name, of in FAMILIES.items() if "token_rejection" in of.rules)


def measured_acceptance(draft: str, folder: Path = weights.FOLDER, rows: int = ROWS, new_tokens: int = NEW_TOKENS) -> float:
    """Measure the acceptance per tested token of a family at temperature 1 on text that continues held-out
    documentation.
    """
    found = generate(
        weights.trained("main", folder),
        family_named(draft).trained(folder),
        prompts(rows, PROMPT_LENGTH),
        new_tokens,
        k=K,
        process=Processors(),
        rule=rule_named("token_rejection"),
        noise=BatchNoise(torch.Generator().manual_seed(0)),
        eos_id=EOS_ID,
    )
    assert found.accepted is not None
    return acceptance_per_tested_token(found.accepted, K)


def write_card(folder: Path = weights.FOLDER) -> str:
    """Measure the acceptances, write the card next to the weights in ``folder``, and return its text."""
    numbers = {name: weights.training_numbers(name, folder) for name in weights.SHAPES}
    data = {"main": "documentation", "aligned": "documentation, through main", "mismatched": "codec source"}
    rows = [
        f"| {name} | {shape.layers} x {shape.width} | {n['parameters']} | {data[name]}, {n['characters']} characters "
        f"| {n['loss_train']} | {n['loss_held_out']} | {n['steps']} | {n['seconds']} |"
        for name, shape in weights.SHAPES.items()
        for n in [numbers[name]]
    ]
    text = TEMPLATE.format(
        vocab=VOCAB_SIZE,
        rows="\n".join(rows),
        mismatched_on_docs=numbers["mismatched"]["loss_documentation"],
        aligned_on_docs=numbers["aligned"]["loss_documentation"],
        n=ROWS,
        length=PROMPT_LENGTH,
        new=NEW_TOKENS,
        k=K,
        heads="\n".join(
            f"| {name} | {n['parameters']} | {n['steps']} | {n['seconds']} | {n['overlaps']} |"
            for name in weights.HEADS
            for n in [weights.training_numbers(name, folder)]
        ),
        medusa_heads=weights.MEDUSA_HEADS,
        top1=weights.training_numbers("medusa", folder)["top1"],
        early=weights.EARLY_LAYERS,
        layers=weights.SHAPES["main"].layers,
        acceptances="\n".join(f"- {name}: {measured_acceptance(name, folder):.3f}" for name in CHAINS),
        **{key: numbers["main"][key] for key in ("seed", "threads", "torch", "python")},
    )
    (folder / NAME).write_text(text, encoding="utf-8")
    return text


def read_card(folder: Path = weights.FOLDER) -> dict[str, float]:
    """Read a card's numbers: acceptances by family, then "main parameters", "main training", "main held out" and so on,
    "medusa top-1 of head 1" and so on.

    Errors: ValueError when the card does not have them.
    """
    text = (folder / NAME).read_text(encoding="utf-8")
    numbers = {m[1]: float(m[2]) for m in re.finditer(r"^- (\w+): ([0-9.]+)$", text, re.MULTILINE)}
    for m in re.finditer(r"^\| (\w+) \| [^|]+ \| (\d+) \| [^|]+ \| ([0-9.]+) \| ([0-9.]+) \|", text, re.MULTILINE):
        numbers |= {f"{m[1]} {key}": float(m[i]) for i, key in ((2, "parameters"), (3, "training"), (4, "held out"))}
    for m in re.finditer(r"Their top-1 accuracies.*\n  ([0-9. ]+)$", text, re.MULTILINE):
        numbers |= {f"medusa top-1 of head {j}": float(x) for j, x in enumerate(m[1].split(), start=1)}
    if len(numbers) != len(CHAINS) + 3 * len(weights.SHAPES) + weights.MEDUSA_HEADS:
        raise ValueError(
            f"{folder / NAME} lacks numbers; it has {sorted(numbers)}; write it again: python -m reference.train --measure"
        )
    return numbers
