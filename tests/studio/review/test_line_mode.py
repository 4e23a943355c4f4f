"""A sitting: keys in, decisions out, and what a person is shown before each."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from engines.core import events as ev
from engines.core.errors import ConflictError, RecordError
from engines.core.library import Library
from engines.core.state.run_state import RunState
from engines.core.types import (
    GATE,
    Decision,
    DecisionPreview,
    Flag,
    Message,
    Operation,
    UnparsedReply,
    Usage,
    Verdict,
)
from engines.training_free.consolidation import ReplyOrigin, Resubmission, read_resubmission
from studio.review.evidence import EvidenceLoader, EvidenceRollout, GroupEvidence
from studio.review.line_mode import LineReview
from studio.review.review_run import RunReview
from studio.session.requests import ReviewQueue
from studio.session.session import Session
from studio.session.unparsed_replies import ReplySource
from tests.support.answering import Answering
from tests.support.builders import a_library, an_operation

LIBRARY = a_library("Carry: mind it.", "Borrow: mind it too.")
FIRST = an_operation("add", text="Order: multiply first.", id="op1.1")
SECOND = an_operation("modify", "E1", "Carry: mind the ten.", id="op1.2")
THIRD = an_operation("delete", "E2", id="op1.3")


class FakeSession(Answering):
    """Keeps decisions as a run's journal would; undoing a first takes `cascade` back too."""

    def __init__(self, operations: Sequence[Operation], library: Library = LIBRARY) -> None:
        self.state = RunState()
        self.operations = self.state.operations
        self.operations.update({op.id: op for op in operations})
        self.library = library
        self.decisions = self.state.decisions
        self.cascade: tuple[str, ...] = ()
        self.gone: set[str] = set()
        self.commits_at_once = False  # what is decided cannot be taken back
        self.refusal: Decision | None = None  # what the gate makes of every decision
        self.stale: int | None = None
        self.repairs: dict[str, UnparsedReply] = {}
        self.flags: tuple[Flag, ...] = ()  # of every edit
        self.objection = ""  # to every edit
        self.outdated: list[ReviewQueue] = []  # shown before the queue as it is
        self.batches: list[int] = []  # how many decisions each record held
        self.linted: list[str | None] = []  # texts asked about before they were decided
        self.proposed: list[Operation] = []
        self.notes: dict[str, str] = {}  # kept as operations were put off
        self.mended: list[tuple[str, str, str]] = []
        self.dropped: list[tuple[str, str, str]] = []

    def queue(self) -> ReviewQueue:
        open_ = [
            op
            for op in self.operations.values()
            if op.id not in self.gone
            and (op.id not in self.decisions or self.decisions[op.id].action == "defer")
        ]
        reviewed = [(self.operations[d.operation_id], d) for d in self.decisions.values()]
        draft = self.library.commit(reviewed).library
        texts = tuple((e.id, e.text) for e in draft.experiences)
        waiting = tuple(self.repairs.values())
        return ReviewQueue(
            tuple(open_),
            tuple(self.decisions.values()),
            texts,
            self.stale,
            waiting,
            pinned=draft.pinned_ids,
            notes=self.notes,
        )

    async def review_queue(self) -> ReviewQueue:
        return self.outdated.pop(0) if self.outdated else self.queue()

    async def preview(self, decision: Decision) -> DecisionPreview:
        self._check(decision)
        self.linted.append(decision.text)
        return DecisionPreview(self.objection, self.flags)

    async def decide(self, decision: Decision) -> Decision:
        self._check(decision)
        if decision.action == "edit":
            decision = replace(decision, flags=self.flags)
        if self.commits_at_once:
            self.gone.add(decision.operation_id)
            del self.operations[decision.operation_id]
        else:
            self.decisions[decision.operation_id] = self.refusal or decision
        if self.refusal is not None:
            return self.refusal
        adds = decision.operation_id == FIRST.id and decision.action != "reject"
        return replace(decision, assigned="E3" if adds else None)

    async def decide_all(self, decisions: Sequence[Decision]) -> list[Decision]:
        for decision in decisions:
            self._check(decision)
        self.batches.append(len(decisions))
        return [await self.decide(decision) for decision in decisions]

    def _check(self, decision: Decision) -> None:
        if decision.operation_id in self.gone:
            raise ConflictError(
                f"operation {decision.operation_id}", "it is not open in this run.", ""
            )

    async def undo(self, operation_id: str) -> tuple[str, ...]:
        if operation_id not in self.decisions:
            raise ConflictError(f"operation {operation_id}", "no decision about it stands.", "")
        undone = (operation_id, *(name for name in self.cascade if name in self.decisions))
        for name in undone:
            del self.decisions[name]
        return undone

    async def propose(self, operation: Operation) -> Operation:
        made = replace(operation, id=f"op1.h{len(self.proposed) + 1}", proposer="ann")
        self.proposed.append(made)
        self.operations[made.id] = made
        return made

    async def resubmit(self, repair_id: str, text: str, reviewer: str) -> Resubmission:
        repair = self._repair(repair_id)
        origin = ReplyOrigin({0: ("s1p0r0",)}, {"s1p0r0": "p0"}, "m", "hash", {})
        found = read_resubmission(repair, text, self.library, origin, reviewer)
        if not found.problems:
            self.mended.append((repair_id, text, reviewer))
            del self.repairs[repair_id]
            self.operations.update({op.id: op for op in found.operations})
        return found

    async def drop(self, repair_id: str, reason: str, reviewer: str) -> None:
        self._repair(repair_id)
        del self.repairs[repair_id]
        self.dropped.append((repair_id, reason, reviewer))

    def _repair(self, repair_id: str) -> UnparsedReply:
        if repair_id not in self.repairs:
            raise ConflictError(f"reply {repair_id}", "it was mended by bob already.", "")
        return self.repairs[repair_id]


