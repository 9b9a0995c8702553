"""A script by which a shell completes gluongraph's commands, options, and the files they take.

  gluongraph completion bash > ~/.local/share/bash-completion/completions/gluongraph
  gluongraph completion zsh > ~/.zfunc/_gluongraph       # with fpath+=~/.zfunc before compinit
  gluongraph completion fish > ~/.config/fish/completions/gluongraph.fish

It is made from the tables of options that --help is made from.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gluongraph.cli import COMMANDS, parsers


@dataclass(frozen=True)
class Option:
    """One option: its names, whether something follows, which words that may be, what it is for."""

    names: tuple[str, ...]
    takes: bool
    words: tuple[str, ...]
    doc: str


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("shell", choices=tuple(SHELLS), help="for which shell")


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    _, found = parsers()
    print(SHELLS[options.shell]({name: list(_options(each)) for name, each in found.items()}), end="")
    return 0


def _options(parser: argparse.ArgumentParser) -> Iterator[Option]:
    for action in parser._actions:  # argparse has no other way to ask for them
        if action.help != argparse.SUPPRESS:
            words = tuple(map(str, action.choices or ()))
            doc = (action.help or "").replace("%(default)s", str(action.default))
            yield Option(tuple(action.option_strings), action.nargs != 0, words, doc)


Table = Mapping[str, list[Option]]


def bash(table: Table) -> str:
    """Options after a dash; words where there are some to choose from; else files."""
    values, words = [], []
    for command, options in table.items():
        for option in options:
            if option.words and option.names:
                names = "|".join(f'"{command} {name}"' for name in option.names)
                values.append(f'    {names}) COMPREPLY=($(compgen -W "{" ".join(option.words)}" -- "$cur")); return ;;')
        own = [word for option in options for word in (option.names or option.words)]
        words.append(f'    {command}) words="{" ".join(own)}" ;;')
    return f"""# bash completion for gluongraph
_gluongraph() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}" words
  if [[ $COMP_CWORD == 1 ]]; then
    COMPREPLY=($(compgen -W "{" ".join(table)}" -- "$cur"))
    return
  fi
  case "${{COMP_WORDS[1]}} $prev" in
{chr(10).join(values)}
  esac
  case "${{COMP_WORDS[1]}}" in
{chr(10).join(words)}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  [[ $cur == -* ]] || COMPREPLY+=($(compgen -f -- "$cur"))
}}
complete -o filenames -F _gluongraph gluongraph
"""


def zsh(table: Table) -> str:
    """By _arguments, which shows what options are for."""
    cases = []
    for command, options in table.items():
        lines = [_zsh(name, option) for option in options for name in option.names]
        words = [word for option in options if not option.names for word in option.words]
        rest = f"'*:word:({' '.join(words)})'" if words else "'*:file:_files'"
        cases.append(f"    {command}) _arguments {' '.join([*lines, rest])} ;;")
    named = " ".join(f"'{name}:{_quoted(COMMANDS[name])}'" for name in table)
    return f"""#compdef gluongraph
_gluongraph() {{
  local -a commands=({named})
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  shift words
  (( CURRENT-- ))
  case $words[1] in
{chr(10).join(cases)}
  esac
}}
compdef _gluongraph gluongraph
"""


def _zsh(name: str, option: Option) -> str:
    doc = _quoted(option.doc).replace("[", "(").replace("]", ")").replace(":", "\\:")
    follows = ""
    if option.takes:
        follows = f":value:({' '.join(option.words)})" if option.words else ":value:_files"
    return f"'*{name}[{doc}]{follows}'"


def fish(table: Table) -> str:
    """A line for each command and each option."""
    lines = [
        f"complete -c gluongraph -n __fish_use_subcommand -f -a {name} -d '{_quoted(COMMANDS[name])}'" for name in table
    ]
    for command, options in table.items():
        only = f"complete -c gluongraph -n '__fish_seen_subcommand_from {command}'"
        for option in options:
            words = f" -x -a '{' '.join(option.words)}'" if option.words else " -r" if option.takes else ""
            named = [f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names]
            if named or option.words:
                lines.append(f"{only} {' '.join(named)}{words} -d '{_quoted(option.doc)}'")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A text that may stand between single quotes."""
    return text.replace("'", "")


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}
