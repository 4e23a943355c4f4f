"""The policy: calls are encoded, decoded in batches and given back as completions."""

import secrets
import sys
from collections.abc import Callable, Sequence

from engines.core.errors import CallFailed
from engines.core.protocols import OnText
from engines.core.types import Completion, Message, Sampling, Usage
from engines.policies.hf_local.batching import Batch, BatchQueue, WaitingCall
from engines.policies.hf_local.chat_template import cut_at_stop, encode_prompt
from engines.policies.hf_local.decoding import DecodedReply, DecodeHooks, DecodeRequest, decode
from engines.policies.hf_local.model import LocalModel, empty_gpu_cache, is_out_of_memory

MOST_TOKENS = 1024
"""Tokens of a reply whose sampling names no limit, as far as the window allows."""
_REMEMBERED = 512
"""Encoded prompts that are kept: those of a group are the same."""

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
        tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
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
        # Its prompts as ids, by messages and stop strings; the oldest first.
        self._encoded: dict[tuple[tuple[Message, ...], tuple[str, ...]], tuple[int, ...]] = {}

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        """Answer once, together with the calls that wait at the same time.

        Raises CallFailed: the prompt is longer than the window ("too long"), or decoding failed.
        """
        if any(message.images for message in messages):
            raise CallFailed("image", f"{self.name} reads no images")
        prompt = self._encode_messages(messages, sampling)
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

    def _encode_messages(self, messages: Sequence[Message], sampling: Sampling) -> tuple[int, ...]:
        def encode() -> tuple[int, ...]:
            return tuple(encode_prompt(self.local, messages, sampling.tools, sampling.stop))

        if sampling.tools:
            return encode()
        key = (tuple(messages), sampling.stop)
        if key not in self._encoded:
            self._encoded[key] = encode()
            if len(self._encoded) > _REMEMBERED:
                del self._encoded[next(iter(self._encoded))]
        return self._encoded[key]

    def _decode_batch(
        self, calls: Sequence[WaitingCall], batch: Batch
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
        self, calls: Sequence[WaitingCall], batch: Batch
    ) -> list[DecodedReply] | None:
        try:
            return self._decode_once(calls, batch)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        empty_gpu_cache()
        return None

    def _decode_once(self, calls: Sequence[WaitingCall], batch: Batch) -> list[DecodedReply]:
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
