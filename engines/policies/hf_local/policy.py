"""The policy: calls are collected, encoded, decoded in batches and given back as completions."""

import asyncio
import contextlib
import json
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from engines.core.errors import CallFailed
from engines.core.protocols import OnText
from engines.core.types import NO_USAGE, Completion, Message, Sampling, Tell, Usage
from engines.policies.chat.exchange import function_tools, message_fields
from engines.policies.hf_local.decoding import DecodedReply, DecodeHooks, DecodeRequest, decode
from engines.policies.hf_local.model import LocalModel, empty_gpu_cache, is_out_of_memory

MOST_TOKENS = 1024
"""Tokens of a reply whose sampling names no limit, as far as the window allows."""

Decoding = Callable[[LocalModel, Sequence[DecodeRequest], DecodeHooks | None], list[DecodedReply]]
"""`decoding.decode`, or what stands in for it."""


class HFLocal:
    """Answers with a model of this process.

    A reply with `top_p` 1 carries the ids and log-probabilities that training needs. One
    drawn with `top_p` below 1 carries neither: scores of a cut distribution are not the
    policy's. A temperature that is left open is 1.

    The model may be trained between batches by whoever holds its lock. `name` is the `hf:...` it
    was opened with, where that is not the model's path; `tell` receives a line when memory ran
    out.
    """

    def __init__(
        self,
        local: LocalModel,
        *,
        name: str | None = None,
        tell: Tell = lambda line: print(line, file=sys.stderr),
    ) -> None:
        self.local = local
        self.name = name or local.name
        self._tell = tell
        self.decode: Decoding = decode  # another takes its place where several ranks share the rows
        # Whether anybody reads text that is still growing, asked while a batch is decoded. Where
        # nobody does, `on_text` receives a reply once, as a whole.
        self.is_watched: Callable[[], bool] = lambda: True
        self._batches = BatchQueue(self._decode_batch, lambda: local.max_batch)
        self.join_batch, self.leave_batch = self._batches.join_batch, self._batches.leave_batch

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        """Answer once, together with the calls that wait at the same time.

        Raises CallFailed: the prompt is longer than the window ("too long"), or decoding failed.
        """
        if any(message.images for message in messages):
            raise CallFailed("image", f"{self.name} reads no images")
        prompt = tuple(encode_prompt(self.local, messages, sampling.tools, sampling.stop))
        room = self.local.window - len(prompt)
        if room < 1:
            raise CallFailed(
                "too long",
                f"the prompt has {len(prompt)} tokens, and the model has {self.local.window} "
                "positions",
            )
        row = _decode_request(prompt, sampling, room)
        drawn, shown = await self._batches.ask(row, on_text)
        text = reply_text(self.local, row, drawn)
        if on_text is not None and text.startswith(shown) and text != shown:
            on_text(text[len(shown) :])
        exact = row.top_p >= 1
        return Completion(
            text,
            finish=drawn.finish,
            usage=Usage(len(prompt), len(drawn.token_ids), 1, 0.0),
            model=self.name,
            token_ids=tuple(drawn.token_ids) if exact else (),
            logprobs=tuple(drawn.logprobs) if exact else (),
            prompt_ids=prompt if exact else (),
        )

    async def ping(self) -> None:
        """A loaded model answers."""

    async def aclose(self) -> None:
        await self._batches.aclose()

    def _decode_batch(
        self, calls: "Sequence[WaitingCall]", batch: "Batch"
    ) -> Sequence[DecodedReply | CallFailed]:
        """In the thread: decode, in two halves where memory does not suffice for all."""
        with self.local.lock:
            replies = self._decode_if_it_fits(calls, batch)
            if replies is not None:
                return replies
            self.local.max_batch = max(1, len(calls) // 2)
            self._tell(
                f"Memory ran out with {len(calls)} rows; from now on {self.local.max_batch} are "
                "decoded at a time."
            )
            found: list[DecodedReply | CallFailed] = []
            for begin in range(0, len(calls), self.local.max_batch):
                half = calls[begin : begin + self.local.max_batch]
                replies = self._decode_if_it_fits(half, batch)
                reason = f"memory ran out, also with {len(half)} rows at a time"
                found += replies or [CallFailed("failed", reason) for _ in half]
            return found

    def _decode_if_it_fits(
        self, calls: "Sequence[WaitingCall]", batch: "Batch"
    ) -> list[DecodedReply] | None:
        try:
            return self._decode_once(calls, batch)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        empty_gpu_cache()
        return None

    def _decode_once(self, calls: "Sequence[WaitingCall]", batch: "Batch") -> list[DecodedReply]:
        local, given = self.local, [""] * len(calls)

        def show(grown: Sequence[tuple[int, DecodedReply]]) -> None:
            if not self.is_watched():  # decoding all texts anew costs 4 % of a step of `hf:tiny`
                return
            pieces = []
            for index, drawn in grown:
                text = safe_text(local, calls[index].row, drawn)
                if len(text) > len(given[index]) and text.startswith(given[index]):
                    pieces.append((calls[index], text[len(given[index]) :]))
                    given[index] = text
            if pieces:
                batch.show(pieces)

        watch = DecodeHooks(
            stop=lambda: batch.stopped,
            dropped=lambda index: calls[index].gone,
            streamed=frozenset(i for i, call in enumerate(calls) if call.on_text is not None),
            shown=show,
        )
        return self.decode(local, [call.row for call in calls], watch)


def reply_text(local: LocalModel, row: DecodeRequest, drawn: DecodedReply) -> str:
    """What a reply says, without the end of its turn and from a stop string on."""
    return cut_at_stop(local.decode_text(drawn.token_ids), row.stop)


def safe_text(local: LocalModel, row: DecodeRequest, drawn: DecodedReply) -> str:
    """As much of an unfinished reply as later tokens cannot take back."""
    text = reply_text(local, row, drawn)
    if not drawn.finish:
        held = max(map(len, row.stop), default=1) - 1
        text = text[: len(text) - held]
    return text.rstrip("\ufffd")  # bytes of a character that is not whole yet


def _decode_request(prompt: tuple[int, ...], sampling: Sampling, room: int) -> DecodeRequest:
    wanted = sampling.max_tokens if sampling.max_tokens is not None else MOST_TOKENS
    return DecodeRequest(
        prompt,
        seed=sampling.seed if sampling.seed is not None else secrets.randbits(63),
        max_tokens=max(1, min(wanted, room)),
        temperature=1.0 if sampling.temperature is None else sampling.temperature,
        top_p=1.0 if sampling.top_p is None else sampling.top_p,
        stop=tuple(stop for stop in sampling.stop if stop),
    )


_ROUNDS = 2
"""Turns of the loop that are waited, so that tasks started together are together."""


@dataclass(eq=False, slots=True)
class WaitingCall:
    """One reply that somebody waits for. `gone` is read by the decoding thread."""

    row: DecodeRequest
    on_text: OnText | None
    future: asyncio.Future[DecodedReply]
    owner: object | None
    gone: bool = False
    begun: bool = False  # its batch is being decoded
    shown: str = ""  # what on_text has received


Decode = Callable[[Sequence[WaitingCall], "Batch"], Sequence[DecodedReply | CallFailed]]
"""Runs in the thread: replies aligned with the calls; raises `DecodingCancelled` if told to."""


@dataclass(eq=False, slots=True)
class Batch:
    """What the thread sees of the loop it works for."""

    loop: asyncio.AbstractEventLoop
    stopped: bool = False

    def show(self, pieces: Sequence[tuple[WaitingCall, str]]) -> None:
        """Hand out new text, from the thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            self.loop.call_soon_threadsafe(_forward_pieces, pieces)


@dataclass(eq=False)
class BatchQueue:
    """The queue.

    With tries attending a batch begins once each of them waits in it, so that its members
    follow from the run and not from timing. A call from outside any try never waits for them:
    a try could be waiting for it. Calls are ordered by prompt and seed for the same reason.
    """

    decode: Decode
    limit: Callable[[], int]  # rows decoded at a time, asked before each batch
    waiting: list[WaitingCall] = field(default_factory=list)
    _attending: set[object] = field(default_factory=set)
    _waiting_outside: Counter[object] = field(default_factory=Counter)  # tries of `_attending`
    _try: ContextVar[object | None] = field(
        default_factory=lambda: ContextVar("try", default=None)
    )  # which try a call belongs to; tasks that the try starts inherit it
    _serving: asyncio.Task[None] | None = None
    _scheduled: bool = False
    _batch: Batch | None = None
    _thread: ThreadPoolExecutor | None = None

    @contextlib.contextmanager
    def join_batch(self) -> Iterator[None]:
        """One try under way; inside another it is a part of that one.

        Enter it for all tries of a step before the first of them can wait.
        """
        if self._try.get() is not None:
            yield
            return
        joined = object()
        self._attending.add(joined)
        before = self._try.set(joined)
        try:
            yield
        finally:
            self._try.reset(before)
            self._attending.remove(joined)
            self._schedule()

    @contextlib.contextmanager
    def leave_batch(self) -> Iterator[None]:
        """The try at hand waits, for money say, until others are through: no batch waits for it."""
        current = self._try.get()
        if current is None:
            yield
            return
        self._waiting_outside[current] += 1
        self._schedule()
        try:
            yield
        finally:
            self._waiting_outside[current] -= 1
            self._waiting_outside += Counter()  # forgets those at 0

    async def ask(self, row: DecodeRequest, on_text: OnText | None) -> tuple[DecodedReply, str]:
        """The reply to one row, and what of its text was shown.

        Raises:
            CallFailed: it could not be decoded, or the policy was closed meanwhile.
            CancelledError: with `NO_USAGE` where it was cancelled before its batch began.
        """
        call = WaitingCall(
            row, on_text, asyncio.get_running_loop().create_future(), self._try.get()
        )
        self.waiting.append(call)
        self._schedule()
        try:
            return await call.future, call.shown
        except asyncio.CancelledError:
            if call.begun:
                raise
            raise asyncio.CancelledError(NO_USAGE) from None
        finally:
            call.gone = True
            if call in self.waiting:
                self.waiting.remove(call)
                self._schedule()

    async def aclose(self) -> None:
        """Stop what is being decoded; whoever waits gets a `CallFailed`."""
        left, self.waiting = self.waiting, []
        _fail(left, "the policy was closed")
        if self._batch is not None:
            self._batch.stopped = True
        if self._serving is not None:
            await asyncio.gather(self._serving, return_exceptions=True)
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _schedule(self) -> None:
        if self._scheduled or self._serving is not None or not self.waiting:
            return
        self._scheduled = True
        loop = asyncio.get_running_loop()
        loop.call_soon(self._start_after_rounds, loop, _ROUNDS - 1)

    def _start_after_rounds(self, loop: asyncio.AbstractEventLoop, rounds: int) -> None:
        if rounds:
            loop.call_soon(self._start_after_rounds, loop, rounds - 1)
            return
        self._scheduled = False
        released = self._take_ready_calls()
        if released:
            self._serving = loop.create_task(self._decode_batches(loop, released))

    def _take_ready_calls(self) -> list[WaitingCall]:
        tries = {call.owner for call in self.waiting}
        complete = all(one in tries or one in self._waiting_outside for one in self._attending)
        released = [call for call in self.waiting if complete or call.owner is None]
        self.waiting = [] if complete else [c for c in self.waiting if c.owner is not None]
        return sorted(released, key=lambda call: (call.row.prompt_ids, call.row.seed))

    async def _decode_batches(
        self, loop: asyncio.AbstractEventLoop, released: list[WaitingCall]
    ) -> None:
        self._thread = self._thread or ThreadPoolExecutor(1, "decode")
        self._batch = batch = Batch(loop)
        calls: list[WaitingCall] = []
        try:
            while released and not batch.stopped:
                limit = self.limit()
                calls, released = released[:limit], released[limit:]
                calls = [call for call in calls if not call.gone]
                if not calls:
                    continue
                for call in calls:
                    call.begun = True
                try:
                    drawn = await loop.run_in_executor(self._thread, self.decode, calls, batch)
                except Exception as error:  # torch raises whatever it likes; nobody may hang
                    raised = f"decoding raised {type(error).__name__}: {error}"
                    _fail(calls, "the policy was closed" if batch.stopped else raised)
                else:
                    _deliver(calls, drawn)
                    del drawn
        finally:
            batch.stopped = True  # also when this task is cancelled: the thread ends soon
            _fail([*calls, *released], "the policy was closed")
            self._batch = self._serving = None
            self._schedule()


def _deliver(calls: Sequence[WaitingCall], drawn: Sequence[DecodedReply | CallFailed]) -> None:
    for call, reply in zip(calls, drawn, strict=True):
        if call.future.done():
            continue
        if isinstance(reply, CallFailed):
            call.future.set_exception(reply)
        else:
            call.future.set_result(reply)


def _fail(calls: Sequence[WaitingCall], reason: str) -> None:
    for call in calls:
        if not call.future.done():
            call.future.set_exception(CallFailed("failed", reason))


def _forward_pieces(pieces: Sequence[tuple[WaitingCall, str]]) -> None:
    for call, piece in pieces:
        if call.gone or call.future.done() or call.on_text is None:
            continue
        call.shown += piece
        try:
            call.on_text(piece)
        except Exception as error:  # the listener's own: its call ends with it
            call.gone = True
            call.future.set_exception(error)


Tools = Sequence[Mapping[str, Any]]
_MARK = "\u27e6turn {number}\u27e7"
"""Stands for a sampled reply while the template is asked what it puts around it."""


def encode_prompt(
    local: LocalModel, messages: Sequence[Message], tools: Tools = (), stop: Sequence[str] = ()
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


def _sampled_text(local: LocalModel, message: Message, stop: Sequence[str]) -> str | None:
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
        raise CallFailed(
            "failed", f"the chat template refuses the messages ({type(error).__name__}: {error})"
        ) from error


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
