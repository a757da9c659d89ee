"""`iotctl completion bash|zsh|fish`: print the completion script for a shell."""

from typing import Annotated

import typer

from iotctl.cli.session import session_of

_BASH = """_iotctl_completion() {
    local IFS=$'\\n'
    COMPREPLY=( $( env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD \\
        _IOTCTL_COMPLETE=complete_bash $1 ) )
    return 0
}
complete -o default -F _iotctl_completion iotctl
"""
_ZSH = """#compdef iotctl
_iotctl_completion() {
  eval $(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _IOTCTL_COMPLETE=complete_zsh iotctl)
}
compdef _iotctl_completion iotctl
"""
_FISH = (
    "complete --command iotctl --no-files --arguments "
    '"(env _IOTCTL_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args '
    '_TYPER_COMPLETE_ARGS=(commandline -cp) iotctl)" --condition '
    '"env _IOTCTL_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=is-args '
    '_TYPER_COMPLETE_ARGS=(commandline -cp) iotctl"\n'
)
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def register(app: typer.Typer) -> None:
    app.command("completion")(completion)


def completion(
    ctx: typer.Context, shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="Your shell.")]
) -> None:
    """Print the completion script for a shell.

    To use it: source <(iotctl completion bash)
    """
    if shell not in SCRIPTS:
        raise typer.BadParameter(f"{shell!r} is not one of {', '.join(SCRIPTS)}", param_hint="shell")
    session_of(ctx).out.write(SCRIPTS[shell])
