"""`studio report`: the facts of a run as one file, which runs, loads and trusts nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from engines.core.library_notes import Effect
from engines.core.state.list_row import Point
from engines.core.text.similarity import format_changes
from engines.core.types import LostWork, Operation
from engines.pipeline.evaluation.statistics import Interval, mean_interval
from engines.record.run_dir import Workspace
from studio.facts.curves import Series
from studio.facts.next_command import RunStatus
from studio.render.page import BarChart, draw_svg, escape_markdown, render_html, render_markdown
from studio.report.page import ReportFacts, report_facts, report_page
from tests.support.forked_studio import STUDIO
from tests.support.processes import SMALL
from tests.support.run_studio import Result, studio
from tests.support.training_runs import finished, training_workspace

HOSTILE = (
    "</style></svg></title><script>alert(1)</script><img src=x onerror=alert(1)> "
    "[a](javascript:alert(1)) ![i](http://evil.example/x.png) <http://evil.example> "
    "https://evil.example www.evil.example | ``` ~~~ `x` **b** _e_ $x$ &amp; \x1b[31m \u202eabc"
)
WORDS = """html head meta title style body main section h1 h2 h3 h4 p ul li div table caption thead
tbody tr th td figure figcaption blockquote details summary ins del svg g path defs clippath rect
use text"""
TAGS = frozenset(WORDS.split())


class Reader(HTMLParser):
    """Every tag, attribute and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def facts_of(workspace: Path, run: str = "rehearsal") -> ReportFacts:
    space = Workspace(workspace)
    return report_facts(space.run(run), space, alive=False)


FIXED_WORDS = ("learned", "weights", "unit", "outcome", "measure", "update")


def hostile(value: Any, name: str = "") -> Any:
    """The same facts with hostile text behind every text, but for the words of a fixed list."""
    match value:
        case RunStatus() | Interval() | Point():
            return value
        case _ if is_dataclass(value) and not isinstance(value, type):
            changed = {f.name: hostile(getattr(value, f.name), f.name) for f in fields(value)}
            return replace(value, **changed)
        case Mapping():
            is_fixed = name in ("groups", "spent_on", "lost")
            return value if is_fixed else {key: hostile(v, key) for key, v in value.items()}
        case [("same" | "cut" | "new") as kind, str(text)]:
            return kind, text + HOSTILE
        case [("+" | "-" | "?") as sign, str(rollout), words]:
            return sign, rollout + HOSTILE, hostile(words)
        case list() | tuple():
            return tuple(hostile(entry, name) for entry in value)
        case str() if value and name not in FIXED_WORDS:
            return value + HOSTILE
        case _:
            return value


@pytest.fixture
def measured(practised: Path, tmp_path: Path) -> ReportFacts:
    """Facts with a measured effect, a loss and something to decide, so that all is drawn."""
    effect = Effect(
        difference=0.125, low=0.05, high=0.2, verdict="helps", problems=40, rollouts=320,
        method="gate",
    )  # fmt: skip
    workspace = tmp_path / "measured"
    shutil.copytree(practised, workspace)
    with Workspace(workspace).library("rehearsal").lock_for_commit() as library:
        library.measure(library.head, {"E1": effect})
    report = facts_of(workspace)
    facts = replace(
        report.facts,
        losses=(LostWork("rollout", "s1p0r0", "timeout"),),
        lost={"rollout": 1},
        open=(Operation("op9.1", "add", text="Mind it."),),
        doubts={"s1p0r1": "it is right"},
    )
    return replace(report, facts=facts)


def test_its_facts_are_those_of_runs_show_and_more(practised: Path) -> None:
    shown = json.loads(studio("runs", "show", "rehearsal", "--json", workspace=practised).stdout)
    told = json.loads(studio("report", "rehearsal", "--json", workspace=practised).stdout)
    for epoch in (*told["epochs"], *shown["epochs"]):
        epoch.pop("interval")
    assert {name: told[name] for name in shown} == shown
    assert told["settings"]["practice.group_size"] == 3


