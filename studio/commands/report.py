"""`studio report`: all about one run in one file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from engines.core.errors import ConfigError
from studio.commands import AsObject, Run, open_workspace
from studio.report.tables import print_json


def report(
    context: typer.Context,
    run: Run,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with charts to this file.")
    ] = None,
    md: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write Markdown to this file.")
    ] = None,
    json: AsObject = False,
) -> None:
    """Report on a run in one file. Alone it prints Markdown.

    It tells what practice brought, each lesson with its evidence, decisions, cost and losses.
    The page needs no network and no script.

    Examples:
        studio report rehearsal
        studio report rehearsal --html report.html
    """
    from engines.record.appender import write_atomic
    from studio.report.page.html import render_html
    from studio.report.page.markdown import render_markdown
    from studio.run_report.facts import report_facts
    from studio.run_report.sections import report_page
    from studio.secrets.output import MaskedText, remember
    from studio.secrets.rules import run_file_secrets
    from studio.secrets.sanitize import sanitize
    from studio.session.client import is_alive

    if sum(map(bool, (html, md, json))) > 1:
        raise ConfigError("--html, --md, --json", "each is a form of its own.", "Give one of them.")
    workspace = open_workspace(context)
    folder = workspace.run(run)
    remember(run_file_secrets(folder.run_file))
    facts = report_facts(folder, workspace, alive=is_alive(folder))
    if json:
        print_json(facts)
        return
    page = report_page(facts)
    text = render_html(page) if html else render_markdown(page)
    if target := html or md:
        write_atomic(target.expanduser(), text.encode())
        print(sanitize(f"report of run {run}: {target}"), file=sys.stderr)
    else:
        sys.stdout.write(MaskedText(text))
