"""The command `qkv`: its verbs, its global options, and how what goes wrong is told.

A verb's file is imported at every start, so that `qkv --help` can describe it; it imports the library (and so torch)
only when it runs.
"""

import functools
import os
import sys
from collections.abc import Callable
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any

import typer

from qkv import __version__
from qkv.cli.options import say
from qkv.errors import QkvError

VERBS = ("train", "evaluate", "translate", "classify", "export", "info", "init", "schema", "demo")
FAILED, INTERRUPTED, NOBODY_READS = 1, 130, 141  # the last two as a shell counts SIGINT and SIGPIPE

app = typer.Typer(
    name="qkv",
    help="Train, run, measure and look inside attention and Transformer models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_shown = {"debug": False}


def main() -> None:
    """Run the command that was typed."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an arrow is not worth failing for where a locale has none
    arguments = sys.argv[1:]
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--debug" in options:  # wherever it stands: one adds it at the end of the command that failed
        arguments.remove("--debug")
        arguments.insert(0, "--debug")
    app(arguments, prog_name="qkv")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"qkv {__version__}")
        raise typer.Exit


@app.callback()
def _global(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of what goes wrong.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    _shown["debug"] = debug


def guarded(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb, with every failure told in one sentence and by its exit code."""

    @functools.wraps(verb)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            verb(*arguments, **options)
            sys.stdout.flush()
        except (typer.Exit, typer.BadParameter):
            raise
        except KeyboardInterrupt as interrupt:
            say(f"qkv: {str(interrupt) or 'interrupted'}")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _drop_output()
            raise typer.Exit(NOBODY_READS) from None
        except Exception as error:
            if _shown["debug"]:
                raise
            say(_sentence(error))
            raise typer.Exit(_code(error)) from None

    return run


def _sentence(error: Exception) -> str:
    if isinstance(error, QkvError):
        return f"qkv: {error}"
    return f"qkv: unexpected {type(error).__name__}: {error}: run it again with --debug and report what that shows"


def _code(error: Exception) -> int:
    """128 and the signal for a run that was stopped by one; 1 for all else."""
    signal = getattr(error, "signal", 0) if isinstance(error, QkvError) else 0
    return 128 + signal if signal else FAILED


def _drop_output() -> None:
    """Send what Python still flushes as it ends to nowhere, where nobody reads stdout any more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


for _name in VERBS:
    app.command(_name)(guarded(getattr(import_module(f"qkv.cli.{_name}"), _name)))
