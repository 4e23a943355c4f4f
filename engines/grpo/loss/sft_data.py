"""Demonstrations as ids: what was asked, how it is to be answered, and which tokens are learnt.

Only those of replies are, never those of prompts. Nothing here loads torch; what was sampled is
taken as the ids it was, and text is tokenised as the chat template would have it sampled.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.agents.loops import prompt_messages
from engines.core.codec import JsonMapping, from_dict
from engines.core.errors import CallFailed, DataError
from engines.core.frozen import frozen
from engines.core.types import Message, Problem, Tell
from engines.data.dataset import combine_errors
from engines.data.fields import ANSWER_FIELDS, USUAL, field_text, get_field, parse_question
from engines.data.rows import json_kind, open_table
from engines.data.source import DataSource
from engines.policies.tool_use import as_text

if TYPE_CHECKING:
    from engines.policies.hf_local.model import LocalModel

REPLY_FIELDS = ("completion", "response", "solution", "output", "answer")
"""Where a row's demonstration stands, the fullest first: an answer alone teaches no way to it."""
_MARK = "\u27e6reply\u27e7"
_SHAPES = 'Write {"question": …, "solution": …} or {"messages": [{"role": …, "content": …}]}.'


@frozen
class Demonstration:
    """What was asked and how it is to be answered.

    `messages` lead up to the reply; without any, the question alone does, after the agent's
    instructions. `token_ids` are those that a policy of the same tokenizer sampled.
    """

    question: str
    reply: str
    messages: tuple[Message, ...] = ()
    token_ids: tuple[int, ...] = ()
    answer: str | None = None
    source: str = ""
    place: str = ""


@frozen
class Example:
    """Ids of one reply after its prompt; only `token_ids` are learnt."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    place: str = ""

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.token_ids)


def read_demonstrations(
    source: DataSource | Path, *, limit: int | None = None
) -> tuple[Demonstration, ...]:
    """Read rows of question and reply, or of chat messages, `limit` of them at most.

    Each reply is a demonstration: a conversation of several turns gives several, since a chat
    template may rewrite what came before.

    Raises DataError: rows of another shape, by file and line, or no row at all.
    """
    table = open_table(source)
    found: list[Demonstration] = []
    bad: list[tuple[int, DataError]] = []
    for number, place, row in islice(table.rows, limit):
        try:
            if isinstance(row, DataError):
                raise row
            found += _parse_demonstrations(place, row)
        except DataError as error:
            bad.append((number, error))
    if bad:
        raise combine_errors(bad, table.unit)
    if not found:
        raise DataError(str(source), "There is no demonstration in it.", _SHAPES)
    return tuple(found)


def demonstration_row(shown: Demonstration) -> dict[str, Any]:
    """A demonstration as a row of a data set; `parse_demonstration` reads it back."""
    row: dict[str, Any] = {"question": shown.question}
    if shown.answer is not None:
        row["answer"] = shown.answer
    row["solution"] = shown.reply
    if shown.token_ids:
        row["completion_ids"] = list(shown.token_ids)
    if shown.messages:
        row["messages"] = [
            {"role": one.role, "content": one.content}
            | ({"token_ids": list(one.token_ids)} if one.token_ids else {})
            for one in shown.messages
        ]
    if shown.source:
        row["source"] = shown.source
    return row


def parse_demonstration(problem: Problem, place: str = "") -> Demonstration:
    """The demonstration that a problem carries, as `demonstration_row` writes it.

    Raises DataError: it carries none, or one of another shape.
    """
    place = place or f"problem {problem.id}"
    meta = problem.meta
    reply = field_text(place, "solution", meta["solution"]) if meta.get("solution") else ""
    try:
        ids = _parse_ids(meta.get("completion_ids"))
    except ValueError as error:
        raise DataError(place, f"{error}.", _SHAPES) from error
    if not (reply or ids):
        raise DataError(
            place,
            f"no demonstration stands beside its question; the fields are: question, "
            f"{', '.join(meta) or 'answer'}.",
            'Add a field "solution", or name the file in sft.data and use '
            "studio train RUNFILE --stage sft, which reads other shapes too.",
        )
    messages = _parse_messages(place, meta["messages"]) if meta.get("messages") else ()
    return Demonstration(
        problem.question, reply, messages, ids, problem.answer, problem.source, place
    )


def tokenise_demonstration(
    local: "LocalModel", shown: Demonstration, instructions: str = ""
) -> Example:
    """Tokenise a demonstration as the policy would have been shown it and would have replied.

    Its exact ids are taken where it has some. `instructions` are the system prompt where it has
    no messages of its own.

    Raises DataError: the chat template refuses the messages, or an id is none of the model's.
    """
    from engines.policies.hf_local.policy import encode_prompt

    messages = shown.messages or prompt_messages(instructions, "", shown.question)
    try:
        prompt_ids = tuple(encode_prompt(local, messages))
    except CallFailed as error:
        raise DataError(shown.place, f"{error}.", "Mend its messages, or take it out.") from error
    ids = shown.token_ids or reply_ids(local, shown.reply)
    example = Example(prompt_ids, ids, shown.place)
    most = max((*example.prompt_ids, *example.token_ids), default=0)
    size = local.base.get_input_embeddings().num_embeddings
    if most >= size:
        raise DataError(
            shown.place,
            f"its token {most} is none of the {size} that {local.name} knows.",
            "Take the ids out: the text is tokenised then.",
        )
    return example


def fits_window(local: "LocalModel", example: Example) -> bool:
    """Whether something can be learnt from an example within the model's window."""
    return 1 < len(example) <= local.window