def a_witness(
    index: int, reward: float | None, tail: str = "so 5", critique: str = ""
) -> EvidenceRollout:
    rollout = ev.RolloutFinished(
        step=1,
        position=0,
        index=index,
        seed=1,
        status="ok",
        answer=None,
        error=None,
        usage=Usage(),
        elapsed_s=0.1,
        tail=tail,
    )
    return EvidenceRollout(rollout, Verdict(reward, critique or None))


class FakeEvidence:
    """One group behind every operation that names evidence."""

    def __init__(self) -> None:
        self.group = GroupEvidence(
            "s1p0",
            "What is 37 + 29?\nShow your work.",
            1,
            3,
            (
                a_witness(0, 1.0, "7 + 9 = 16\n#### 66"),
                a_witness(1, 0.0, "#### 56", "expected 66"),
                a_witness(2, None, "####\x1b[2J ?"),
            ),
        )

    def operation_groups(self, operation: Operation) -> tuple[GroupEvidence, ...]:
        return self.groups(operation.evidence)

    def groups(self, rollouts: Sequence[str]) -> tuple[GroupEvidence, ...]:
        return (self.group,) if rollouts else ()

    def reply_source(self, repair: UnparsedReply) -> ReplySource:
        origin = ReplyOrigin({0: ("s1p0r0",)}, {"s1p0r0": "p0"}, "a\x1bmodel", "hash", {})
        return ReplySource(
            origin, repair.reply, (Message("user", "Draw a\x1b[2J lesson."),), ("s1p0r0",)
        )

    def messages(self, witness: EvidenceRollout) -> tuple[Message, ...]:
        if witness.rollout.index == 1:
            raise RecordError("records/step-0001.jsonl", "its record is gone.", "")
        return Message("user", "What is 37 + 29?"), Message("assistant", f"I say {witness.id}\x07")


@dataclass
class Heard:
    session: FakeSession
    said: str = ""
    prompts: list[str] = field(default_factory=list)
    usable_keys: list[str] = field(default_factory=list)  # texts given to the editor
    decided: int = 0

    @property
    def actions(self) -> dict[str, str]:
        return {name: decision.action for name, decision in self.session.decisions.items()}


