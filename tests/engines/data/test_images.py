"""Images of problems: found beside the data, sent as content parts, refused where nobody sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engines.agents.loops import SingleTurn
from engines.core.errors import CallFailed, DataError
from engines.core.types import Message, Sampling
from engines.data.dataset import read_problems
from engines.policies.chat.exchange import Dialect, chat_request
from engines.record.ledger import request_hash
from tests.support.builders import a_job, answering

PIXEL = b"\x89PNG\r\n\x1a\n"


def data(folder: Path, **fields: object) -> Path:
    (folder / "cat.png").write_bytes(PIXEL)
    path = folder / "data.jsonl"
    path.write_text(json.dumps({"question": "What is it?", "answer": "a cat", **fields}) + "\n")
    return path


@pytest.mark.parametrize("field", ["image", "images"])
async def test_an_image_beside_the_data_is_sent_as_a_content_part(
    tmp_path: Path, field: str
) -> None:
    (problem,) = read_problems(data(tmp_path, **{field: "cat.png"}))
    policy = answering("A: a cat")
    await SingleTurn("Look.", Sampling()).attempt(a_job(problem), policy)
    body = chat_request("m", policy.requests[0], Sampling(), None, Dialect())
    assert body["messages"][1]["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
    ]


def test_addresses_are_sent_as_they_are(tmp_path: Path) -> None:
    images = ["https://example.com/cat.png", "data:image/png;base64,AA=="]
    (problem,) = read_problems(data(tmp_path, images=images))
    assert problem.images == tuple(images)


def test_an_image_that_is_not_there_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.jsonl:1: .*names dog.png, and there is no such"):
        read_problems(data(tmp_path, images=["cat.png", "dog.png"]))


def test_what_is_no_text_is_left_as_it_is(tmp_path: Path) -> None:
    (problem,) = read_problems(data(tmp_path, image={"bytes": "3 bytes"}))
    assert problem.images == ()


def test_an_image_that_was_taken_away_fails_the_call_and_names_the_file() -> None:
    message = Message("user", "What?", images=("/nowhere/cat.png",))
    with pytest.raises(CallFailed, match=r"the image /nowhere/cat\.png cannot be read"):
        chat_request("m", (message,), Sampling(), None, Dialect())


def test_a_request_with_images_is_another_request() -> None:
    bare = Message("user", "What?")
    shown = Message("user", "What?", images=("https://example.com/cat.png",))
    assert request_hash(1, "m", (shown,), Sampling()) != request_hash(1, "m", (bare,), Sampling())