def check_problems(
    local: "LocalModel",
    problems: Sequence[Problem],
    instructions: str,
    place: str,
    tell: Tell,
) -> None:
    """Look at the demonstrations of a run, from the file `place`, before anything is trained.

    Raises DataError: one is missing or cannot be tokenised, or none fits the model's window.
    """
    long = 0
    for number, problem in enumerate(problems, start=1):
        shown = parse_demonstration(problem, f"{place}, row {number}")
        long += not fits_window(local, tokenise_demonstration(local, shown, instructions))
    if long == len(problems):
        raise DataError(
            place,
            f"none of its {long} demonstrations fits the model's window of {local.window} tokens.",
            "Take shorter demonstrations or another model.",
        )
    if long:
        tell(
            f"{long} of {len(problems)} demonstrations are left out: they are longer than the "
            f"model's window of {local.window} tokens"
        )


def without_guidance(messages: Sequence[Message], guidance: str) -> tuple[Message, ...]:
    """The same prompt as it would be without a library; without guidance it is itself.

    Raises ValueError: the guidance does not stand in the system message.
    """
    if not guidance:
        return tuple(messages)
    for index, message in enumerate(messages):
        if message.role == "system" and guidance in message.content:
            before, _, after = message.content.rpartition(guidance)
            left = "\n\n".join(part for part in (before.strip(), after.strip()) if part)
            kept = (replace(message, content=left),) if left else ()
            return (*messages[:index], *kept, *messages[index + 1 :])
    raise ValueError("the guidance does not stand in any system message")


def reply_ids(local: "LocalModel", text: str) -> tuple[int, ...]:
    """A reply as the policy would sample it: what the template opens it with, text, its end."""
    opening, end = _reply_affixes(local)
    ids = local.tokenizer(opening + text.strip(), add_special_tokens=False)["input_ids"]
    return (*ids, *end)