def test_an_epochs_interval_is_over_problems_whose_tries_are_not_independent(
    practised: Path,
) -> None:
    rewards: dict[str, list[float]] = {}
    for step in facts_of(practised).facts.steps:
        words = ("runs", "show", "rehearsal", "--step", str(step.step), "--json")
        for group in json.loads(studio(*words, workspace=practised).stdout)["groups"]:
            rewards.setdefault(group["problem"], []).extend(group["rewards"])
    assert len(rewards) > 2
    (epoch,) = facts_of(practised).facts.epochs
    assert epoch.interval == mean_interval(tuple(rewards.values()))
    assert epoch.interval is not None and epoch.mean_reward is not None
    assert epoch.interval.low < epoch.mean_reward < epoch.interval.high


def test_a_lesson_shows_the_question_where_a_winner_and_a_loser_part_and_its_worth(
    measured: ReportFacts,
) -> None:
    lesson = measured.lessons[0]
    group = lesson.evidence[0]
    assert [sign for sign, _, _ in group.excerpts] == ["+", "-"]
    assert {rollout for _, rollout, _ in group.excerpts} <= set(lesson.cites)
    page = render_markdown(report_page(measured))
    assert group.question in page
    for _, _, words in group.excerpts:
        assert format_changes(words).split("\n")[0] in page
    worth = r"Worth: +0.125 \[+0.05, +0.20], helps (40 problems, 320 rollouts; measured by gate)."
    assert page.count(worth) == 1
    assert page.count("Worth: not measured.") == len(measured.lessons) - 1


def test_a_page_names_nothing_outside_of_itself(measured: ReportFacts) -> None:
    page = render_html(report_page(measured))
    read = Reader(page)
    assert read.tags["svg"] >= 3
    assert set(read.tags) <= TAGS
    policy = next(value for _, value in read.attributes if "default-src 'none'" in value)
    assert set(re.findall("([a-z-]+-src) 'unsafe-inline'", policy)) == {"style-src"}
    for name, value in read.attributes:
        assert not name.startswith("on") and name not in ("src", "srcset", "action", "background")
        assert name != "href" or value.startswith("#")
        assert not re.search(r"url\((?!#)|//|import", value), (name, value)
    style = page.partition("<style>")[2].partition("</style>")[0]
    assert not re.search(r"url\(|@import|//|expression", style)
    names = [value for name, value in read.attributes if name == "id"]
    assert len(set(names)) == len(names)
    assert {v[1:] for n, v in read.attributes if n == "href"} <= set(names)
    assert page == render_html(report_page(measured))


def test_it_can_be_read_aloud_on_a_phone_in_the_dark_and_on_paper(measured: ReportFacts) -> None:
    page = render_html(report_page(measured))
    read = Reader(page)
    assert ("lang", "en") in read.attributes
    assert ("content", "width=device-width, initial-scale=1") in read.attributes
    labels = [value for name, value in read.attributes if name == "aria-label"]
    assert any("Practice reward" in label and "after step 2" in label for label in labels)
    assert len(labels) == read.tags["svg"] + read.tags["table"]
    assert read.attributes.count(("scope", "col")) == read.tags["th"]
    assert "prefers-color-scheme: dark" in page and "@media print" in page
    assert "#000001" not in page and "var(--series-1)" in page


def test_what_became_of_a_group_has_one_colour_in_every_chart() -> None:
    def colours(*parts: tuple[str, float]) -> list[str]:
        drawn = draw_svg(BarChart("groups", ["epoch 1"], [(n, [x]) for n, x in parts]), 1, "")
        return list(dict.fromkeys(re.findall(r"fill: var\(--series-(\d)", drawn)))

    assert colours(("used", 3), ("all-wrong", 0), ("failed", 1)) == ["1", "3"]
    assert colours(("used", 0), ("all-wrong", 0), ("failed", 1)) == ["3"]


