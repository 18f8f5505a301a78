"""`mechmarkov mcp`: the commands as tools for a program that reasons about runs."""

from pathlib import Path

import click

from mechmarkov.cli._options import PATH


@click.command()
@click.option("--root", type=PATH, default=".", help="Folder that its files are in.")
def mcp(root: Path) -> None:
    """Serve list, train, probe, claims, ablate, certify and bench over the Model Context Protocol (stdio).

    Files are read and written only below --root. It needs the extra: pip install "mechmarkov[mcp]".
    """
    if not root.is_dir():
        raise ValueError(f"--root {root} is not a folder, expected one")
    try:
        from mechmarkov.tool_server import server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "anyio"):
            raise
        raise ValueError('the package mcp is missing: pip install "mechmarkov[mcp]"') from None
    server(root).run("stdio")
