"""Parts of pages: every text and attribute is escaped, and a page loads only what is below `/-/`."""

from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib.resources import files as resources
from secrets import token_urlsafe
from typing import Final

from shardfs.bulk.map_page import STYLES
from shardfs.errors import printable
from shardfs.serve.exchange import Header

_POLICY: Final = (
    "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; img-src 'self' blob:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def text(value: str) -> str:
    """Return any text for a page, or for an attribute of an element."""
    return escape(printable(value))


def new_nonce() -> str:
    """Return what nobody can guess, by which a page names what it loads."""
    return token_urlsafe(16)


def headers(nonce: str) -> list[Header]:
    """Return the headers of every page."""
    return [
        ("Content-Type", "text/html; charset=utf-8"),
        ("Content-Security-Policy", _POLICY.format(nonce)),
        ("Referrer-Policy", "no-referrer"),
        ("X-Content-Type-Options", "nosniff"),
    ]


def head(title: str, up: str, nonce: str, trail: Sequence[tuple[str, str]]) -> str:
    """Return the beginning of a page called *title*; *trail* are the texts and addresses that lead to it."""
    links = [f'<a href="{text(href)}">{text(name)}</a>' for name, href in trail]
    links[-1] = links[-1].replace("<a ", '<a aria-current="page" ', 1)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)} · shardfs</title>\n"
        f'<link rel="icon" href="{up}-/icon.svg">\n'
        f'<link rel="stylesheet" nonce="{nonce}" href="{up}-/page.css">\n'
        f'<script nonce="{nonce}" src="{up}-/page.js" defer></script>\n</head>\n<body>\n'
        f'<nav aria-label="Path">{" › ".join(links)}</nav>\n<main>\n<h1>{text(title)}</h1>\n'
    )


def foot(views: str = "") -> str:
    """Return the end of a page."""
    shown = f"<footer>{views}</footer>\n" if views else ""
    return f"</main>\n{shown}</body>\n</html>\n"


def folded(summary: str, body: str, *, is_open: bool = False) -> str:
    """Return what is shown below a *summary* when that is opened."""
    return f"<details{' open' if is_open else ''}><summary>{text(summary)}</summary>\n{body}</details>\n"


def section(name: str, title: str, body: str) -> str:
    """Return a section with a heading."""
    return f'<section id="{name}">\n<h2>{title}</h2>\n{body}</section>\n'


def problem(reason: str) -> str:
    """Return a paragraph that says what is wrong."""
    return f'<p class="problem">{text(reason)}</p>\n'


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of names and values."""
    lines = "".join(f'<tr><th scope="row">{text(name)}</th><td>{text(value)}</td></tr>\n' for name, value in rows)
    return f"<table>\n<tbody>\n{lines}</tbody>\n</table>\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], label: str) -> str:
    """Return a table of texts, which scrolls by itself if it is wide."""
    names = "".join(f'<th scope="col">{text(name)}</th>' for name in columns)
    lines = "".join(f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in row)}</tr>\n" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(label)}">\n<table class="rows">\n'
        f"<thead><tr>{names}</tr></thead>\n<tbody>\n{lines}</tbody>\n</table>\n</div>\n"
    )


@cache
def asset(name: str) -> bytes:
    """Return a file that pages load, `page.css`, `page.js` or `icon.svg`."""
    found = resources(__package__).joinpath(name).read_text(encoding="utf-8")
    return (found + STYLES if name == "page.css" else found).encode()
