"""`studio library`, `diff` and `query`: what was learned, and what was proposed and decided.

Libraries are shown, changed by hand, labelled, served, exported and imported.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from engines.core.errors import ConfigError, ConflictError
from studio import exit_codes
from studio.commands import (
    AsJson,
    AsObject,
    DryRun,
    TokenEnv,
    TokenFile,
    argument,
    choose_form,
    flag,
    open_workspace,
    option,
    require_mcp,
)
from studio.process import login_name
from studio.render.json import print_json, print_result
from studio.render.lines import tell_next, to_stderr
from studio.secrets.sanitize import sanitize

if TYPE_CHECKING:
    from engines.core.library import Library
    from engines.core.types import Operation, Problem
    from engines.record.run_dir import Workspace
    from studio.facts.library import FoundVersion


app = typer.Typer(no_args_is_help=True)


@app.callback()
def library() -> None:
    """Show what was learned, and change it by hand. Alone it lists the libraries.

    Examples:
        studio library
        studio library show rehearsal
    """


Name = Annotated[str, argument("LIBRARY", "Name of a library.")]


@app.command("list")
def list_libraries(context: typer.Context, json: AsJson = False) -> None:
    """List the libraries of the workspace.

    Examples:
        studio library list
        studio library list --json
    """
    from studio.facts.library import listed_library
    from studio.render.library_lines import list_lines

    listed = [listed_library(folder) for folder in open_workspace(context).libraries()]
    if json:
        print_json(listed)
        return
    if not listed:
        to_stderr(f"no library in {sanitize(str(context.obj))} yet")
        tell_next("studio headless rehearsal", context.obj)
        return
    print("\n".join(list_lines(listed)))
    first = max(listed, key=lambda facts: bool(facts.experiences))  # an empty one shows nothing
    tell_next(f"studio library show {quote(first.library)}", context.obj)


@app.command()
def show(
    context: typer.Context,
    reference: Annotated[
        str,
        argument(
            "NAME[@V]", "A library, or a version by number or label; also RUN@epoch:N or a file."
        ),
    ],
    json: AsJson = False,
) -> None:
    """Show one version: its experiences and where each comes from.

    Examples:
        studio library show rehearsal
        studio library show rehearsal@1 --json
    """
    from studio.facts.library import version_facts
    from studio.library.references import find_version
    from studio.render.library_lines import library_lines

    version = find_version(reference, open_workspace(context))
    library = version.library
    lines = library_lines(library, version.labels, version.copied_from)
    print_result(version_facts(version), "\n".join(lines), json=json)
    if not json and (context.obj / "libraries" / library.name).is_dir():
        tell_next(f"studio library history {quote(library.name)}", context.obj)


@app.command()
def history(
    context: typer.Context,
    name: Name,
    experience: Annotated[str | None, argument("ID", "Only what concerns this experience.")] = None,
    json: AsJson = False,
) -> None:
    """Show every commit, with operations, evidence and who decided.

    Examples:
        studio library history rehearsal
        studio library history rehearsal E1
    """
    from studio.facts.library import history_facts
    from studio.library.references import library_folder
    from studio.render.library_lines import history_lines

    folder = library_folder(name, open_workspace(context))
    entries = history_facts(folder, experience)
    lines = history_lines(entries, rejections=experience is None)
    print_result(entries, "\n".join(lines or ["nothing"]), json=json)


@app.command()
def edit(
    context: typer.Context,
    name: Name,
    experience: Annotated[
        str | None, argument("ID", "The experience to change; none with --add.")
    ] = None,
    text: Annotated[
        str | None,
        option("TEXT", "Its new wording. Default: $EDITOR asks for it."),
    ] = None,
    delete: Annotated[bool, flag("Delete the experience.", "--delete")] = False,
    add: Annotated[str | None, option("TEXT", "Add an experience of this wording.")] = None,
    reason: Annotated[str, option("TEXT", "Why; it is recorded with the decision.")] = "",
) -> None:
    """Change, add or delete one experience. It is recorded as a decided operation.

    Examples:
        studio library edit rehearsal E1 --text "Check every carry."
        studio library edit rehearsal --add "Check the units." --reason "seen in class"
        studio library edit rehearsal E2 --delete
    """
    from studio.facts.next_command import command_after_version
    from studio.library import curation, references
    from studio.review.editor import edit_text

    workspace = open_workspace(context, masks=True)
    head = references.library_folder(name, workspace).head()
    change = curation.requested_change(
        head, experience, text=text, delete=delete, add=add, edit=edit_text
    )
    if change is None:
        print(f"library {name}: nothing was changed")
        return
    done = curation.commit_changes(
        workspace, name, lambda _: [change], person=login_name(), reason=reason
    )
    print(f"library {name} is at v{done.version}")
    tell_next(command_after_version(name, done.version), context.obj)


@app.command()
def utility(
    context: typer.Context,
    reference: Annotated[str, argument("NAME[@V]", "A library.")],
    run: Annotated[
        str | None,
        option("RUNFILE|RUN", "Whose settings hold. Default: the library's."),
    ] = None,
    rollouts: Annotated[
        int | None, typer.Option(min=8, max=10**7, help="Tries at most. Default: 1024.")
    ] = None,
    problems: Annotated[
        str | None, option("DATA", "Problems to try. Default: those practised.")
    ] = None,
    k: Annotated[
        int | None, typer.Option(min=2, max=4096, help="Tries of each. Default: all alike.")
    ] = None,
    from_practice: Annotated[
        bool, flag("Only what practice with dropout tells.", "--from-practice")
    ] = False,
    offer: Annotated[bool, flag("Ask a reviewer to delete what can go.", "--offer")] = False,
    dry_run: DryRun = False,
    json: AsObject = False,
) -> int:
    """Measure what every experience is worth.

    Each try carries a random half of them, so that all are told at once. What practice with
    `practice.dropout` has shown is told for free where no try is asked for.

    Examples:
        studio library utility rehearsal --dry-run
        studio library utility rehearsal --rollouts 256 --offer
    """
    from studio.evaluation import effects

    asked = dry_run or any(value is not None for value in (run, rollouts, problems, k))
    if from_practice and asked:
        raise ConfigError("--from-practice", "it makes no tries.", "Leave out what is about tries.")
    workspace = open_workspace(context, masks=True)
    priced = effects.find_priced(reference, workspace)
    found = None if asked else effects.read_practice(priced, workspace)
    if from_practice and found is None:
        raise ConflictError(
            f"library {reference}",
            "no practice of it left experiences out.",
            "Practise with practice.dropout=0.1.",
        )
    if found is None:
        most, of = rollouts or effects.ROLLOUTS, {"run": run, "problems": problems}
        plan = effects.plan_utility(priced, workspace, **of, rollouts=most, k=k, keyless=dry_run)
        made = effects.measure_utility(priced, *plan, json=json, dry_run=dry_run)
        if isinstance(made, int):
            return made
        found = made
    return effects.print_utility(found, workspace, offer=offer, json=json)


Experience = Annotated[str, argument("ID", "The experience, such as E3.")]
Reason = Annotated[str, typer.Option(help="Why; recorded with the decision.")]


@app.command()
def pin(context: typer.Context, name: Name, experience: Experience, reason: Reason = "") -> None:
    """Pin an experience. Nothing may change or delete it until it is unpinned.

    Examples:
        studio library pin rehearsal E1 --reason "It is right as it is."
    """
    _set_pin(context, name, experience, "pin", reason)


@app.command()
def unpin(context: typer.Context, name: Name, experience: Experience, reason: Reason = "") -> None:
    """Unpin an experience. It may be changed and deleted again.

    Examples:
        studio library unpin rehearsal E1
    """
    _set_pin(context, name, experience, "unpin", reason)


def _set_pin(
    context: typer.Context, name: str, experience: str, kind: Literal["pin", "unpin"], reason: str
) -> None:
    from studio.library import curation, references

    workspace = open_workspace(context, masks=True)
    references.library_folder(name, workspace)  # it names the libraries there are
    change = (kind, experience, "")
    done = curation.commit_changes(
        workspace, name, lambda _: [change], person=login_name(), reason=reason
    )
    print(f"library {name} is at v{done.version}: {experience} is {kind}ned")


@app.command()
def revert(
    context: typer.Context,
    reference: Annotated[str, argument("NAME@V|NAME@LABEL", "The version to return to.")],
    reason: Annotated[str, option("TEXT", "Why; it is recorded with the decisions.")] = "",
) -> None:
    """Make a new version with the texts of an older one. Nothing is lost.

    Examples:
        studio library revert rehearsal@1
        studio library revert rehearsal@0 --reason "start again"
    """
    from engines.pipeline.gate.draft import revert_changes
    from studio.facts.next_command import command_after_version
    from studio.library import curation, references

    if "@" not in reference:
        raise ConflictError(
            reference, "it is not NAME@V or NAME@LABEL.", "See `studio library history NAME`."
        )
    workspace = open_workspace(context, masks=True)
    folder, read_version = references.follow_version(reference, workspace)
    older, name = read_version(), folder.name
    why = reason or f"back to v{older.version}"
    done = curation.commit_changes(
        workspace, name, revert_changes(older), person=login_name(), reason=why
    )
    print(f"library {name} is at v{done.version}, with the texts of v{older.version}")
    tell_next(command_after_version(name, done.version), context.obj)


@app.command()
def label(
    context: typer.Context,
    reference: Annotated[str, argument("NAME[@V]", "A version of a library. Default: its head.")],
    label: Annotated[str, argument("LABEL", "What it is called from now on.")],
    reason: Annotated[str, option("TEXT", "Why; it is recorded.")] = "",
    remove: Annotated[bool, flag("Take the label away.", "--remove")] = False,
) -> None:
    """Call a version by a label. NAME@LABEL then names it wherever a version is named.

    Examples:
        studio library label rehearsal@1 production --reason "62 % on AIME24"
        studio library label rehearsal@production stable
        studio library label rehearsal stable --remove
    """
    from studio.library.labels import set_label

    workspace = open_workspace(context, masks=True)
    print(set_label(workspace, reference, label, person=login_name(), reason=reason, remove=remove))


_SERVED = "A library: NAME follows its commits, NAME@LABEL its label, NAME@V stays."
_HTTP = "Listen here, not on stdio; an address that others can reach needs a token."


@app.command()
def serve(
    context: typer.Context,
    reference: Annotated[str, argument("NAME[@V]", _SERVED)],
    http: Annotated[str | None, option("HOST:PORT", _HTTP)] = None,
    token_file: TokenFile = None,
    token_env: TokenEnv = None,
    json: AsObject = False,
) -> int:
    """Serve a library to agents by MCP, as a skill and a prompt. They are told when it changes.

    Examples:
        studio library serve rehearsal@production
        studio library serve rehearsal --http 127.0.0.1:8313
        studio library serve rehearsal --http 0.0.0.0:8313 --token-env MY_TOKEN
    """
    import asyncio

    from studio.process import serve_until_signal
    from studio.serving import enhanced_agent

    if http is None and (token_file or token_env or json):
        raise ConfigError(
            "--token-file, --token-env, --json",
            "they are for --http, and this serves on stdio.",
            "Add --http HOST:PORT.",
        )
    host, _, port = (http or ":0").rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port[:9]) > 65535:
        raise ConfigError(f"--http {http}", "it is not HOST:PORT.", "Write 127.0.0.1:8313, say.")
    token = enhanced_agent.read_token(host, token_file, token_env, os.environ, "library")
    require_mcp()
    from studio.serving import library_mcp

    service = library_mcp.LibraryService(reference, open_workspace(context, masks=True))
    served = service.served
    library, described = served.library, f"{sanitize(reference)} as {served.uri}"
    told = f"serving {described}: v{library.version}, experiences {len(library.experiences)}"
    if http is None:
        to_stderr(f"{told}\non stdio; Ctrl-C, or the end of the input, ends it")
        asyncio.run(library_mcp.serve_stdio(service.server))
        return exit_codes.DONE

    def print_ready(url: str) -> None:
        print_result({"url": url, "skill": served.uri}, url, json=json)
        sys.stdout.flush()
        to_stderr(f"{told}\nCtrl-C ends it")

    serving = library_mcp.serve_http(service.server, host, int(port), token, f"--http {http}")
    asyncio.run(serve_until_signal(serving, print_ready))
    return exit_codes.INTERRUPTED


_Formats = Literal["youtu", "skill", "agents", "prompt", "ace", "kayba", "dspy", "gepa", "json"]


@app.command()
def export(
    context: typer.Context,
    reference: Annotated[str, argument("NAME[@V]", "A library, or a file.")],
    format: Annotated[_Formats, flag("Whose file it becomes.", "--format")],
    to: Annotated[Path, option("PATH", "A file; of a skill its folder.", "--to")],
    force: Annotated[bool, flag("Overwrite other content.", "--force")] = False,
    evals: Annotated[int, option("N", "Problems for a skill.", min=0)] = 0,
    json: AsObject = False,
) -> None:
    """Write a library as a file of another program.

    What was measured of it goes along; what the format cannot hold is named.

    Examples:
        studio library export rehearsal --format agents --to AGENTS.md
        studio library export rehearsal@1 --format skill --to skills/sums --evals 5
    """
    from engines.record.formats.table import write_foreign
    from studio.library.card import evaluation_card
    from studio.library.references import find_version

    if str(to) == "-":
        raise ConfigError("--to -", "an export is a file, or a folder.", "Name one; ./- is a name.")
    workspace = open_workspace(context, masks=True)
    found = find_version(reference, workspace)
    card = evaluation_card(found, workspace)
    if evals:
        if format != "skill":
            raise ConfigError(
                "--evals",
                "only a skill takes problems along.",
                "Leave it out, or write --format skill.",
            )
        card = replace(card, evals=_held_out_problems(found, workspace, evals))
        if len(card.evals) < evals:
            to_stderr(f"--evals {evals}: there are {len(card.evals)} held out")
    files, losses = write_foreign(card, format, to.expanduser().absolute(), workspace, force=force)
    for loss in losses:
        to_stderr(f"left out: {sanitize(loss)}")
    data = {"format": format, "files": [str(f) for f in files], "losses": losses}
    text = "\n".join(sanitize(str(file)) for file in files)
    print_result({**data, "evaluation": card.data()}, text, json=json)


def _held_out_problems(
    found: "FoundVersion", workspace: "Workspace", n: int
) -> "tuple[Problem, ...]":
    """Of the newest run that made the library, as its data is now."""
    from studio.config.loading import load_run
    from studio.library.card import practised_runs
    from studio.run.held_out import held_out_sets

    problems, mask = [], workspace.mask
    for run in practised_runs(found, workspace)[-1:]:
        loaded = load_run(str(run.run_file), [], workspace.path, keyless=True)
        problems = [p for one in held_out_sets(loaded) for p in one.problems][:n]
    if not problems:
        raise ConfigError(
            "--evals", "no run that made this library has held-out problems.", "Leave it out."
        )
    return tuple(
        replace(p, question=mask(p.question), answer=p.answer and mask(p.answer)) for p in problems
    )


Into = Annotated[
    str | None,
    option("NAME", "The library to review for; one that is not there begins."),
]
OnlyLook = Annotated[bool, flag("Only say what would be asked.", "--dry-run")]
_VERSION = "NAME@V, RUN@step:N, or our own YAML or JSON file of one."


@app.command()
def merge(
    context: typer.Context,
    base: Annotated[str, argument("BASE", _VERSION)],
    ours: Annotated[str, argument("OURS", _VERSION)],
    theirs: Annotated[str, argument("THEIRS", _VERSION)],
    into: Into = None,
    dry_run: OnlyLook = False,
    json: AsObject = False,
) -> int:
    """Review what THEIRS changed since BASE. Nothing of OURS is lost.

    OURS is the head of a library, which the operations are for. What both changed differently is
    flagged `conflict`. Files are ours: YAML, or `export --format json`. With --into NAME a library
    begins as a copy of OURS, a file, say.

    Examples:
        studio library merge rehearsal@0 rehearsal theirs.yaml --dry-run
    """
    from studio.library import curation, references

    workspace = open_workspace(context, masks=True)
    old, mine, other = (references.find_version(name, workspace) for name in (base, ours, theirs))
    target = curation.merge_target(workspace, mine, into, begin=not dry_run)
    wanted = curation.merge_operations(old.library, mine.library, other.library, other.label)
    about = f"merge of {theirs} since {base}"
    return _put_up(workspace, target, wanted, about, dry_run=dry_run, json=json)


@app.command("import")
def import_file(
    context: typer.Context,
    file: Annotated[Path, argument("FILE", "A file, or a skill's folder.")],
    format: Annotated[str | None, option("F", "What it is. Default: what it looks like.")] = None,
    into: Into = None,
    reason: Annotated[str, option("TEXT", "Why; it goes into every rationale.")] = "",
    dry_run: OnlyLook = False,
    json: AsObject = False,
) -> int:
    """Review what a file of another program, or of ours, holds. Nothing is changed before.

    Without --into it is for the library that the file names, as exports of ours do, else for that
    of the file's own name. What the format holds and a library does not is told, with exit code 4.

    Examples:
        studio library import playbook.txt --into rehearsal --dry-run
        studio library import skillbook.json --format kayba --into shared --reason "from the lab"
    """
    from engines.record.formats.table import read_foreign
    from studio.library.curation import import_operations, target_library, version_of
    from studio.render.words import count_text

    read, workspace = read_foreign(file.expanduser(), format), open_workspace(context, masks=True)
    if format is None:
        held = count_text(len(read.entries), "experience")
        to_stderr(f"read as {read.format}: {held}; --format names another")
    target = target_library(workspace, read.name if into is None else into, begin=not dry_run)
    base = version_of(workspace, target.name, read.exported and read.exported[1])
    found = import_operations(read, target, base, str(file), reason, workspace.mask)
    # With nothing new in a copy of a version that is here, its uses and effects are here, too.
    is_copy = read.format == "json" and base is not None and not found.operations
    told = (f"{name} is pinned, so its other wording is left out" for name in found.pinned)
    return _put_up(
        workspace,
        target,
        found.operations,
        f"import of {file}",
        already=found.already,
        losses=[*(() if is_copy else read.losses), *told],
        dry_run=dry_run,
        json=json,
        format=read.format,
    )


def _put_up(
    workspace: "Workspace",
    target: "Library",
    operations: "Sequence[Operation]",
    about: str,
    *,
    dry_run: bool,
    json: bool,
    already: int = 0,
    losses: Sequence[str] = (),
    format: str = "",
) -> int:
    """Open a curation run, and print what waits in it."""
    from studio.library.curation import open_curation
    from studio.render.library_lines import curation_lines
    from studio.run.held_out import LazyLinter

    linter_of = None if dry_run else partial(LazyLinter, workspace, tell=to_stderr)
    opened = open_curation(
        workspace, target, operations, about, person=login_name(), linter_of=linter_of
    )
    facts = replace(opened, already=already, losses=tuple(losses), format=format)
    print_result(facts, "\n".join(curation_lines(facts)), json=json)
    for loss in facts.losses:
        to_stderr(f"lost: {loss}")
    if waits := facts.run or next(iter(facts.waiting), None):
        tell_next(f"studio review {quote(waits)}", workspace.path)
    return exit_codes.WITH_LOSSES if facts.losses else exit_codes.DONE


def diff(
    context: typer.Context,
    a: Annotated[
        str,
        argument("A", "The older one: NAME@V, RUN@epoch:N, RUN@step:N or a FILE."),
    ],
    b: Annotated[str, argument("B", "The newer one, named in the same way.")],
    format: Annotated[
        Literal["text", "json", "html"] | None,
        option("text|json|html", "How to print the comparison.", show_default="text"),
    ] = None,
    json: Annotated[bool, flag("Print JSON, as --format json does.", "--json")] = False,
) -> None:
    """Compare two versions of what was learned.

    Examples:
        studio diff rehearsal@0 rehearsal@1
        studio diff rehearsal@epoch:0 rehearsal@epoch:1 --json
    """
    from studio.facts.library import difference
    from studio.library.references import find_version
    from studio.render import comparison_page, page
    from studio.render.library_lines import COLOURS, difference_lines

    form = choose_form(json, format)
    workspace = open_workspace(context)
    older, newer = find_version(a, workspace), find_version(b, workspace)
    facts = difference(older, newer)
    if form != "text":
        page.print_facts(facts, comparison_page.difference_page(facts), form)
        return
    for line in difference_lines(facts):
        typer.secho(line, fg=COLOURS.get(line[0]))  # it only repeats what its sign says
    name = newer.library.name
    if any(folder.name == name for folder in workspace.libraries()):
        tell_next(f"studio library history {quote(name)}", context.obj)


Kind = Literal["operation", "experience", "rejection", "version", "evaluation"]


def query(
    context: typer.Context,
    text: Annotated[list[str] | None, argument("TEXT", "Words that all stand in it.")] = None,
    id: Annotated[str | None, option("ID", "About E7, op3.1, NAME@7|LABEL or s3p0r1.")] = None,
    reviewer: Annotated[str | None, option("NAME", "Decided by this person or rules.")] = None,
    problem: Annotated[str | None, option("ID", "Drawn from or measured on this problem.")] = None,
    run: Annotated[str | None, option("RUN", "Of this run.")] = None,
    library: Annotated[str | None, option("NAME", "Of this library.")] = None,
    effect: Annotated[str | None, option('helps|hurts|">0.05"', "Its measured worth.")] = None,
    since: Annotated[str | None, option("DATE|7d", "Not before this.")] = None,
    until: Annotated[str | None, option("DATE|7d", "Not after this; a day is whole.")] = None,
    kind: Annotated[Kind | None, option("|".join(get_args(Kind)), "Only these.")] = None,
    limit: Annotated[int, option("N", "Hits at most.", min=1)] = 20,
    json: AsJson = False,
) -> None:
    """Find what was proposed, decided and learned, newest first.

    Examples:
        studio query carry
        studio query --id E1 --library rehearsal
        studio query --kind rejection --since 7d
        studio query --effect ">0.05" --json
    """
    from engines.record.derived.catalogue import condition, find_rows
    from studio.library import find, references

    workspace = open_workspace(context)
    if id and "@" in id and not id.rpartition("@")[2].isdecimal():
        folder, read_version = references.follow_version(id, workspace)
        id = f"{folder.name}@{read_version().version}"
    verdict, compare = find.parse_effect(effect)
    times = find.parse_times(since, until)
    asked = (" ".join(text or ()).split(), kind, id, problem, compare, *times)
    fits = condition(*asked, reviewer=reviewer, run=run, library=library, verdict=verdict)
    rows, errors = find_rows(workspace, fits)
    if not rows and run is not None:
        workspace.run(run)  # says which there are
    if not rows and library is not None:
        references.library_folder(library, workspace).versions()
    if json:
        print_json([find.hit_data(row, workspace) for row in rows[:limit]])
    for row in () if json else rows[:limit]:
        print("\n".join(find.hit_lines(row, workspace)))
    told = [f"left out: {error}" for error in errors]
    if not rows:
        told.append(f"nothing fits in workspace {context.obj}")
    elif len(rows) > limit:
        told.append(f"{len(rows) - limit} more: --limit {len(rows)}")
    for line in told:
        to_stderr(line)
