"""The line of a demo run that says what to look at: pure, from the state, the page and the cursor.

Of any other run it says nothing. Keys are those of the table, so that a remap holds here too.
"""

from collections.abc import Sequence

from engines.core import types as flags
from engines.core.state.run_state import RunState
from engines.core.types import Operation
from studio.render.words import count_text
from studio.tui.keymap import Key

EXP_ID = "demo"


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
        if page == "review" and types:
            return "Change the wording. The last line tells the keys."
        if page == "review" and cursor in state.repairs:
            return f"{cursor} was unreadable. {self['review.edit']} mends it."
        if state.under_review and state.reviewer != "auto":
            return self._review_hint(state, page, state.operations.get(cursor))
        if state.ending:
            return self._end_hint(state)
        if state.status == "paused":
            return f"Paused: {self['loop.pause']} goes on."
        if state.step == 0:
            return "First the held-out problems are tried, to compare with at the end."
        if state.under_review:
            return f"Step {state.step}: what is proposed is approved unseen, as --auto asks."
        return f"Step {state.step}: where some rollouts win and some lose, a lesson is drawn."

    def _review_hint(self, state: RunState, page: str, op: Operation | None) -> str:
        left = len(state.undecided_operations)
        if not left:
            return f"All is decided: {self['global.commit']} commits."
        if page != "review":
            what = count_text(left, "proposal")
            return f"{what} to decide: {self['global.review']} opens Review."
        if op is None or op not in state.undecided_operations:
            return f"{left} left: {self['review.next']} goes to the next."
        approve, reject = self["review.approve"], self["review.reject"]
        found = {flag.name: flag for flag in op.flags}
        if flags.LEAK in found:
            edit = self["review.edit"]
            return f"{op.id} gives a problem away: {edit} takes that out, {reject} rejects it."
        if flags.DUPLICATE in found:
            merge = self["review.merge"]
            return f"{op.id} resembles another: {reject} rejects it, {merge} merges the two."
        what = {
            "add": f"is new ({self['review.evidence']} shows its rollouts)",
            "modify": f"rewords {op.target} (what is new is marked)",
            "delete": f"deletes {op.target} (see why, and who followed it)",
        }.get(op.kind, f"keeps {op.target}, for it proved itself")
        return f"{op.id} {what}: {approve} approves, {reject} rejects."

    def _end_hint(self, state: RunState) -> str:
        if state.status != "finished":
            return "The run has ended early: studio demo goes on with it."
        diff, leave = self["global.diff"], self["global.detach"]
        rates = [f"{found.mean:.2f}" for found in state.evaluations if found.mean is not None]
        if state.reviewer == "auto":
            return f"Done unseen: held out {' -> '.join(rates)}. Now decide yourself: studio demo."
        # No verdict: these are few problems.
        rise = f"held out {' -> '.join(rates)}"
        return f"Done: {rise}. {diff} says whether that is chance, {leave} leaves."


def is_demo(state: RunState | None) -> bool:
    started = state.started if state is not None else None
    return started is not None and started.rehearsal and started.exp_id == EXP_ID
