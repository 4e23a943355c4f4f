"""The end of a run as its text and as its JSON, from a folded state."""

from __future__ import annotations

import json
from typing import Any

from engines.core.codec import dumps
from engines.core.library import Library
from engines.core.state.run_state import RunState
from studio.facts.run import end_facts, run_facts
from studio.render.json import json_data
from studio.render.run_lines import summary_text


def end_text(state: RunState, before: Library, after: Library, place: str = "") -> str:
    return summary_text(end_facts(run_facts(state, places={"folder": place}), before, after))


def end_json(state: RunState, before: Library, after: Library) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(dumps(json_data(end_facts(run_facts(state), before, after))))
    return data
