"""`studio presets list`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.run_studio import studio


def test_every_preset_is_listed_with_what_it_is(workspace: Path) -> None:
    rows = json.loads(studio("presets", "list", "--json", workspace=workspace).stdout)
    assert {"rehearsal", "replay", "api"} <= {row["name"] for row in rows}
    assert all(row["about"].endswith(".") for row in rows)  # a sentence, not cut


def test_the_table_fits_80_columns_without_losing_a_word(workspace: Path) -> None:
    rows = json.loads(studio("presets", "list", "--json", workspace=workspace).stdout)
    table = studio("presets", "list", workspace=workspace).stdout
    assert max(len(line) for line in table.splitlines()) <= 80
    for row in rows:
        assert set(row["about"].split()) <= set(table.split())
