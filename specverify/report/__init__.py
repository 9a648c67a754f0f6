"""How is a certificate shown to people? One self-contained page and one plain summary, from recomputed verdicts."""

from specverify.report.command import main, write_report

__all__ = ["main", "write_report"]