def sat(
    *keys: str,
    operations: Sequence[Operation] = (FIRST, SECOND, THIRD),
    saved: str | None = None,
    session: FakeSession | None = None,
    clock: Iterator[float] | None = None,
) -> Heard:
    """A sitting in which these lines are typed; afterwards the input ends."""
    heard = Heard(session or FakeSession(operations))
    typed = iter(keys)
    said: list[str] = []

    def ask(prompt: str) -> str | None:
        heard.prompts.append(prompt)
        return next(typed, None)

    def edit(text: str) -> str | None:
        heard.usable_keys.append(text)
        return saved

    ticks = clock or itertools.repeat(0.0)
    with asyncio.Runner() as runner:
        session = cast(Session, heard.session)
        sitting = LineReview(
            RunReview(session, runner.run, False, said.append, said.append),
            ask,
            edit,
            cast(EvidenceLoader, FakeEvidence()),
            clock=lambda: next(ticks),
        )
        sitting.ask_all()
    assert list(typed) == [], "a key was typed that nobody asked for"
    heard.said, heard.decided = "\n".join(said), sitting.decided_count
    return heard


def test_a_approves_in_the_name_of_the_person_and_goes_on_to_the_next() -> None:
    heard = sat("a", "a", "a")
    assert heard.actions == {"op1.1": "approve", "op1.2": "approve", "op1.3": "approve"}
    assert {d.reviewer for d in heard.session.decisions.values()} == {"ann"}
    assert [prompt.split()[0] for prompt in heard.prompts] == ["op1.1", "op1.2", "op1.3"]
    assert "op1.1: approved (becomes E3)" in heard.said
    assert heard.decided == 3


def test_a_weight_update_is_offered_what_can_be_done_with_it() -> None:
    update = Operation("op3.w", "weights", text="KL 0.01, length 40")
    heard = sat("?", "e", "q", operations=[update])
    assert set(heard.prompts) == {"op3.w  a r R m u n N o l q h ? "}
    helped = [line for line in heard.said.splitlines() if line[10:13] == "   " and line[0] != " "]
    assert [line[0] for line in helped] == list("arRmunNolqh")
    assert helped[0] == "a            approve", "it has no parts"
    assert "approved or rejected as a whole" in heard.said


def test_r_rejects_and_capital_r_asks_for_a_reason() -> None:
    heard = sat("r   too narrow to help  ", "R", "", "R", "it misleads", "r")
    made = heard.session.decisions
    assert [d.action for d in made.values()] == ["reject"] * 3
    assert [d.reason for d in made.values()] == ["too narrow to help", "it misleads", ""]
    assert "not rejected: no reason was given" in heard.said
    assert heard.prompts.count("reject op1.2 because: ") == 2
    assert heard.decided == 3


def test_e_takes_the_wording_from_the_line_without_opening_an_editor() -> None:
    heard = sat("e Order: times before plus.", "q")
    decision = heard.session.decisions["op1.1"]
    assert (decision.action, decision.text) == ("edit", "Order: times before plus.")
    assert heard.usable_keys == []
    assert "approved as edited" in heard.said


def test_e_alone_opens_the_proposed_wording_in_the_editor() -> None:
    heard = sat("e", "q", saved="Order: my words.\n")
    assert heard.usable_keys == ["Order: multiply first."]
    assert heard.session.decisions["op1.1"].text == "Order: my words.\n"


@pytest.mark.parametrize("saved", [None, "", " \n"])
@pytest.mark.parametrize("key", ["e", "E", "M E1"])
def test_an_editor_left_without_saving_decides_nothing_and_asks_again(
    key: str, saved: str | None
) -> None:
    heard = sat(key, "q", saved=saved)
    assert heard.session.decisions == {}
    assert "nothing was saved" in heard.said
    assert [prompt.split()[0] for prompt in heard.prompts] == ["op1.1", "op1.1"]


def test_a_delete_has_no_wording_to_edit() -> None:
    heard = sat("e new words", "a", operations=[THIRD])
    assert "a delete has no wording" in heard.said
    assert heard.actions == {"op1.3": "approve"}


def test_capital_m_makes_an_addition_a_modification_of_the_named_experience() -> None:
    heard = sat("M E2 Borrow and carry: mind both.", "q")
    decision = heard.session.decisions["op1.1"]
    assert (decision.action, decision.kind, decision.target) == ("edit", "modify", "E2")
    assert decision.text == "Borrow and carry: mind both."


def test_capital_m_with_an_id_alone_offers_both_wordings_to_the_editor() -> None:
    heard = sat("M E1", "q", saved="both in one")
    assert heard.usable_keys == ["Carry: mind it.\nOrder: multiply first."]
    assert heard.session.decisions["op1.1"].text == "both in one"


