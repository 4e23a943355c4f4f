"""The three forms of a difference between two libraries."""

from __future__ import annotations

import json
import re
from typing import Any

from engines.core.codec import dumps
from engines.core.events import EvaluationFinished
from engines.core.library import Experience, Library
from engines.core.types import NO_USAGE
from studio.facts.library import FoundVersion, difference, experience_changes
from studio.render.comparison_page import difference_page
from studio.render.json import json_data
from studio.render.library_lines import difference_lines
from studio.render.page import render_html


def as_lines(older: FoundVersion, newer: FoundVersion) -> list[str]:
    return difference_lines(difference(older, newer))


def as_html(older: FoundVersion, newer: FoundVersion) -> str:
    return render_html(difference_page(difference(older, newer)))


def as_data(older: FoundVersion, newer: FoundVersion) -> Any:
    return json.loads(dumps(json_data(difference(older, newer))))


def found(
    *entries: tuple[str, str], version: int = 0, measured: tuple[EvaluationFinished, ...] = ()
) -> FoundVersion:
    experiences = tuple(Experience(name, text) for name, text in entries)
    return FoundVersion(f"lib@{version}", Library("lib", version, experiences, 9), measured)


OLD = found(("E1", "Keep it."), ("E2", "Carry the one."), ("E3", "Go away."))
NEW = found(("E1", "Keep it."), ("E2", "Carry the ten."), ("E4", "Come in."), version=1)


def test_removed_modified_and_added_stand_in_that_order_under_counts_and_tokens() -> None:
    heading, *rest = as_lines(OLD, NEW)
    before, after = OLD.library.guidance_tokens, NEW.library.guidance_tokens
    counts = "1 added, 1 reworded, 1 removed, 1 equal"
    assert heading == f"lib@0 -> lib@1  {counts}; {before} -> {after} tokens a call (estimated)"
    assert rest == [
        "- E3  Go away.",
        "~ E2  Carry the [-one.-]{+ten.+}",
        "+ E4  Come in.",
    ]


def test_equal_libraries_differ_in_nothing_but_have_counts() -> None:
    heading, words = as_lines(OLD, OLD)
    assert "  3 equal; " in heading
    assert words == "the same library: no experience differs"


def test_json_carries_both_texts_and_a_word_diff_that_rebuilds_them() -> None:
    data = as_data(OLD, NEW)
    by_id = {change["id"]: change for change in data["experiences"]}
    assert {name: change["sign"] for name, change in by_id.items()} == {
        "E1": "=",
        "E2": "~",
        "E3": "-",
        "E4": "+",
    }
    changed = by_id["E2"]
    assert (changed["before"], changed["after"]) == ("Carry the one.", "Carry the ten.")
    assert "".join(t for kind, t in changed["words"] if kind != "new") == changed["before"]
    assert "".join(t for kind, t in changed["words"] if kind != "cut") == changed["after"]
    assert (by_id["E4"]["before"], by_id["E3"]["after"]) == (None, None)
    assert data["counts"] == {"added": 1, "reworded": 1, "removed": 1, "equal": 1}
    assert data["a"]["tokens_per_call"] == OLD.library.guidance_tokens
    assert (data["a"]["label"], data["b"]["version"], data["b"]["experiences"]) == ("lib@0", 1, 3)


def test_a_page_escapes_what_models_and_people_wrote() -> None:
    nasty = found(("E1", "<script>alert(1)</script>"), ("E2", "Carry <b>&</b> ten."), version=2)
    page = as_html(found(("E2", "Carry <i>&</i> ten.")), nasty)
    assert "<script" not in page and "<b>" not in page and "<i>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<del>&lt;i&gt;&amp;&lt;/i&gt;</del><ins>&lt;b&gt;&amp;&lt;/b&gt;</ins>" in page


def test_a_page_loads_nothing_from_elsewhere_and_names_each_change() -> None:
    page = as_html(OLD, NEW)
    assert not re.search("https?:|src=|@import", page)
    assert re.findall(">(removed|reworded|added)</td><td[^>]*>(E[0-9])<", page) == [
        ("removed", "E3"),
        ("reworded", "E2"),
        ("added", "E4"),
    ]
    assert ">E1<" not in page, "what did not change is counted, not listed"


def test_control_characters_are_inert_in_lines_and_pages() -> None:
    nasty = found(("E1", "a\x1b[2Jb\u202ec"))
    empty = found()
    for text in (as_lines(empty, nasty)[-1], as_html(empty, nasty)):
        assert "\x1b" not in text and "\u202e" not in text
        assert "a\\u001b[2Jb\\u202ec" in text


def test_held_out_results_stand_beside_the_version_they_belong_to() -> None:
    before, after = (
        EvaluationFinished(
            step=step,
            data="heldout",
            policy_version=0,
            library_version=step,
            k=1,
            n=40,
            unjudged=0,
            mean=mean,
            usage=NO_USAGE,
        )
        for step, mean in enumerate((0.3, 0.7))
    )
    older = found(measured=(before,))
    newer = found(("E1", "x"), version=1, measured=(after,))
    lines = as_lines(older, newer)
    assert lines[1:3] == [
        "before: heldout: mean reward 0.300 (n=40)",
        "after: heldout: mean reward 0.700 (n=40)",
    ]
    page = as_html(older, newer)
    assert page.index("0.300 (n=40)") < page.index("0.700 (n=40)")
    (measured,) = as_data(older, newer)["b"]["evaluations"]
    assert (measured["data"], measured["mean_reward"], measured["n"]) == ("heldout", 0.7, 40)


def test_lessons_under_other_ids_are_called_so_and_not_rewritten() -> None:
    """Known defect: pairs were made by id, so two swapped ones were two rewrites."""
    swapped = found(("E1", "Carry the one."), ("E2", "Keep it."), version=1)
    older = found(("E1", "Keep it."), ("E2", "Carry the one."))
    heading, *rest = as_lines(older, swapped)
    assert "2 under another id" in heading
    assert rest == ["= E1 (was E2)  Carry the one.", "= E2 (was E1)  Keep it."]
    data = as_data(older, swapped)
    assert data["counts"] == {"under another id": 2}
    page = re.sub("<[^>]*>", " ", as_html(older, swapped))
    assert "renamed  E1 (was E2)  Carry the one." in page
    assert [(p.id, p.was, p.sign) for p in experience_changes(older.library, swapped.library)] == [
        ("E1", "E2", "="),
        ("E2", "E1", "="),
    ]
