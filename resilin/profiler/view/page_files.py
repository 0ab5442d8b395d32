"""The page: its files as they are served, and all of them as one file. Nothing is fetched from elsewhere.

What a trace says reaches the page as JSON, and the page puts it into texts and titles only. Whatever would run in spite
of that is refused by the browser: scripts are the files of this folder, or in the one file those with their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import html
from pathlib import Path

_FOLDER = Path(__file__).parent / "page"
SCRIPTS = (
    "elements.js", "tables.js", "overview.js", "operators.js", "kernels.js", "memory.js", "tracks.js", "timeline.js",
    "main.js",
)  # fmt: skip
"""In this order: later ones use what earlier ones define."""
STYLE = "style.css"
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}
POLICY = (
    "default-src 'none'; script-src {scripts}; style-src {styles}; connect-src {data}; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)


def served() -> dict[str, bytes]:
    """Return the files by name; the page itself has none."""
    head = "".join(f'<script src="{name}" defer></script>\n' for name in SCRIPTS)
    page = _page(f'<link rel="stylesheet" href="{STYLE}">\n{head}', "")
    return {"": page.encode(), **{name: _text(name).encode() for name in (STYLE, *SCRIPTS)}}


def policy() -> str:
    """Return the Content-Security-Policy of what is served."""
    return POLICY.format(scripts="'self'", styles="'self'", data="'self'") + "; frame-ancestors 'none'"


def as_one_file(data: str, title: str) -> str:
    """Return the page with its data, which opens without a server."""
    style, scripts = _text(STYLE), [_text(name) for name in SCRIPTS]
    own = POLICY.format(scripts=" ".join(map(_hash, scripts)), styles=_hash(style), data="'none'")
    head = f'<meta http-equiv="Content-Security-Policy" content="{own}">\n<style>{style}</style>\n'
    # no "</script>", "<!--" or "<script" in it, whatever names say
    safe = data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    body = f'<script type="application/json" id="data">{safe}</script>\n'
    return _page(head, body + "".join(f"<script>{text}</script>\n" for text in scripts), title)


def _page(head: str, body: str, title: str = "resilin trace view") -> str:
    """The page with more in its head and at its end."""
    before, _, rest = _text("page.html").partition("<!-- head -->\n")
    between, _, after = rest.partition("<!-- body -->\n")
    return before.replace("resilin trace view", html.escape(title), 1) + head + between + body + after


def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