@pytest.mark.parametrize("key", ["M", "M E9", "M E9 words"])
def test_capital_m_into_what_is_not_there_names_what_is(key: str) -> None:
    heard = sat(key, "q")
    assert heard.session.decisions == {}
    assert "merge with which? M ID, one of: op1.2, E1, E2" in heard.said


def test_t_puts_off_with_a_note_and_does_not_ask_again_in_this_session() -> None:
    heard = sat("t wait for more", "n", "n")
    assert heard.actions == {"op1.1": "defer"}
    assert heard.session.decisions["op1.1"].reason == "wait for more"


def test_n_leaves_an_operation_undecided_and_shows_the_next() -> None:
    heard = sat("n", "n", "a")
    assert heard.actions == {"op1.3": "approve"}


def test_u_takes_the_last_decision_back_and_again_the_one_before() -> None:
    heard = sat("a", "r no", "u", "u", "q")
    assert heard.session.decisions == {}
    asked = [prompt.split()[0] for prompt in heard.prompts]
    assert asked == ["op1.1", "op1.2", "op1.3", "op1.2", "op1.1"]
    assert "asked again: op1.2" in heard.said
    assert "asked again: op1.1" in heard.said


def test_u_after_a_deferral_asks_about_it_again() -> None:
    heard = sat("t later", "u", "a", "q")
    assert heard.actions == {"op1.1": "approve"}


def test_u_tells_of_decisions_that_rested_on_the_one_taken_back() -> None:
    session = FakeSession([FIRST, SECOND, THIRD])
    session.cascade = ("op1.1",)
    heard = sat("a", "a", "u", "u", "q", session=session)
    assert "asked again: op1.2, op1.1" in heard.said
    assert "op1.1 was taken back elsewhere already" in heard.said


def test_u_before_anything_was_decided_says_so() -> None:
    heard = sat("u", "q")
    assert "nothing was decided in this session" in heard.said


def test_u_of_what_a_run_has_committed_meanwhile_says_so_and_goes_on() -> None:
    session = FakeSession([FIRST, SECOND])
    session.commits_at_once = True
    heard = sat("a", "u", "a", session=session)
    # It would be deleted again, were it there.
    assert "E3 is as it was before op1.1, or is gone" in heard.said
    assert session.gone == {"op1.1", "op1.2"}


def test_a_decision_that_comes_too_late_is_told_and_the_next_is_shown() -> None:
    session = FakeSession([FIRST, SECOND])
    session.outdated = [session.queue()]
    session.gone.add("op1.1")
    heard = sat("a", "a", session=session)
    assert "it is not open in this run" in heard.said
    assert heard.actions == {"op1.2": "approve"}
    assert heard.decided == 1


@pytest.mark.parametrize("key", ["", "?", "h", "help"])
def test_help_lists_the_commands_and_asks_again(key: str) -> None:
    heard = sat(key, "q")
    assert heard.session.decisions == {}
    for command in "aeErRtmMpunNowlqh":
        assert f"\n{command}" in f"\n{heard.said}"
    assert heard.prompts[0] == "op1.1  a e E r R t m M p u n N o w l q h ? "


@pytest.mark.parametrize("key", ["A", "approve", "\x1b[A"])
def test_a_letter_without_a_meaning_says_so_in_one_line(key: str) -> None:
    heard = sat(key, "q")
    said = heard.said.splitlines()[-1]
    assert said.endswith(" does nothing here; ? lists the letters") and "\x1b" not in said
    assert heard.session.decisions == {}


def test_o_shows_what_was_asked_and_said_with_rewards_and_survives_a_lost_record() -> None:
    with_evidence = an_operation(id="op1.1", evidence=("s1p0r0", "s1p0r1", "s1p0r2"))
    heard = sat("o", "a", operations=[with_evidence])
    assert "--- s1p0r0  reward 1" in heard.said
    assert "--- s1p0r2  reward ?" in heard.said
    viewed = heard.said.split("=== s1p0")[1]
    assert viewed.count("What is 37 + 29?\nShow your work.") == 1, "the question stands once"
    assert "I say s1p0r0\\u0007" in viewed and "I say s1p0r2\\u0007" in viewed
    assert "its record is gone" in heard.said
    assert heard.actions == {"op1.1": "approve"}