def test_hostile_text_stays_text_in_html(measured: ReportFacts) -> None:
    plain, page = (render_html(report_page(one)) for one in (measured, hostile(measured)))
    before, after = Reader(plain), Reader(page)
    assert set(after.tags) == set(before.tags)
    assert after.tags["script"] == after.tags["img"] == 0
    assert {name for name, _ in after.attributes} == {name for name, _ in before.attributes}
    shown = "".join(after.text)
    assert shown.count("<script>alert(1)</script>") > 50
    assert "\x1b" not in page and "\u202e" not in page and "\\u202eabc" in shown


def test_hostile_text_stays_text_in_markdown(measured: ReportFacts) -> None:
    page = render_markdown(report_page(hostile(measured)))
    parser = MarkdownIt("gfm-like", {"html": True})
    assert parser.linkify is not None
    parser.linkify.set({"fuzzy_link": False})  # no link on GitHub, and "library.name" is one here
    assert "www.evil" not in re.sub("(?s)(`{3,})text.*?\\1", "", page)
    tokens = [part for token in parser.parse(page) for part in (token, *(token.children or ()))]
    kinds = Counter(token.type for token in tokens)
    assert not kinds.keys() & {"html_block", "html_inline", "link_open", "image", "s_open"}
    assert "em_open" not in kinds and kinds["code_block"] == 0
    clean = Counter(part.type for part in parser.parse(render_markdown(report_page(measured))))
    for kind in ("heading_open", "table_open", "th_open", "td_open", "fence"):
        assert kinds[kind] == clean[kind], kind
    assert kinds["fence"] >= 2
    assert "\x1b" not in page and "\u202e" not in page


@pytest.mark.parametrize("text", ["- x", "# x", "> x", "1. x", "2) x", "---", "===", "* x", "+ x"])
def test_no_text_begins_a_block_of_markdown(text: str) -> None:
    inside = [token.type for token in MarkdownIt("gfm-like").parse(escape_markdown(text))]
    assert inside == ["paragraph_open", "inline", "paragraph_close"]


# Extended e-mail autolinks of GitHub Flavored Markdown 0.29, §6.9, mentions and issues.
REFERENCES = re.compile(r"[A-Za-z0-9.\-_+]+@[A-Za-z0-9\-_]+(\.[A-Za-z0-9\-_]+)+|@\w|#\d")


@pytest.mark.parametrize("text", ["@octocat", "evil@evil.example", "mailto:a@b.example", "#1"])
def test_no_text_mentions_or_addresses_anybody(text: str) -> None:
    assert REFERENCES.search(text) and not REFERENCES.search(escape_markdown(text))


def test_a_report_goes_where_it_is_sent(practised: Path, tmp_path: Path) -> None:
    def report(target: str) -> Result:
        return studio("report", "rehearsal", "--md", target, workspace=practised)

    printed = report("-").stdout
    assert printed.startswith("# ") and not Path("-").exists()
    real, link, pipe = (tmp_path / name for name in ("real.md", "link.md", "pipe"))
    real.write_text("my thesis")
    kept = practised / "libraries/rehearsal/journal.jsonl", practised / "runs/rehearsal/new.md"
    for target, why in ((real, "holds something else"), *((k, "only the studio") for k in kept)):
        done = report(str(target))
        assert done.code == 2 and why in done.stderr and not kept[1].exists()
    assert real.read_text() == "my thesis" and studio("doctor", workspace=practised).code == 0
    real.write_text("# Report of run rehearsal, the old one")
    link.symlink_to(real)
    assert report(str(link)).code == 0
    assert link.is_symlink() and real.read_text("utf-8") == printed
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
    assert report(str(pipe)).code == 0 and pipe.is_fifo()
    assert reader.communicate()[0].decode() == printed
    words = ["report", "rehearsal", "--md", "/dev/stdout", "--workspace", str(practised)]
    piped = subprocess.run([*STUDIO, *words], capture_output=True, text=True, check=True)
    assert piped.stdout == printed
    for nowhere in ("", ".", "/"):
        done = report(nowhere)
        assert done.code == 2 and "cannot be written" in done.stderr


