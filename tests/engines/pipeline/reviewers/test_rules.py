"""Rule files: what passes by itself, what is refused with which reason, what waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.core.errors import ConfigError
from engines.core.library import Library
from engines.core.types import Decision, Flag, Operation
from engines.pipeline.reviewers import read_rules
from tests.support.builders import a_library, an_operation

LIBRARY = a_library("Carry: when digits add to ten or more, carry one.")


async def decided(
    tmp_path: Path, rules: str, *operations: Operation, library: Library = LIBRARY
) -> list[Decision]:
    path = tmp_path / "rules.yaml"
    path.write_text(f"rules:\n{rules}", "utf-8")
    return [decision async for decision in read_rules(path).review(operations, library)]


async def actions(tmp_path: Path, when: str, *operations: Operation) -> list[str]:
    rules = f"  - when: {{{when}}}\n    do: approve\n"
    return [d.operation_id for d in await decided(tmp_path, rules, *operations)]


async def test_the_first_rule_that_holds_decides_and_the_rest_goes_on(tmp_path: Path) -> None:
    rules = """
  - when: {kind: delete}
    do: ask
  - when: {words_above: 4}
    do: reject
    reason: too long
  - when: {kind: [add, delete]}
    do: approve
"""
    found = await decided(
        tmp_path,
        rules,
        an_operation("delete", "E1", id="a"),
        an_operation("add", None, "one two three four five", id="b"),
        an_operation("add", None, "one two three four", id="c"),
        an_operation("modify", "E1", "one", id="d"),
    )
    assert [(d.operation_id, d.action, d.reason) for d in found] == [
        ("b", "reject", "too long"),
        ("c", "approve", "rule 3"),
    ]
    assert {d.reviewer for d in found} == {"rules:rules.yaml"}


async def test_rollouts_of_one_group_count_as_one_group(tmp_path: Path) -> None:
    one = an_operation(id="one", evidence=("s1p0r0", "s1p0r1"))
    two = an_operation(id="two", evidence=("s1p0r0", "s1p12r1"))
    assert await actions(tmp_path, "groups_at_least: 2", one, two) == ["two"]
    assert await actions(tmp_path, "groups_below: 2", one, two) == ["one"]


async def test_texts_are_searched_and_compared_with_other_experiences(tmp_path: Path) -> None:
    near = an_operation("add", None, "Carry: when digits add to ten, carry one.", id="near")
    far = an_operation("add", None, "Precedence: multiply first.", id="far")
    itself = an_operation("modify", "E1", LIBRARY.experiences[0].text + "!", id="itself")
    assert await actions(tmp_path, "matches: '^Prec'", near, far) == ["far"]
    # A new wording is always like the one it replaces: only others count.
    assert await actions(tmp_path, "similar_at_least: 0.7", near, far, itself) == ["near"]


async def test_flagged_operations_can_be_told_from_others(tmp_path: Path) -> None:
    plain = an_operation(id="plain")
    flagged = Operation("flagged", "add", text="x", flags=(Flag("length"),))
    assert await actions(tmp_path, "flagged: true", plain, flagged) == ["flagged"]
    assert await actions(tmp_path, "flagged: false", plain, flagged) == ["plain"]


async def test_rules_name_flags_and_how_sure_they_must_be(tmp_path: Path) -> None:
    plain = an_operation(id="plain")
    near = Operation("near", "add", text="x", flags=(Flag("duplicate", 0.95),))
    far = Operation("far", "add", text="x", flags=(Flag("duplicate", 0.8), Flag("one group")))
    leak = Operation("leak", "add", text="x", flags=(Flag("leak", 1.0),))
    four = (plain, near, far, leak)
    assert await actions(tmp_path, "flag: duplicate", *four) == ["near", "far"]
    assert await actions(tmp_path, "flag: [leak, one group]", *four) == ["far", "leak"]
    assert await actions(tmp_path, "flag: duplicate, score_at_least: 0.9", *four) == ["near"]
    assert await actions(tmp_path, "score_at_least: 0.9", *four) == ["near", "leak"]
    # A flag without a score reaches none.
    bare = Operation("bare", "add", text="x", flags=(Flag("one group"),))
    assert await actions(tmp_path, "score_at_least: 0", bare) == []


async def test_conditions_that_narrow_each_other_may_stand_together(tmp_path: Path) -> None:
    one = an_operation(id="one", evidence=("s1p0r0",))
    assert await actions(tmp_path, "groups_at_least: 1, groups_below: 2", one) == ["one"]
    assert await actions(tmp_path, "flagged: true, flag: leak, score_at_least: 0.5", one) == []


async def test_a_rule_without_conditions_holds_always(tmp_path: Path) -> None:
    found = await decided(tmp_path, "  - {do: defer, reason: later}\n", an_operation())
    assert [(d.action, d.reason) for d in found] == [("defer", "later")]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rules:\n  - {do: reject}\n", "a rule that rejects needs a reason"),
        ("rules:\n  - {do: pass}\n", "rule 1, do"),
        ("rules:\n  - {when: {kinds: add}, do: ask}\n", "rule 1, when, kinds"),
        ("rules:\n  - {when: {kind: rewrite}, do: ask}\n", "rule 1, when, kind"),
        ("rules:\n  - {when: {kind: []}, do: ask}\n", "rule 1, when, kind"),
        ("rules:\n  - {when: {flag: []}, do: ask}\n", "rule 1, when, flag"),
        ("rules:\n  - {when: {matches: '('}, do: ask}\n", "not a regular expression"),
        ("rules:\n  - {when: {flag: xyz}, do: ask}\n", "there are duplicate, leak"),
        ("rules:\n  - {when: {score_at_least: 2}, do: ask}\n", "score_at_least"),
        ("rule: []\n", "rules"),
        ("", "rules.yaml"),
        ("rules: [", "is not YAML"),
        ("rules:\n  - when: {}\n", "rule 1, do: Field required"),
    ],
)
def test_a_rule_file_that_says_something_else_is_refused_with_its_place(
    tmp_path: Path, text: str, told: str
) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_rules(path)
    assert told in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_missing_rule_file_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_rules(tmp_path / "none.yaml")
