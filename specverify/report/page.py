"""How does the page become one file? Template, style and script inline, and a policy that forbids everything else."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

import jinja2
from markupsafe import Markup

from specverify.report.model import Page
from specverify.report.wording import GLYPHS

_HERE = "specverify.report"


def _text(name: str) -> str:
    return resources.files(_HERE).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def render_page(page: Page) -> str:
    """Write the page as HTML. Text from the certificate is escaped; the policy lets no script but ours run besides."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(_text("page.html.j2"))
    style, script = _text("page.css"), _text("page.js")
    policy = (
        "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    )
    ours = {"style": Markup(style), "script": Markup(script)}  # noqa: S704 - files of this package
    return template.render(page=page, glyphs=GLYPHS, policy=policy, **ours)
