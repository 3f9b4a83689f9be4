"""Scripts by which bash, zsh and fish complete a command line. What they know is in them: they start nothing."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from powerd_daemon.completion_words import Command, Word


def _quoted(words: Sequence[str]) -> str:
    return " ".join(map(shlex.quote, words))


def _walk(commands: Sequence[Command], indent: str) -> list[str]:
    """A ``case`` that takes the name of the command further by one word."""
    inner = " | ".join(shlex.quote(c.name) for c in commands if len(c.path) > 1)
    return [f'{indent}case "$name $word" in', f'{indent}    {inner}) name="$name $word" ;;', f"{indent}esac"]


def _values(commands: Sequence[Command], file: str, words: Callable[[Sequence[str]], str]) -> list[str]:
    """Branches of a ``case`` on "command|option before the cursor": what comes behind an option that takes a value."""
    said = []
    for command in commands:
        for option in command.options:
            if option.takes_value:
                what = file if option.is_file else words(option.choices) if option.choices else ":"
                said.append(f"        {shlex.quote(f'{command.name}|{option.text}')}) {what}; return ;;")
    return said


def bash(commands: Sequence[Command]) -> str:
    """For ``source <(powerd completion bash)``."""
    program = commands[0].name

    def reply(words: Sequence[str]) -> str:
        return f'mapfile -t COMPREPLY < <(compgen -W {shlex.quote(" ".join(words))} -- "$cur")'

    said = [
        f"_{program}() {{",
        f'    local cur="${{COMP_WORDS[COMP_CWORD]}}" name={program} word files=',
        "    local -a words=() options=()",
        '    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        *_walk(commands, "        "),
        "    done",
        "    COMPREPLY=()",
        '    case "$name|${COMP_WORDS[COMP_CWORD-1]}" in',
        *_values(commands, 'compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur")', reply),
        "    esac",
        '    case "$name" in',
    ]
    for c in commands:
        words = [w.text for w in c.commands] + list(c.choices)
        files = " files=yes;" if c.takes_file else ""
        said.append(
            f"        {shlex.quote(c.name)}) words=({_quoted(words)});{files} "
            f"options=({_quoted([o.text for o in c.options])}) ;;"
        )
    said += [
        "    esac",
        '    if [[ $cur == -* ]]; then mapfile -t COMPREPLY < <(compgen -W "${options[*]}" -- "$cur"); return; fi',
        '    mapfile -t COMPREPLY < <(compgen -W "${words[*]}" -- "$cur")',
        "    [[ $files ]] || return 0",
        "    compopt -o filenames",
        '    mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- "$cur")',
        "}",
        f"complete -F _{program} {program}",
    ]
    return "\n".join(said) + "\n"


def zsh(commands: Sequence[Command]) -> str:
    """For ``source <(powerd completion zsh)`` behind ``compinit``, or as a file ``_powerd`` of its ``fpath``."""
    program = commands[0].name

    def described(words: Sequence[Word]) -> str:
        return _quoted([f"{w.text.replace(':', chr(92) + ':')}:{w.help}" for w in words])

    said = [
        f"#compdef {program}",
        f"_{program}() {{",
        f"    local name={program} word files=",
        # Not called commands and options: zsh has parameters of these names.
        "    local -a subcommands flags choices",
        "    for word in ${words[2,CURRENT-1]}; do",
        *_walk(commands, "        "),
        "    done",
        '    case "$name|${words[CURRENT-1]}" in',
        *_values(commands, "_files", lambda choices: f"compadd -- {_quoted(choices)}"),
        "    esac",
        '    case "$name" in',
    ]
    for c in commands:
        files = " files=yes;" if c.takes_file else ""
        said.append(
            f"        {shlex.quote(c.name)}) subcommands=({described(c.commands)}); choices=({_quoted(c.choices)});"
            f"{files} flags=({described(c.options)}) ;;"
        )
    said += [
        "    esac",
        "    if [[ $PREFIX == -* ]]; then _describe -o option flags; return; fi",
        "    (( $#subcommands )) && _describe command subcommands",
        "    (( $#choices )) && compadd -- $choices",
        "    [[ -n $files ]] && _files",
        "    return 0",
        "}",
        f'if [[ "${{funcstack[1]}}" == _{program} ]]; then _{program} "$@"; else compdef _{program} {program}; fi',
    ]
    return "\n".join(said) + "\n"


def fish(commands: Sequence[Command]) -> str:
    """For ``powerd completion fish | source``."""
    program = commands[0].name
    said = [f"complete -c {program} -f"]
    for c in commands:
        seen = [f"__fish_seen_subcommand_from {word}" for word in c.path[1:]]
        if c.commands:
            seen.append(f"not __fish_seen_subcommand_from {' '.join(w.text for w in c.commands)}")
        begin = f"complete -c {program} -n {_fish('; and '.join(seen))}"
        said += [f"{begin} -a {w.text} -d {_fish(w.help)}" for w in c.commands]
        if c.choices:
            said.append(f"{begin} -a {_fish(' '.join(c.choices))}")
        if c.takes_file:
            said.append(f"{begin} -F")
        for option in c.options:
            kind = f"-l {option.text[2:]}" if option.text.startswith("--") else f"-s {option.text[1:]}"
            value = ""
            if option.takes_value:
                value = " -r" + (" -F" if option.is_file else " -f")
                value += f" -a {_fish(' '.join(option.choices))}" if option.choices else ""
            said.append(f"{begin} {kind}{value} -d {_fish(option.help)}")
    return "\n".join(said) + "\n"


def _fish(text: str) -> str:
    """In quotes of fish, in which a backslash counts too."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS: dict[str, Callable[[Sequence[Command]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