def test_scripted_replies_a_living_run_and_one_without_anything_say_so(practised: Path) -> None:
    finished = studio("report", "rehearsal", workspace=practised).stdout
    assert "rehearsal): this shows the loop" in finished
    assert "has not ended" not in finished
    journal = practised / "runs/rehearsal/journal.jsonl"
    whole = journal.read_bytes().splitlines(keepends=True)
    for kept in range(0, len(whole), 5):  # a run that was killed anywhere
        journal.write_bytes(b"".join(whole[:kept]))
        told = studio("report", "rehearsal", workspace=practised)
        assert told.code == 0, told.stderr
        assert "**This run has not ended: all figures are those so far.**" in told.stdout
    report = facts_of(practised)
    living = replace(report.facts, standing=RunStatus("running", alive=True))
    assert "has not ended" in render_html(report_page(replace(report, facts=living)))


def test_a_run_that_trains_weights_shows_its_curves(tmp_path: Path) -> None:
    facts = facts_of(training_workspace(tmp_path, finished()).path, "tiny")
    page = render_markdown(report_page(facts))
    for curve in ("KL", "loss", "learning rate"):
        assert f"- {curve}. {curve} " in page
    assert re.search(r"- updates +\d applied", page)
    assert "## What changed" not in page
    assert Reader(render_html(report_page(facts))).tags["svg"] >= 5


def test_a_long_run_is_thinned_and_what_is_gone_is_told(measured: ReportFacts) -> None:
    lessons = measured.lessons * 60
    assert len(lessons) > 100
    points = tuple(Point(step, step % 2, 4) for step in range(1, 1001))
    curves = replace(measured.curves, practice=Series("reward", "reward", points))
    page = render_markdown(
        report_page(replace(measured, lessons=lessons, curves=curves, diff=None))
    )
    assert page.count("Worth: ") == len(lessons)
    assert "reward 0.6 after step 5, 0.4 after step 1000" in page  # the means of five steps each
    assert "what changed cannot be told" in page
    assert "- op9.1 add" in page and "## Open operations" in page


def test_a_fork_begins_its_library_where_it_was_forked(practised: Path) -> None:
    assert (
        studio("headless", "rehearsal", *SMALL, "--restart-step", "1", workspace=practised).code
        == 0
    )
    facts = facts_of(practised, "rehearsal-2")
    assert facts.library_size[0] == Point(1, facts.facts.steps[0].applied["add"])
    assert "steps 1 to 1 adopted from run rehearsal" in render_markdown(report_page(facts))


def test_the_charts_need_an_extra_and_nothing_else_does(
    practised: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused = studio("report", "rehearsal", "--html", "x.html", workspace=practised)
    assert refused.code == 2
    assert "[report]" in refused.stderr and "--md" in refused.stderr
    assert not (practised.parent / "x.html").exists()
    done = studio("report", "rehearsal", "--md", "x.md", workspace=practised)
    assert (done.code, done.stdout) == (0, "")
    printed = studio("report", "rehearsal", workspace=practised).stdout
    assert (practised.parent / "x.md").read_text("utf-8") == printed


def test_a_secret_of_the_run_file_is_in_no_report(
    practised: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = facts_of(practised).lessons[0].text
    monkeypatch.setenv("ODD_NAME", text[4:40])
    with (practised / "runs/rehearsal/run.yaml").open("a") as file:
        file.write("judge:\n  api_key: ${oc.env:ODD_NAME}\n")
    for form in ((), ("--json",)):
        told = studio("report", "rehearsal", *form, workspace=practised).stdout
        assert told and text[4:40] not in told
    assert studio("report", "rehearsal", "--html", "x.html", workspace=practised).code == 0
    assert text[4:40] not in (practised.parent / "x.html").read_text("utf-8")