def test_l_lists_what_is_open_and_the_library_as_it_would_become() -> None:
    heard = sat("a", "l", "q")
    assert "op1.2    modify  Carry: mind the ten." in heard.said
    assert "op1.3    delete  E2" in heard.said
    listing = heard.said.split("the library as it would become:")[1]
    assert "E1  Carry: mind it." in listing
    assert "E3  Order: multiply first." in listing


@pytest.mark.parametrize("keys", [("a", "q"), ("a",)])
def test_q_and_the_end_of_the_input_leave_the_rest_open(keys: tuple[str, ...]) -> None:
    heard = sat(*keys)
    assert heard.actions == {"op1.1": "approve"}
    assert heard.decided == 1


def test_each_kind_is_shown_as_what_it_would_do_to_the_draft() -> None:
    keep = an_operation("keep", "E1", id="op1.4")
    heard = sat("n", "n", "n", "n", operations=[FIRST, SECOND, THIRD, keep])
    for line in (
        "op1.1  ADD  (4 open)",
        "  + Order: multiply first.",
        "op1.2  MODIFY E1  (4 open)",
        "  ~ Carry: mind [-it.-]{+the ten.+}",
        "op1.3  DELETE E2  (4 open)",
        "  - Borrow: mind it too.",
        "op1.4  NO CHANGE TO E1  (4 open)",
        "  = Carry: mind it.",
    ):
        assert line in heard.said.splitlines()


def test_a_question_is_asked_against_the_draft_with_the_earlier_answers() -> None:
    again = an_operation("modify", "E1", "Carry: mind the last ten.", id="op1.3")
    heard = sat("a", "n", operations=[SECOND, again])
    assert "  ~ Carry: mind the {+last +}ten." in heard.said.splitlines()


def test_the_evidence_is_shown_with_signs_last_words_and_critique() -> None:
    heard = sat("q", operations=[an_operation(id="op1.1", evidence=("s1p0r0",))])
    assert heard.said.splitlines()[-4:] == [
        "  s1p0  1 of 3 won  What is 37 + 29? Show your work.",
        "    + r0  #### 66",
        "    - r1  #### 56  (expected 66)",
        "    ? r2  ####\\u001b[2J ?",
    ]


def test_reason_proposer_flags_and_the_nearest_experience_are_shown() -> None:
    operation = Operation(
        "op1.1",
        "add",
        text="Carry: mind it well.",
        rationale="they\x1b[1m part here",
        proposer="m-7b",
        prompt_hash="abc123",
        flags=(Flag("similar", 0.9, "to E1"),),
    )
    heard = sat("q", operations=[operation])
    assert "  why       they\\u001b[1m part here" in heard.said
    assert "  proposed  by m-7b\n" in heard.said
    assert "  flag      similar (score 0.90): to E1" in heard.said
    assert "  similar   E1 0." in heard.said
    assert "Carry: mind it." in heard.said.split("  similar   ")[1]


def test_a_lesson_the_library_moved_under_is_flagged() -> None:
    session = FakeSession([FIRST])
    session.stale = 7
    assert "the library has moved to v7" in sat("q", session=session).said
    assert "has moved" not in sat("q").said


def test_nothing_open_asks_nothing() -> None:
    heard = sat(operations=[])
    assert (heard.prompts, heard.said, heard.decided) == ([], "", 0)


GROUP = UnparsedReply(
    id="s1p0",
    step=1,
    kind="extraction",
    reasons=("no JSON array was found in it.",),
    reply="I think.",
    lost=("x",),
)
LESSON = UnparsedReply(
    id="s1",
    step=1,
    kind="consolidation",
    reasons=("its JSON is\x1b[2J not valid.",),
    reply="[{",
    lost=("x",),
)
WHOLE = '[{"operation": "add", "experience": "Order: times first.", "reason": "r"}]'


def with_replies(*operations: Operation) -> FakeSession:
    session = FakeSession(operations)
    session.repairs = {GROUP.id: GROUP, LESSON.id: LESSON}
    return session


def test_replies_to_mend_come_after_the_operations() -> None:
    heard = sat("n", "n", "n", session=with_replies(FIRST))
    assert [prompt.split()[0] for prompt in heard.prompts] == ["op1.1", "s1p0", "s1"]
    assert "s1p0  extraction reply that could not be understood  (2 to mend)" in heard.said
    assert "wrong     no JSON array was found in it." in heard.said
    assert "\x1b" not in heard.said


