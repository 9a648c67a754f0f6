"""One module per question asked of a subject; the registry below fixes their order."""

from types import ModuleType

from specverify.checks import acceptance, edges, on_off, rounds, rows, seeds, sequence, single_step, stopping

CHECKS: dict[str, ModuleType] = {
    module.NAME: module for module in (single_step, rounds, acceptance, edges, sequence, stopping, rows, seeds, on_off)
}
"""Exact checks first: they are cheap and their counterexamples are the smallest."""

__all__ = ["CHECKS"]
