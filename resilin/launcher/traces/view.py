"""`resilin trace view`: one local page of the traces of all ranks, served to this machine or written as one file."""

from __future__ import annotations

import argparse
import contextlib
import threading
import webbrowser
from pathlib import Path
from types import ModuleType
from typing import Any

from resilin._base import env
from resilin.errors import UsageError
from resilin.launcher import output
from resilin.launcher.traces import files

_MEGABYTES = 256  # of text: about a minute, and 2 GB of memory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `resilin trace view`."""
    parser.add_argument(
        "traces", nargs="+", metavar="FOLDER|FILE|URL",
        help="what `resilin trace record` recorded into, traces that profilers wrote (*.json, *.json.gz), or what "
        "`resilin trace merge` made of them; also as s3://BUCKET/FOLDER, or any URL that fsspec knows",
    )  # fmt: skip
    parser.add_argument("--last", type=files.number, default=0.0, metavar="SECONDS", help=files.LAST)
    parser.add_argument(
        "--export", type=Path, metavar="FILE", help="write the page as one HTML file, and serve nothing"
    )
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="where to serve it on this machine (default: any)"
    )
    parser.add_argument("--no-browser", action="store_true", help="print the page's address, and open no browser")
    parser.add_argument(
        "--source", type=Path, action="append", default=[], metavar="FOLDER",
        help="open files of the program beneath this folder; repeatable (default: the current one)",
    )  # fmt: skip
    parser.add_argument(
        "--editor", metavar="COMMAND",
        help="what opens a line, as 'code -g {file}:{line}' or 'emacsclient -n +{line} {file}'; without it, links that "
        "VS Code opens",
    )  # fmt: skip
    parser.add_argument(
        "--megabytes", type=int, default=_MEGABYTES, metavar="N",
        help="refuse traces with more text, which take minutes and much memory (default %(default)s)",
    )  # fmt: skip
    parser.epilog = "It is served until Ctrl-C, to this machine alone. Returns 0, or 2 without traces."


def run(args: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C, or write it. UsageError (exit code 2) without traces, or if a port is taken."""
    viewing, editor = _loaded(), None
    if args.editor is not None:
        editor = viewing.Editor(args.editor)
    sources = args.source or [Path()]
    opens = viewing.Opens.NOTHING if args.export else viewing.Opens.EDITOR if editor else viewing.Opens.LINK
    if args.megabytes < 0:
        raise UsageError(f"--megabytes: expected 0 or more, got {args.megabytes}")
    missing = next((folder for folder in sources if not folder.is_dir()), None)
    if missing is not None:
        raise UsageError(f"--source {missing}: there is no such folder")

    def read() -> Any:
        made = viewing.read(args.traces, sources, args.megabytes << 20, opens, int(args.last * 1e9))
        if made.notes:
            output.show(*made.notes)
        return made

    if args.export is not None:
        size = viewing.export(read(), args.export)
        output.show(f"{args.export}: {size / 1e6:.1f} MB, for any browser")
        return 0
    with viewing.listen(args.port, editor) as server:  # before reading, which may take a minute: a port may be taken
        made = read()
        server.show(made.data, made.places)
        output.show(f"{server.url} until Ctrl-C")
        if not args.no_browser and (env.get("DISPLAY") or env.get("WAYLAND_DISPLAY")):
            # beside the server, since a browser in a terminal returns when it is closed; it ends with the program
            threading.Thread(target=webbrowser.open, args=(server.url,), name="browser", daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


def _loaded() -> ModuleType:
    """Who reads, serves and writes: `resilin.profiler.view.viewing`."""
    from resilin.profiler.view import viewing  # loads numpy, as all of the profiler does

    return viewing