def test_what_a_mended_reply_holds_is_asked_in_the_same_session() -> None:
    heard = sat(f"e {WHOLE}", "a", "n", session=with_replies())
    assert heard.session.mended == [("s1p0", WHOLE, "ann")]
    assert [prompt.split()[0] for prompt in heard.prompts] == ["s1p0", "op1.p0.1", "s1"]
    assert "s1p0: mended; it holds op1.p0.1" in heard.said
    assert "Order: times first." in heard.said
    assert "r (mended by ann)" in heard.said
    assert heard.actions == {"op1.p0.1": "approve"}


def test_a_reply_opens_in_the_editor_below_what_is_wrong_with_it() -> None:
    saved = f"#: This reply\n#:\n{WHOLE}\n"
    heard = sat("e", "q", session=with_replies(), saved=saved)
    opened = heard.usable_keys[0].split("\n")
    assert opened[-1] == "I think."
    assert all(line.startswith("#: ") for line in opened[:-1])
    assert "no JSON array was found in it." in heard.usable_keys[0]
    assert heard.session.mended == [("s1p0", WHOLE, "ann")], "the comments were taken out again"


def test_what_is_still_wrong_is_said_and_the_next_editor_holds_the_last_try() -> None:
    still = '[{"operation": "improve", "experience": "x"}]'
    heard = sat(f"e {still}", "e", "q", session=with_replies(), saved=None)
    assert "still not understood, so nothing of it is taken" in heard.said
    assert '"operation" must be one of add, modify, delete, keep' in heard.said
    assert heard.usable_keys[0].endswith(still), "nobody types it twice"
    assert "nothing was saved, so it is as it was" in heard.said
    assert heard.session.mended == []
    assert [prompt.split()[0] for prompt in heard.prompts] == ["s1p0"] * 3


def test_a_reply_is_dropped_with_a_reason() -> None:
    heard = sat("d", "d mere noise", "n", session=with_replies())
    assert "say why: d REASON" in heard.said
    assert heard.session.dropped == [("s1p0", "mere noise", "ann")]
    assert "s1p0: dropped; it stays counted as lost" in heard.said


def test_o_shows_the_whole_reply_its_prompt_and_its_rollouts_without_control_characters() -> None:
    heard = sat("o", "q", session=with_replies())
    assert "=== prompt [user]\nDraw a\\u001b[2J lesson." in heard.said
    assert "--- s1p0r0  reward 1" in heard.said
    assert "=== reply of a\\u001bmodel\nI think." in heard.said
    assert "\x1b" not in heard.said


def test_a_reply_that_someone_else_mended_meanwhile_is_told_with_what_was_typed() -> None:
    session = with_replies()
    session.outdated = [session.queue()]
    del session.repairs["s1p0"]
    heard = sat(f"e {WHOLE}", "q", session=session)
    assert "it was mended by bob already" in heard.said
    assert WHOLE in heard.said
    assert [prompt.split()[0] for prompt in heard.prompts] == ["s1p0", "s1"]


@pytest.mark.parametrize("key", ["", "?", "h"])
def test_what_no_reply_can_be_told_lists_what_it_can(key: str) -> None:
    heard = sat(key, "q", session=with_replies())
    assert "mend: change the reply" in heard.said
    assert heard.session.repairs.keys() == {"s1p0", "s1"}


def test_flags_are_shown_with_score_and_detail_beside_who_proposed_it() -> None:
    flags = (Flag("duplicate", 0.914, "of E3\x1b[2J"), Flag("rejected before", None, "by ann"))
    heard = sat("q", operations=[replace(FIRST, flags=flags)])
    assert "flag      duplicate (similarity 0.91): of E3\\u001b[2J" in heard.said
    assert "flag      rejected before: by ann" in heard.said
    assert "proposed  by m\n" in f"{heard.said}\n"


NEAR = Flag("duplicate", 0.91, "of E3")


def flagging(*flags: Flag, operation: Operation = FIRST) -> FakeSession:
    session = FakeSession([operation])
    session.flags = flags
    return session


