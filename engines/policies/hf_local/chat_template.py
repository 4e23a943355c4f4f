"""Messages as the ids a model is shown.

What a policy sampled is never tokenised from text again, as far as the template leaves it in
place.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engines.core.errors import CallFailed
from engines.core.types import Message
from engines.policies.chat.request import function_tools, message_fields

if TYPE_CHECKING:
    from engines.policies.hf_local.model import LocalModel

Tools = Sequence[Mapping[str, Any]]
_MARK = "\u27e6turn {number}\u27e7"
"""Stands for a sampled reply while the template is asked what it puts around it."""


def encode_prompt(
    local: "LocalModel", messages: Sequence[Message], tools: Tools = (), stop: Sequence[str] = ()
) -> list[int]:
    """The ids of the messages and of what invites the next reply.

    Where the template shows an earlier reply as it was (up to white space around it), its exact
    `token_ids` stand in its place; a template that rewrites the past, or an agent that reworded
    the reply, has the whole tokenised afresh, and that turn is then a sample of its own. Replies
    end before one of the `stop` strings, and their ids behind it.

    Raises CallFailed: the template refuses the messages.
    """
    tokenizer = local.tokenizer
    sampled = [
        (index, body)
        for index, message in enumerate(messages)
        if message.role == "assistant" and message.token_ids
        if (body := _sampled_text(local, message, stop)) is not None
    ]
    if sampled:
        exact = _encode_exactly(tokenizer, messages, sampled, tools, local.eos_ids)
        if exact is not None:
            return exact
    return _tokenise(tokenizer, _render_messages(tokenizer, messages, tools), first=True)


def template_note(tokenizer: Any) -> str | None:
    """What a person should know of the template before the first prompt."""
    if not tokenizer.chat_template:
        return (
            "The tokenizer has no chat template: messages are shown to the model one after "
            "another, each followed by a line break."
        )
    if not _can_take_system(tokenizer):
        return (
            "The chat template takes no system message: one is put before the first message "
            "of the user."
        )
    return None


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """What stands before the first of the stop strings."""
    cuts = [at for one in stop if (at := text.find(one)) >= 0]
    return text[: min(cuts)] if cuts else text


def _sampled_text(local: "LocalModel", message: Message, stop: Sequence[str]) -> str | None:
    """The reply's whole text; None where `content` is no longer what was sampled."""
    body = local.decode_text(message.token_ids)
    same = message.content.strip() in (body.strip(), cut_at_stop(body, stop).strip())
    return body if same else None


def _encode_exactly(
    tokenizer: Any,
    messages: Sequence[Message],
    sampled: Sequence[tuple[int, str]],
    tools: Tools,
    eos_ids: frozenset[int],
) -> list[int] | None:
    marked, real = list(messages), list(messages)
    for index, body in sampled:
        marked[index] = replace(messages[index], content=_MARK.format(number=index))
        real[index] = replace(messages[index], content=body)
    rest = _render_messages(tokenizer, marked, tools)
    parts = []
    for index, _ in sampled:
        part, found, rest = rest.partition(_MARK.format(number=index))
        if not found:
            return None
        parts.append(part)
    parts.append(rest)
    bodies = [body for _, body in sampled]
    if _render_messages(tokenizer, real, tools) not in (
        _interleave(parts, bodies),
        _interleave(parts, [body.strip() for body in bodies]),
    ):
        return None
    ids = _tokenise(tokenizer, parts[0], first=True)
    for (index, _), part in zip(sampled, parts[1:], strict=True):
        own = messages[index].token_ids
        ids += own
        if own[-1] not in eos_ids:
            ids += _tokenise(tokenizer, part)
            continue
        end = tokenizer.decode([own[-1]], skip_special_tokens=False)
        if not part.startswith(end):
            return None  # the template ends a turn otherwise than the policy did
        # With the end in front: some tokenizers begin a text with a space of their own.
        closed = _tokenise(tokenizer, part)
        ids += closed[1:] if closed[:1] == [own[-1]] else _tokenise(tokenizer, part[len(end) :])
    return ids


def _interleave(parts: Sequence[str], bodies: Sequence[str]) -> str:
    around = zip(parts, (*bodies, ""), strict=True)
    return "".join(part + body for part, body in around)


def _render_messages(tokenizer: Any, messages: Sequence[Message], tools: Tools) -> str:
    if not tokenizer.chat_template:
        return "".join(f"{message.content}\n" for message in messages)
    try:
        text: str = tokenizer.apply_chat_template(
            [message_fields(message, _parse_arguments) for message in messages],
            tools=function_tools(tools),
            tokenize=False,
            add_generation_prompt=True,
        )
        return text
    except Exception as error:  # jinja's errors, and whatever the template's filters raise
        if messages and messages[0].role == "system" and not _can_take_system(tokenizer):
            return _render_messages(tokenizer, _merge_system_message(messages), tools)
        reason = f"the chat template refuses the messages ({type(error).__name__}: {error})"
        raise CallFailed("failed", reason) from error


def _tokenise(tokenizer: Any, text: str, *, first: bool = False) -> list[int]:
    special = first and not tokenizer.chat_template  # a template writes them itself
    return list(tokenizer(text, add_special_tokens=special)["input_ids"])


def _can_take_system(tokenizer: Any) -> bool:
    probe = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    try:
        tokenizer.apply_chat_template(probe, tokenize=False, add_generation_prompt=True)
    except Exception:  # templates raise whatever they like
        return False
    return True


def _merge_system_message(messages: Sequence[Message]) -> list[Message]:
    """The system message in front of the first user message."""
    system, *others = messages
    for index, message in enumerate(others):
        if message.role == "user":
            text = f"{system.content}\n\n{message.content}"
            return [*others[:index], replace(message, content=text), *others[index + 1 :]]
    return [replace(system, role="user"), *others]


def _parse_arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
