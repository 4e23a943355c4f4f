"""`studio data`: the problems one can practise on."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated, Literal, get_args

import typer

from studio import exit_codes
from studio.commands import AsJson, ask_line, open_workspace
from studio.render.json import print_json, print_result
from studio.render.lines import table, tell_next
from studio.secrets.sanitize import sanitize

SessionFormat = Literal["claude", "codex", "opencode", "atif", "inspect", "otel"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def data() -> None:
    """List, add, preview and check data sets. Alone it lists them.

    Examples:
        studio data
        studio data add my-problems.jsonl
    """


Name = Annotated[
    str, typer.Argument(metavar="NAME[:SPLIT]", help="A path, or a name as run files have it.")
]
Question = Annotated[
    str | None,
    typer.Option(metavar="FIELD", help="Name of the field with the question. Default: question."),
]
Answer = Annotated[
    str | None,
    typer.Option(metavar="FIELD", help="Name of the field with the answer. Default: answer."),
]


FromPath = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="PATH",
        help="Its file, or a folder that has NAME.jsonl, NAME.parquet, NAME/ or the hub's "
        "OWNER/SET/ for each set; else it is fetched.",
    ),
]


@app.command("list")
def list_data(context: typer.Context, json: AsJson = False) -> None:
    """List the data sets of the workspace and the bundled ones.

    Examples:
        studio data list
        studio data list --json
    """
    from studio.data.catalogue import bundled_folder, listed_data

    found = listed_data(open_workspace(context))
    rows = [(e.name, "-" if e.n is None else str(e.n), e.where, e.path) for e in found]
    text = table(("NAME", "N", "FROM", "PATH"), rows)
    print_result([asdict(entry) for entry in found], text, json=json)
    for entry in found:
        # Ours are as they should be, also those that one of the workspace hides.
        if entry.trouble and not Path(entry.path).is_relative_to(bundled_folder()):
            print(f"note: {entry.trouble}", file=sys.stderr)
    if not json:
        tell_next(f"studio data check {quote(found[0].name)}", context.obj)


@app.command()
def add(
    context: typer.Context,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A file of JSONL, a JSON array, CSV or Parquet; a Hugging Face folder or "
            "FOLDER:SPLIT.",
        ),
    ],
    name: Annotated[str | None, typer.Option(help="What to call it. Default: as the file.")] = None,
    question: Question = None,
    answer: Answer = None,
    as_chat: Annotated[
        bool, typer.Option("--as-chat", help="Rows are talks: OpenAI messages or ShareGPT.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Check data and copy it into the workspace as JSONL.

    Examples:
        studio data add my-problems.jsonl
        studio data add talks.jsonl --as-chat
        studio data add exam.csv --name exam --question prompt --answer solution
    """
    from studio.data.catalogue import add_data, add_talks, field_names
    from studio.data.text import line_sets_text
    from studio.render.words import count_text

    fields = field_names(question, answer)
    add_file = add_talks if as_chat else add_data
    added = add_file(open_workspace(context), file, name, fields)
    if json:
        rows = [{"name": a.name, "path": str(a.path), "n": a.n, "new": a.new} for a in added]
        print_json(rows[0] if len(rows) == 1 else rows)
    for one in added:
        path = sanitize(str(one.path))
        if one.new and not json:
            print(f"{one.name}: {count_text(one.n, 'problem')} added as {path}")
        elif not json:
            print(f"{one.name}: nothing changed, {path} has this content already")
        if one.without_answer:
            lack = f"{one.name}: {one.without_answer} of {one.n} have no answer"
            print(f"note: {lack}: the math and text verifiers refuse those", file=sys.stderr)
        if one.with_tools:
            n = count_text(one.with_tools, "row")
            print(f"note: {one.name}: {n} with calls of tools left out", file=sys.stderr)
        if one.contradictory:
            which = line_sets_text(one.contradictory, one.unit)
            print(f"note: {one.name}: questions with different answers: {which}", file=sys.stderr)
        if one.hides_bundled:
            print(f"note: it hides the bundled data set {one.name}", file=sys.stderr)
    if fields:
        print("note: in the copy the fields are called question and answer", file=sys.stderr)
    if not json:
        tell_next(f"studio data preview {quote(added[0].name)}", context.obj)