def test_an_edit_is_linted_before_it_is_decided_and_stands_once_y_is_typed() -> None:
    session = flagging(NEAR)
    heard = sat("e Carry: mind it well.", "maybe", "y", session=session)
    assert "  flag      duplicate (similarity 0.91): of E3" in heard.said
    assert [p for p in heard.prompts if p.startswith("approve anyway?")] == [
        "approve anyway? y, e edit again, n ? "
    ] * 2
    assert heard.actions == {"op1.1": "edit"}
    assert session.linted == ["Carry: mind it well."]


@pytest.mark.parametrize("keys", [("n",), ()])
def test_a_flagged_edit_that_nobody_accepts_is_not_decided(keys: tuple[str, ...]) -> None:
    heard = sat("e Carry: mind it well.", *keys, session=flagging(NEAR))
    assert (heard.actions, heard.decided) == ({}, 0)
    assert "not decided" in heard.said
    assert heard.prompts[-1].startswith("op1.1"), "it is asked about again"


def test_a_flagged_edit_is_edited_again_on_the_line_or_from_what_was_written() -> None:
    session = flagging(NEAR)
    heard = sat("e one", "e two", "e", "y", session=session, saved="three")
    assert heard.usable_keys == ["two"]
    assert session.linted == ["one", "two", "three"]
    assert session.decisions["op1.1"].text == "three"


def test_a_merge_is_linted_before_it_is_decided_too() -> None:
    heard = sat("M E1 Carry: all of it.", "n", session=flagging(NEAR))
    assert (heard.actions, heard.session.linted) == ({}, ["Carry: all of it."])


def test_flags_that_the_operation_had_before_do_not_stop_an_edit() -> None:
    known = replace(FIRST, flags=(NEAR,))
    heard = sat("e Carry: mind it well.", session=flagging(NEAR, operation=known))
    assert heard.actions == {"op1.1": "edit"}


def test_an_edit_that_does_not_fit_is_told_and_nothing_is_decided() -> None:
    session = flagging()
    session.objection = "E1 already says exactly this"
    heard = sat("e Carry: mind it.", "e", "r no", session=session)
    told = "E1 already says exactly this: not decided; edit again, or r REASON"
    assert told in heard.said
    assert heard.usable_keys == ["Carry: mind it."], "the editor holds what was written"
    assert heard.actions == {"op1.1": "reject"}


def test_an_edit_of_what_was_decided_elsewhere_meanwhile_is_told() -> None:
    session = flagging()
    session.outdated = [session.queue()]
    session.gone.add("op1.1")
    heard = sat("e Carry: mind it well.", session=session)
    assert "it is not open in this run" in heard.said


def test_a_refusal_of_the_gate_is_told_with_one_rejected_only() -> None:
    session = flagging()
    session.refusal = Decision(
        "op1.1", "reject", reason="E1 already says exactly this", reviewer=GATE
    )
    heard = sat("a", session=session)
    assert (
        "op1.1 was approved, but does not fit: E1 already says exactly this (u takes that back)"
        in heard.said
    )


def test_what_was_left_for_later_still_counts_as_open() -> None:
    heard = sat("n", "q")
    assert "op1.1  ADD  (3 open)" in heard.said
    assert "op1.2  MODIFY E1  (3 open)" in heard.said


def test_a_decision_that_can_no_longer_be_taken_back_still_counts() -> None:
    session = FakeSession([FIRST, SECOND])
    session.commits_at_once = True
    assert sat("a", "u", "q", session=session).decided == 1


def test_a_decision_carries_the_seconds_since_its_operation_was_shown() -> None:
    # shown at 10, decided at 12.5; shown at 20, decided at 21
    heard = sat("a", "?", "r no", "q", clock=iter([10.0, 12.5, 20.0, 21.0, 30.0]))
    took = [decision.took_s for decision in heard.session.decisions.values()]
    assert took == [2.5, 1.0]


# -- parts, merges, notes and pins ----------------------------------------------------------------

PARTS = an_operation("modify", "E1", "Carry: keep the ten in mind always.", id="op1.2")
LONG = a_library("Carry: hold the ten in mind.", "Borrow: mind it too.")


