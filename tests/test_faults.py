"""The table of faults still fits the code and the tests that it names; see `tests.faults`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fault_table import FAULTS, Fault

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_put_in_and_has_tests_to_notice_it(fault: Fault) -> None:
    assert (ROOT / fault.file).read_text("utf-8").count(fault.text) == 1
    assert fault.becomes != fault.text
    for named in fault.tests:
        file, _, test = named.partition("::")
        name = re.escape(test.partition("[")[0])
        assert re.search(rf"^(async )?def {name}", (ROOT / file).read_text("utf-8"), re.MULTILINE)
