"""The line of a demo run that says what to look at: pure, from the state, the page and the cursor.

Of any other run it says nothing. Keys are those of the table, so that a remap holds here too.
"""

import re
from collections.abc import Sequence

from engines.core import types as flags
from engines.core.state.run_state import RunState
from engines.core.text.similarity import tokens
from engines.core.types import Flag, Operation, UnparsedReply
from studio.tui.keymap import Key
from studio.tui.pages.review.view import Item

EXP_ID = "demo"
_RESEMBLES = re.compile(r" of (\S+): (.*)", re.DOTALL)


class DemoHints:
    """Sentences with the keys as they are bound."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = {key.id: key.key_text for key in keys}

    def __getitem__(self, id: str) -> str:
        return self._keys[id]

    def hint(self, state: RunState, page: str, cursor: str, *, types: bool = False) -> str:
        """What to look at now; `cursor` is the item under review, `types` whether text is edited.

        "" where nothing is to be said.
        """
        if not is_demo(state):
            return ""
        operation, reply = state.operations.get(cursor), state.repairs.get(cursor)
        if page == "review" and types:
            return self._edit_hint(operation, reply)
        if state.under_review and state.reviewer != "auto":
            return self._review_hint(state, page, operation, reply)
        if page == "review" and reply is not None:
            return self._reply_hint(reply)
        if state.ending:
            return self._end_hint(state)
        return self._stream_hint(state, page)

    def _stream_hint(self, state: RunState, page: str) -> str:
        total = state.started.steps_per_epoch * state.epochs if state.started else 0
        if state.status == "paused":
            return f"Paused: {self['loop.pause']} goes on."
        if state.step == 0:
            return "First the held-out problems are tried, to compare with at the end."
        if state.steps_finished == total or (state.current is not None and state.current.committed):
            return "Committed. After the last step the held-out problems are tried again."
        where = f"Step {state.step} of {total}"
        if state.under_review:
            return f"{where}: what is proposed is approved unseen, as --auto asks."
        if page == "live":
            return f"{where} streams. Where some win and some lose, a lesson is drawn."
        return f"{where} goes on: {self['global.live']} shows its rollouts."

    def _review_hint(
        self, state: RunState, page: str, op: Operation | None, reply: UnparsedReply | None
    ) -> str:
        left = len(state.undecided_operations)
        if left and page != "review":
            what = "proposal" if left == 1 else "proposals"
            return f"{left} {what} to decide: {self['global.review']} opens Review."
        if page == "review" and reply is not None:
            return self._reply_hint(reply, all_decided=not left)
        if left and op is not None and op in state.undecided_operations:
            safe = [one for one in state.undecided_operations if Item(one.id, one).is_safe]
            return self._operation_hint(op, len(safe) if op in safe else 0)
        if left:
            return f"{left} left: {self['review.next']} goes to the next."
        more = " A reply to mend stands last in Review." if state.repairs else ""
        return f"All is decided: {self['global.commit']} commits.{more}"

    def _operation_hint(self, op: Operation, safe: int) -> str:
        """Where it is `safe` itself, that many are."""
        approve, reject = self["review.approve"], self["review.reject"]
        found = {flag.name: flag for flag in op.flags}
        if flags.LEAK in found:
            edit = self["review.edit"]
            return f"{op.id} gives a problem away: {edit} takes that out, {reject} rejects it."
        if flags.DUPLICATE in found:
            return self._duplicate_hint(op, found[flags.DUPLICATE])
        what = {
            "add": f"is new ({self['review.evidence']} shows its rollouts)",
            "modify": f"rewords {op.target} (what is new is marked)",
            "delete": f"deletes {op.target} (see why, and who followed it)",
        }.get(op.kind, f"keeps {op.target}, for it proved itself")
        other = f"{self['review.safe']} all {safe} safe ones" if safe > 1 else f"{reject} rejects"
        return f"{op.id} {what}: {approve} approves, {other}."

    def _duplicate_hint(self, op: Operation, flag: Flag) -> str:
        found = _RESEMBLES.search(flag.detail)
        name, other = found.groups() if found else ("another", "")
        like = f"{op.id} resembles {name} ({flag.score or 0:.2f})"
        new = sorted(set(tokens(op.text)) - set(tokens(other)))
        if new and not other.endswith("…"):
            said = " ".join(new[:3])
            return f"{like} but says “{said}”: compare them ({self['review.reject']} rejects it)."
        return f"{like}: {self['review.reject']} rejects it, {self['review.merge']} merges the two."

    def _reply_hint(self, reply: UnparsedReply, *, all_decided: bool = False) -> str:
        said = f"{reply.id} was unreadable. {self['review.edit']} mends it{_missing_end(reply)}"
        return f"{said}, {self['global.commit']} commits." if all_decided else f"{said}."

    def _edit_hint(self, op: Operation | None, reply: UnparsedReply | None) -> str:
        if reply is not None:
            return f"Mend it{_missing_end(reply)}. The last line tells the keys."
        leaks = op is not None and any(flag.name == flags.LEAK for flag in op.flags)
        what = "Take the problem and its answer out" if leaks else "Change the wording"
        return f"{what}. The last line tells the keys."

    def _end_hint(self, state: RunState) -> str:
        if state.status != "finished":
            return "The run has ended early: studio demo goes on with it."
        diff, leave = self["global.diff"], self["global.detach"]
        rates = [f"{one.mean:.2f}" for one in state.evaluations if one.mean is not None]
        if len(rates) < 2:
            return f"Done. {diff} compares the library before and after, {leave} leaves."
        rise = f"held out {rates[0]} -> {rates[-1]}"  # no verdict: these are few problems
        if state.reviewer == "auto":
            return f"Done unseen: {rise}. Now decide yourself: studio demo."
        return f"Done: {rise}. {diff} says whether that is chance, {leave} leaves."


def is_demo(state: RunState | None) -> bool:
    started = state.started if state is not None else None
    return started is not None and started.rehearsal and started.exp_id == EXP_ID


def _missing_end(reply: UnparsedReply) -> str:
    """What the scripted reflector left away, where it is that."""
    text = reply.reply.strip()
    is_cut = text.startswith("[") and not text.endswith("}]")
    return " (its last }] is missing)" if is_cut else ""