def _parse_demonstrations(place: str, row: JsonMapping) -> Iterable[Demonstration]:
    if "messages" in row:
        messages = _parse_messages(place, row["messages"])
        if any(message.tool_calls for message in messages):
            # As a model whose weights are here is asked, and calls.
            messages = as_text(messages, _parse_tools(place, row.get("tools") or []))
        replies = [n for n, m in enumerate(messages) if m.role == "assistant" and m.content.strip()]
        if not replies:
            raise DataError(
                place, '"messages" holds no reply of an assistant.', "Add it, or take it out."
            )
        asked = (message.content.strip() for message in messages if message.role == "user")
        question = next(filter(None, asked), "")
        if replies[0] == 0 or not question:
            raise DataError(
                place,
                '"messages" holds a reply without anything that was asked.',
                "Put a message of the user before it.",
            )
        return [
            Demonstration(question, messages[n].content, messages[:n], place=place) for n in replies
        ]
    name = next((name for name in REPLY_FIELDS if get_field(row, name) is not None), None)
    try:
        _, question = parse_question(place, row, USUAL)
    except DataError as error:
        raise DataError(place, error.cause, _SHAPES) from error
    reply = field_text(place, name, get_field(row, name)) if name else ""
    if not reply:
        raise DataError(place, f"it shows no reply; the fields are: {', '.join(row)}.", _SHAPES)
    answers = (get_field(row, name) for name in ANSWER_FIELDS)
    answer = next((value for value in answers if isinstance(value, str | int | float)), None)
    source = row.get("source")
    return [
        Demonstration(
            question,
            reply,
            answer=None if answer is None else str(answer),
            source=source if isinstance(source, str) else "",
            place=place,
        )
    ]


def _parse_messages(place: str, rows: Any) -> tuple[Message, ...]:
    if not isinstance(rows, list):
        raise DataError(place, f'"messages" holds {json_kind(rows)}, not a list.', _SHAPES)
    messages: list[Message] = []
    for row in rows:
        try:
            messages.append(_parse_message(row))
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise DataError(
                place, f"message {len(messages) + 1} has not the form of one ({error}).", _SHAPES
            ) from error
    return tuple(messages)


def _parse_message(row: JsonMapping) -> Message:
    """A message with its tool calls, as OpenAI's protocol writes them."""
    calls = [{"id": "", **call, **call["function"]} for call in row.get("tool_calls") or ()]
    content = row.get("content")
    return from_dict(
        Message,
        {
            "role": row["role"],
            "content": "" if content is None and calls else content,
            "tool_calls": [
                {name: call[name] for name in ("id", "name", "arguments")} for call in calls
            ],
            "tool_call_id": row.get("tool_call_id") or "",
            "token_ids": _parse_ids(row.get("token_ids")),
        },
    )


def _parse_tools(place: str, value: Any) -> list[JsonMapping]:
    """The functions that were offered, with name, description and parameters."""
    try:
        given = [tool.get("function", tool) for tool in value]
        return [{"description": "", "parameters": {}, "name": one["name"], **one} for one in given]
    except (TypeError, KeyError, AttributeError) as error:
        raise DataError(place, '"tools" holds what is no function.', _SHAPES) from error


def _parse_ids(value: Any) -> tuple[int, ...]:
    """Token ids; () where there are none. Raises ValueError: it is no list of them."""
    ids = [] if value is None else value
    if not isinstance(ids, list) or any(type(one) is not int or one < 0 for one in ids):
        raise ValueError("its token ids are no list of whole numbers")
    return tuple(ids)


def _reply_affixes(local: "LocalModel") -> tuple[str, tuple[int, ...]]:
    """What a template puts between the invitation and a reply, and the ids that end a reply."""
    tokenizer = local.tokenizer
    end = tuple(sorted(local.eos_ids)[:1])
    if tokenizer.eos_token_id is not None:
        end = (tokenizer.eos_token_id,)
    if not tokenizer.chat_template:
        return "", end
    asked = [{"role": "user", "content": "?"}]
    invited: str = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    whole: str = tokenizer.apply_chat_template(
        [*asked, {"role": "assistant", "content": _MARK}], tokenize=False
    )
    before, found, after = whole.partition(_MARK)
    if not found:
        return "", end
    closing = tokenizer(after.lstrip(), add_special_tokens=False)["input_ids"]
    if closing and closing[0] in local.eos_ids:
        end = (closing[0],)
    opening = before.removeprefix(invited) if before.startswith(invited) else ""
    return opening, end
