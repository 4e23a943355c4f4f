"""`studio data`: the problems one can practise on."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated, Literal, get_args

import typer

from studio import exit_codes
from studio.commands import AsJson, argument, ask_line, flag, open_workspace, option
from studio.render.json import print_json, print_result
from studio.render.lines import table, tell_next, to_stderr

SessionFormat = Literal["claude", "codex", "opencode", "atif", "inspect", "otel"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def data() -> None:
    """List, add, preview and check data sets. Alone it lists them.

    Examples:
        studio data
        studio data add my-problems.jsonl
    """


Name = Annotated[str, argument("NAME[:SPLIT]", "A path, or a name as run files have it.")]
Question = Annotated[
    str | None,
    option("FIELD", "Name of the field with the question. Default: question."),
]
Answer = Annotated[
    str | None,
    option("FIELD", "Name of the field with the answer. Default: answer."),
]


FromPath = Annotated[
    str | None,
    option(
        "PATH",
        "Its file, or a folder that has NAME.jsonl, NAME.parquet, NAME/ or the hub's "
        "OWNER/SET/ for each set; else it is fetched.",
        "--from",
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
    from studio.render.data_lines import data_table

    listed = listed_data(open_workspace(context))
    print_result(listed, data_table(listed), json=json)
    for entry in listed:
        # Ours are as they should be, also those that one of the workspace hides.
        if entry.trouble and not Path(entry.path).is_relative_to(bundled_folder()):
            to_stderr(f"note: {entry.trouble}")
    if not json:
        tell_next(f"studio data check {quote(listed[0].name)}", context.obj)


@app.command()
def add(
    context: typer.Context,
    file: Annotated[
        str,
        argument(
            "FILE",
            "A file of JSONL, a JSON array, CSV or Parquet; a Hugging Face folder or FOLDER:SPLIT.",
        ),
    ],
    name: Annotated[str | None, typer.Option(help="What to call it. Default: as the file.")] = None,
    question: Question = None,
    answer: Answer = None,
    as_chat: Annotated[
        bool, flag("Rows are talks: OpenAI messages or ShareGPT.", "--as-chat")
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
    from studio.render.data_lines import added_notes, added_text

    fields = field_names(question, answer)
    add_file = add_talks if as_chat else add_data
    added = add_file(open_workspace(context), file, name, fields)
    text = "\n".join(map(added_text, added))
    print_result(added[0] if len(added) == 1 else added, text, json=json)
    for facts in added:
        for note in added_notes(facts):
            to_stderr(f"note: {note}")
    if fields:
        to_stderr("note: in the copy the fields are called question and answer")
    if not json:
        tell_next(f"studio data preview {quote(added[0].name)}", context.obj)


@app.command()
def prepare(
    context: typer.Context,
    data: Annotated[
        str,
        argument(
            "DATA[:SPLIT][+DATA …]",
            "A public data set, as `studio guide data` lists them; several are joined and "
            "shuffled. `planner-182k` is nq+deepmath-103k, with aime24 as its validation set.",
        ),
    ],
    from_path: FromPath = None,
    name: Annotated[str | None, typer.Option(help="What to call it. Default: as the data.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many rows.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the shuffling.")] = 42,
    shuffle: Annotated[bool, flag("Shuffle a single set, too.", "--shuffle")] = False,
    levels: Annotated[
        str | None,
        option("E:M:H", "Easy, medium and hard of webwalkerqa in just this ratio."),
    ] = None,
    dry_run: Annotated[
        bool, flag("Only tell what would be written; nothing is written.", "--dry-run")
    ] = False,
    json: AsJson = False,
) -> None:
    """Bring a public data set into the workspace as Parquet, cleaned.

    Examples:
        studio data prepare aime24 --dry-run
        studio data prepare planner-182k --from downloads
        studio data prepare webwalkerqa --from downloads --levels 4:7:6 --limit 51
    """
    from studio.data import prepare as preparing
    from studio.render.data_lines import prepared_notes, prepared_text

    ratio = preparing.parse_levels(levels) if levels else None
    wanted = preparing.Wanted(data, from_path, name, limit, seed, shuffle, ratio)
    prepared = preparing.prepare(open_workspace(context), wanted, dry_run=dry_run)
    print_result(prepared, "\n".join(map(prepared_text, prepared)), json=json)
    for facts in prepared:
        for note in prepared_notes(facts):
            to_stderr(f"note: {note}")
    if not json and not dry_run:
        tell_next(f"studio data preview {quote(prepared[0].name)}", context.obj)


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
    from studio.data.catalogue import field_names, preview_data
    from studio.render.data_lines import preview_text

    problems = preview_data(name, open_workspace(context), field_names(question, answer), limit=n)
    print_result(problems, preview_text(problems), json=json)
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
    from studio.data.catalogue import check_data, field_names
    from studio.render.data_lines import check_text

    facts, following = check_data(name, open_workspace(context), field_names(question, answer))
    print_result(facts, check_text(facts), json=json)
    if not following:
        move = "Name the field that holds it: --answer NAME; without any, practise with "
        move += "practice.given_ground_truth=false."
        raise DataError(facts.path, "No row has an answer.", move)
    if not json:
        tell_next(following, context.obj)


@app.command()
def verifiers(context: typer.Context, json: AsJson = False) -> None:
    """List the verifiers. They are built in, in the workspace's verifiers/, or shipped.

    Examples:
        studio data verifiers
        studio data verifiers --json
    """
    from studio.data.catalogue import listed_verifiers

    found = listed_verifiers(open_workspace(context))
    headings = ("NAME", "KIND", "FUNCTION", "FROM", "ABOUT")
    rows = [
        (e.listed_name, e.kind or "-", e.function or "-", e.where, e.about or "-") for e in found
    ]
    print_result([asdict(entry) for entry in found], table(headings, rows, fold=4), json=json)
    for entry in found:
        if entry.trouble:
            to_stderr(f"note: {entry.trouble}")


@app.command("import")
def import_(
    context: typer.Context,
    format: Annotated[
        SessionFormat,
        argument("FORMAT", f"One of {', '.join(get_args(SessionFormat))}."),
    ],
    path: Annotated[Path, argument("PATH", "A file, or a folder: all sessions below it.")],
    name: Annotated[
        str | None, typer.Option(help="What to call the data set. Default: FORMAT-sessions.")
    ] = None,
    anonymous: Annotated[
        bool, flag("Mask home folders and e-mail addresses too.", "--anonymous")
    ] = False,
    dry_run: Annotated[
        bool, flag("Only tell what it would come to; nothing is written.", "--dry-run")
    ] = False,
    json: AsJson = False,
) -> None:
    """Make problems of recorded sessions.

    Secrets are taken out. Each is to be reviewed before any model may see it.

    Examples:
        studio data import claude my-session.jsonl --name sessions
        studio data import claude my-session.jsonl --dry-run
    """
    from studio.data.sessions import import_sessions
    from studio.render.data_lines import import_text

    facts = import_sessions(
        open_workspace(context, masks=True),
        format,
        path.expanduser(),
        name,
        dry_run=dry_run,
        anonymous=anonymous,
    )
    print_result(facts, import_text(facts), json=json)
    if not json and not dry_run:
        tell_next(f"studio data review {quote(facts.name)}", context.obj)


@app.command()
def review(
    context: typer.Context,
    name: Annotated[str, argument("NAME", "A data set of the workspace.")],
    yes: Annotated[bool, flag("Mark all that wait, without asking.", "--yes")] = False,
    marks: Annotated[
        Path | None,
        option("FILE", 'Decisions: items of --json, "reviewed" true or "out".'),
    ] = None,
    json: AsJson = False,
) -> int:
    """Mark the imported items that models may see.

    The exit code is 3 where the answers end before the items do.

    Examples:
        studio data review sessions
        studio data review sessions --json
    """
    from studio.data import sessions
    from studio.render.words import count_text
    from studio.review.editor import edit_text

    workspace = open_workspace(context, masks=True)
    target = sessions.find_items(workspace, name)
    changes = sessions.read_marks(marks) if marks is not None else {}
    if stale := sessions.apply_marks(workspace, target, changes, all_waiting=yes):
        to_stderr(f"note: {count_text(stale, 'decision')} for items that are not there now")
    if json:
        print_json(sessions.read_items_of(target))
        return exit_codes.DONE
    ended = False
    if not yes and marks is None:
        say = partial(print, flush=True)
        ended = not sessions.review_items(workspace, target, ask_line, say, edit_text)
    items = sessions.read_items_of(target)
    reviewed = sum(item.may_be_used for item in items)
    print(f"{name}: {reviewed} of {count_text(len(items), 'item')} may be used")
    if reviewed == len(items) and (
        lines := sessions.replay_lines(name, sessions.read_items(target))
    ):
        for note in lines[1:]:
            to_stderr(f"note: {note}")
        tell_next(lines[0], context.obj)
    return exit_codes.OPERATIONS_OPEN if ended and reviewed < len(items) else exit_codes.DONE
