"""Man pages and shell completion, made of the commands: `python -m scripts.manual DIRECTORY`."""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from shardfs.cli import cli, every_command
from shardfs.cli.options import summary
from shardfs.version import __version__

COMPLETIONS = {
    "bash": "bash-completion/completions/shardfs",
    "zsh": "zsh/site-functions/_shardfs",
    "fish": "fish/vendor_completions.d/shardfs.fish",
}
"""Where a shell looks for what it loads when a command is first completed."""


def write(share: Path) -> None:
    """Write all files below a directory `share`."""
    files = {f"man/man1/{name}.1": text for name, text in _pages()}
    for shell, name in COMPLETIONS.items():
        completion = get_completion_class(shell)
        assert completion is not None
        source = completion(cli, {}, "shardfs", "_SHARDFS_COMPLETE").source()
        # Only the first call of an autoloaded function of zsh has that context: the second would complete nothing.
        files[name] = source.replace("$zsh_eval_context[-1] == loadautofunc", "$funcstack[1] == _shardfs")
    for name, text in files.items():
        path = share / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class _Roff(click.HelpFormatter):
    """Writes what `--help` says as the source of a man page."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the synopsis; what follows is the description."""
        self.write_heading("Synopsis")
        super().write(f"\\fB{_escaped(prog)}\\fR {_escaped(args)}\n")
        self.write_heading("Description")

    def write_heading(self, heading: str) -> None:
        """Begin a section."""
        super().write(f".SH {heading.upper()}\n")

    def write_paragraph(self) -> None:
        """Begin a paragraph."""
        super().write(".PP\n")

    def write_text(self, text: str) -> None:
        """Write paragraphs; one that begins with a backspace keeps its lines."""
        for paragraph in text.split("\n\n"):
            self.write_paragraph()
            if paragraph.startswith("\b"):
                super().write(f".nf\n{_escaped(paragraph[2:])}\n.fi\n")
            else:
                super().write(_escaped(" ".join(paragraph.split())) + "\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write terms and what they mean."""
        for term, meaning in rows:
            super().write(f".TP\n\\fB{_escaped(term)}\\fR\n{_escaped(meaning)}\n")

    def write(self, string: str) -> None:
        """Write a line as it is."""
        super().write(f"{_escaped(string.strip())}\n.br\n")


def _pages() -> Iterator[tuple[str, str]]:
    """Yield name and text of the pages of `shardfs` and of each of its commands."""
    commands = every_command()
    names = [f"shardfs-{name}" for name in commands]
    context = cli.make_context("shardfs", [], resilient_parsing=True)
    yield "shardfs", _page(context, names)
    for name, command in zip(names, commands.values(), strict=True):
        below = click.Context(command, info_name=command.name, parent=context)
        yield name, _page(below, ["shardfs", *(other for other in names if other != name)])


def _page(context: click.Context, others: Sequence[str]) -> str:
    name = context.command_path.replace(" ", "-")
    links = ", ".join(f"\\fB{_escaped(other)}\\fR(1)" for other in others)
    formatter = _Roff()
    context.command.format_help(context, formatter)
    return (
        f'.TH {name.upper()} 1 "" "shardfs {__version__}" "User Commands"\n.nh\n.ad l\n'
        f".SH NAME\n{_escaped(name)} \\- {_escaped(summary(context.command).rstrip('.'))}\n"
        f"{formatter.getvalue()}"
        f".SH SEE ALSO\n{links}\n"
    )


def _escaped(text: str) -> str:
    """Return text as roff takes it literally."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