def test_a_with_numbers_takes_these_parts_of_a_change_alone() -> None:
    def review(*keys: str) -> Heard:
        return sat(*keys, session=FakeSession([PARTS], LONG))

    heard = review("w", "a 3", "a x", "a 2")
    shown = heard.said.splitlines()
    assert "    1: hold -> keep" in shown and "    2: mind. -> mind always." in shown
    assert "before  Carry: hold the ten in mind." in shown
    assert "after   Carry: keep the ten in mind always." in shown
    assert "there is no part 3: it has parts 1 to 2" in heard.said
    assert "a 1 3 takes parts of a change that has several" in heard.said
    made = heard.session.decisions["op1.2"]
    assert (made.action, made.text) == ("edit", "Carry: hold the ten in mind always.")
    assert heard.session.linted == [made.text]
    assert review("a 2 1").actions == {"op1.2": "approve"}
    assert "a alone approves it" in sat("a 1", "q").said, "an addition has no parts"


def test_capital_m_merges_two_proposals_as_one_batch_that_u_takes_back() -> None:
    evidence = ("s1p0r0",)
    add = replace(FIRST, evidence=evidence)
    twin = an_operation("add", text="Order: times first.", id="op1.4", evidence=("s2p0r1",))
    session = FakeSession([add, twin])
    session.flags = (Flag("duplicate", 0.9, "has nearly the wording of op1.4: x"),)
    heard = sat("M op1.4 Order: both of it.", session=session)
    assert heard.session.batches == [2], "one record"
    rejected, kept = heard.session.decisions.values()
    assert (rejected.operation_id, rejected.reason) == ("op1.4", "merged into op1.1")
    assert (kept.text, kept.evidence) == ("Order: both of it.", ("s2p0r1",))
    assert "op1.4: rejected (merged into op1.1)" in heard.said
    assert "approve anyway?" not in heard.said, "that it is like the other is no news"
    undone = sat("M op1.4", "u", "q", session=FakeSession([add, twin, SECOND]), saved="both")
    assert undone.usable_keys == ["Order: multiply first.\nOrder: times first."]
    assert undone.actions == {}
    # A modify keeps its target, whichever of the two one stands on; two targets are no merge.
    into = sat("M op1.2 all of it", "q")
    assert (into.actions["op1.2"], into.actions["op1.1"]) == ("edit", "reject")
    other = an_operation("modify", "E2", "Borrow: x.", id="op1.5")
    refused = sat("M op1.5 all", "q", operations=[SECOND, other])
    assert refused.actions == {} and "E1 and E2 are two experiences" in refused.said


def test_a_note_is_shown_with_its_operation_and_goes_with_the_decision() -> None:
    session = FakeSession([FIRST, SECOND])
    session.notes["op1.2"] = "look at s1p0 again"
    heard = sat("m good, I think", "n", "N", "a", "a", session=session)
    assert heard.said.count("  note      good, I think") == 1, "as it is shown again"
    assert "  note      look at s1p0 again" in heard.said
    reasons = [decision.reason for decision in session.decisions.values()]
    assert reasons == ["good, I think", "look at s1p0 again"]
    assert "none was left for later" in sat("N", "q").said


def test_p_proposes_a_pin_which_is_asked_about_next() -> None:
    heard = sat("p", "p E1", "a", "q")
    assert "pin which? p ID, one of: E1, E2" in heard.said
    assert "op1.h1 is open: pin E1" in heard.said
    assert "  * Carry: mind it.\n    nothing may change or delete it" in heard.said
    assert heard.actions == {"op1.h1": "approve"}
    (pin,) = heard.session.proposed
    assert (pin.kind, pin.target) == ("pin", "E1")
    again = sat("p", "a", "q", operations=[SECOND], session=FakeSession([SECOND], pinned()))
    assert again.session.proposed[0].kind == "unpin"


def pinned() -> Library:
    return LIBRARY.commit([(an_operation("pin", "E1"), Decision("op1.1", "approve"))]).library


def test_a_letter_that_means_something_elsewhere_only_does_nothing_and_says_so() -> None:
    heard = sat("d not now", "v", "q", session=with_replies(FIRST))
    assert heard.actions == {} and heard.session.repairs
    assert "d does nothing here" in heard.said and "v does nothing here" in heard.said
    heard = sat("x mere noise", "r mere noise", "v", "q", session=with_replies())
    assert heard.session.dropped == []
    assert heard.said.count("does nothing here") == 3