@app.command()
def prepare(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA[:SPLIT][+DATA …]",
            help="A public data set, as `studio guide data` lists them; several are joined and "
            "shuffled. `planner-182k` is nq+deepmath-103k, with aime24 as its validation set.",
        ),
    ],
    from_path: FromPath = None,
    name: Annotated[str | None, typer.Option(help="What to call it. Default: as the data.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many rows.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the shuffling.")] = 42,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Shuffle a single set, too.")] = False,
    levels: Annotated[
        str | None,
        typer.Option(
            metavar="E:M:H", help="Easy, medium and hard of webwalkerqa in just this ratio."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be written; nothing is written.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Bring a public data set into the workspace as Parquet, cleaned.

    Examples:
        studio data prepare aime24 --dry-run
        studio data prepare planner-182k --from downloads
        studio data prepare webwalkerqa --from downloads --levels 4:7:6 --limit 51
    """
    from studio.data.catalogue import bundled_folder
    from studio.data.prepare import Wanted, parse_levels
    from studio.data.prepare import prepare as prepare_data
    from studio.data.text import prepared_data, prepared_text

    ratio = parse_levels(levels) if levels else None
    wanted = Wanted(data, from_path, name, limit, seed, shuffle, ratio)
    found = prepare_data(open_workspace(context), wanted, dry_run=dry_run)
    rows = [prepared_data(one, dry_run) for one in found]
    print_result(rows, "\n".join(prepared_text(one, dry_run) for one in found), json=json)
    for one in found:
        if (bundled_folder() / f"{one.name}.jsonl").is_file():
            print(f"note: it hides the bundled data set {one.name}", file=sys.stderr)
        if one.twins:
            same = f"{one.name} has the same rows as {', '.join(one.twins)}"
            print(f"note: {same}: do not practise on one and evaluate on another", file=sys.stderr)
    if not json and not dry_run:
        tell_next(f"studio data preview {quote(found[0].name)}", context.obj)


@app.command()
def preview(
    context: typer.Context,
    name: Name,
    n: Annotated[int, typer.Option("-n", min=1, help="How many problems to show.")] = 5,
    question: Question = None,
    answer: Answer = None,
    json: AsJson = False,
) -> None:
    """Show the first problems as practice would meet them.

    Examples:
        studio data preview arithmetic
        studio data preview my-problems.jsonl -n 2
    """
    from engines.data.dataset import read_numbered_problems
    from engines.data.rows import open_table
    from studio.data.catalogue import field_names, find_data
    from studio.data.text import preview_text, problem_data

    source = find_data(name, open_workspace(context))
    fields = field_names(question, answer)
    shown = read_numbered_problems(source, fields=fields, needs_answer=False, limit=n)
    rows = [problem_data(line, problem) for line, problem in shown]
    print_result(rows, preview_text(shown, open_table(source).unit), json=json)
    if not json:
        tell_next(f"studio data check {quote(name)}", context.obj)


@app.command()
def check(
    context: typer.Context,
    name: Name,
    question: Question = None,
    answer: Answer = None,
    json: AsJson = False,
) -> None:
    """Look for usual mistakes in a data set.

    The exit code is 2 where no row has an answer.

    Examples:
        studio data check arithmetic
        studio data check my-problems.jsonl --json
    """
    from engines.core.errors import DataError
    from engines.data.dataset import check_dataset
    from studio.data.catalogue import field_names, find_data
    from studio.data.text import report_data, report_text

    source = find_data(name, open_workspace(context))
    report = check_dataset(source, fields=field_names(question, answer))
    about = source.stem, str(source), report
    print_result(report_data(*about), report_text(*about), json=json)
    if 0 < report.n == len(report.without_answer) and not report.tries:
        move = "Name the field that holds it: --answer NAME; without any, practise with "
        move += "practice.given_ground_truth=false."
        raise DataError(str(source), "No row has an answer.", move)
    if not json:
        after = f"studio headless rehearsal --name {quote(name)} data.practice={quote(name)}"
        if report.tries and source.path.parent == open_workspace(context).datasets:
            after = f"studio data review {quote(source.stem)}"
        elif report.tries:
            after = f"studio data add {quote(name)}"
        tell_next(after, context.obj)


@app.command()
def verifiers(context: typer.Context, json: AsJson = False) -> None:
    """List the verifiers. They are built in, in the workspace's verifiers/, or shipped.

    Examples:
        studio data verifiers
        studio data verifiers --json
    """
    from studio.data.verifiers import listed_verifiers

    found = listed_verifiers(open_workspace(context))
    headings = ("NAME", "KIND", "FUNCTION", "FROM", "ABOUT")
    rows = [
        (e.listed_name, e.kind or "-", e.function or "-", e.where, e.about or "-") for e in found
    ]
    print_result([asdict(entry) for entry in found], table(headings, rows, fold=4), json=json)
    for entry in found:
        if entry.trouble:
            print(f"note: {entry.trouble}", file=sys.stderr)


@app.command("import")
def import_(
    context: typer.Context,
    format: Annotated[
        SessionFormat,
        typer.Argument(metavar="FORMAT", help=f"One of {', '.join(get_args(SessionFormat))}."),
    ],
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A file, or a folder: all sessions below it.")
    ],
    name: Annotated[
        str | None, typer.Option(help="What to call the data set. Default: FORMAT-sessions.")
    ] = None,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Mask home folders and e-mail addresses too.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what it would come to; nothing is written.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Make problems of recorded sessions.

    Secrets are taken out. Each is to be reviewed before any model may see it.

    Examples:
        studio data import claude my-session.jsonl --name sessions
        studio data import claude my-session.jsonl --dry-run
    """
    from studio.data.sessions import import_sessions, import_text

    done = import_sessions(
        open_workspace(context, masks=True),
        format,
        path.expanduser(),
        name,
        dry_run=dry_run,
        anonymous=anonymous,
    )
    print_result(done, import_text(done, dry_run=dry_run), json=json)
    if not json and not dry_run:
        tell_next(f"studio data review {quote(done['name'])}", context.obj)


@app.command()
def review(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set of the workspace.")],
    yes: Annotated[bool, typer.Option("--yes", help="Mark all that wait, without asking.")] = False,
    marks: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='Decisions: items of --json, "reviewed" true or "out".'),
    ] = None,
    json: AsJson = False,
) -> int:
    """Mark the imported items that models may see.

    The exit code is 3 where the answers end before the items do.

    Examples:
        studio data review sessions
        studio data review sessions --json
    """
    from engines.data.checks import content_hash, is_unreviewed
    from studio.data.item_review import item_data, replay_text, review_items
    from studio.data.sessions import change_items, find_items, mark, read_items, read_marks
    from studio.render.words import count_text
    from studio.review.editor import edit_text

    workspace = open_workspace(context, masks=True)
    target = find_items(workspace, name)
    changes = read_marks(marks) if marks is not None else {}
    if yes:
        changes |= {content_hash(row): mark for row in read_items(target) if is_unreviewed(row)}
    if changes and (stale := len(changes) - change_items(workspace, target, changes)):
        gone = f"{count_text(stale, 'decision')} for items that are not there now"
        print(f"note: {gone}", file=sys.stderr)
    rows = read_items(target)
    if json:
        print_json([item_data(number, row) for number, row in enumerate(rows, start=1)])
        return exit_codes.DONE
    ended = False
    if not yes and marks is None:
        say = partial(print, flush=True)
        ended = not review_items(workspace, target, ask_line, say, edit_text)
        rows = read_items(target)
    left = sum(map(is_unreviewed, rows))
    print(f"{name}: {len(rows) - left} of {count_text(len(rows), 'item')} may be used")
    if not left and (told := replay_text(name, rows)):
        for note in told[1:]:
            print(f"note: {note}", file=sys.stderr)
        tell_next(told[0], context.obj)
    return exit_codes.OPERATIONS_OPEN if ended and left else exit_codes.DONE
