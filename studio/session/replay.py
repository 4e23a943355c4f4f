"""A session with a run as it went, played again: nothing in it is decided or written.

Events come from the journal and the text of tries from the records, both at the times they had.
Where nothing happened for longer than `MOST_WAIT_S`, as while a person thought, that is cut.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from shlex import quote
from typing import TypeVar

import orjson

from engines.core import codec, errors
from engines.core import events as ev
from engines.core.frozen import frozen
from engines.core.state.fold import fold
from engines.core.text.tool_text import transcript_text
from engines.core.types import CallKey, Message, rollout_id, try_id
from engines.record import journal, ledger, lines
from engines.record.run_dir import RunDir, Workspace
from studio.session import requests, session

SPEEDS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
MOST_WAIT_S = 3.0
"""Of the run's own time, between two things that happened."""
TICK_S = 0.1
"""Between two pieces of a text, as a run's process sends them."""

T = TypeVar("T")
Event = ev.DurableEvent | ev.TransientEvent


@frozen
class Span:
    """A reply or a tool's result: written from `began` to `ended`, up to so many characters."""

    began: float
    ended: float
    end: int  # characters of the try's text
    pieces: int  # tokens, which come evenly


@frozen
class TryText:
    """All that one try said, and when."""

    key: CallKey
    question: str
    text: str
    spans: tuple[Span, ...]

    def length_at(self, now: float) -> int:
        length = 0
        for span in self.spans:
            if now < span.ended:
                if now > span.began:
                    share = (now - span.began) / (span.ended - span.began)
                    length += (span.end - length) * int(share * span.pieces) // span.pieces
                break
            length = span.end
        return length


@frozen
class Moment:
    """What happens at a time: an event, or the begin of a try (`text` is that it will say)."""

    at: float
    event: Event
    text: TryText | None = None


class ReplaySession(session.Session):
    """One person watching; `sleep` is what time passes by. Used from one event loop."""

    living = True

    def __init__(
        self,
        workspace: Workspace,
        run: RunDir,
        speed: float = 1.0,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        super().__init__(run, "")
        self.speed = speed
        self.paused = False
        self._workspace, self._sleep = workspace, sleep
        self._going = asyncio.Event()
        self._going.set()
        self._one_step = False
        self._subscribed: frozenset[str] = frozenset()
        self._texts: dict[str, TryText] = {}  # of the tries under way
        self._sent: dict[str, int] = {}
        self._questions: dict[str, str] = {}  # by problem
        self._now = 0.0
        self._player: asyncio.Task[None] | None = None

    @property
    def label(self) -> str:
        over = "" if self.living else " over"
        return f"replay {self.speed:g}×{over or ' paused' * self.paused}"

    async def _begin(self) -> None:
        entries = await asyncio.to_thread(list, journal.read_journal(self.run.journal))
        if not self.closed:
            self._player = asyncio.create_task(self._play(entries))

    def subscribe(self, rollouts: Collection[str]) -> None:
        now = frozenset(rollouts)
        self._sent = {name: at for name, at in self._sent.items() if name in now}
        self._subscribed = now
        self._send_texts()

    async def take_control(self) -> None:
        raise self._refusal()

    async def release_lock(self) -> None:
        """None is held."""

    async def close(self) -> str:
        self.closed = True
        self._end_queue()
        if self._player is not None:
            self._player.cancel()
            await asyncio.gather(self._player, return_exceptions=True)
        return f"look at the run itself with: studio attach {quote(self.run.run)}"

    async def send(self, request: requests.Request[T]) -> T:
        """Answer what the replay itself is asked; the run is asked nothing."""
        return request.read_answer(await self._answer(request))

    async def _answer(self, request: requests.Request[T]) -> object:
        match request:
            case requests.Status():
                return requests.status_of(self.state)
            case requests.ReadQueue():
                return codec.to_dict(await self._review_queue())
            case requests.ReadQuestions():
                asked = self._questions.keys() & set(request.problems)
                return {name: self._questions[name] for name in asked}
            case (
                requests.Pause() | requests.Resume() | requests.Step() | requests.ChangeSpeed()
            ) if not self.living:
                text = "the replay is over: q leaves it"
            case requests.Pause() | requests.Resume():
                self._set_paused(not self.paused)
                text = f"{self.label}: s p {'goes on' if self.paused else 'pauses it'}"
            case requests.Step():
                self._one_step = True
                self._set_paused(False)
                text = f"{self.label}: up to the end of the step"
            case requests.ChangeSpeed(faster=faster):
                at = bisect_right(SPEEDS, self.speed)
                if not faster:
                    at = bisect_left(SPEEDS, self.speed) - 1
                self.speed = SPEEDS[min(max(at, 0), len(SPEEDS) - 1)]
                text = self.label
            case _:
                raise self._refusal()
        return {"told": text}

    async def _review_queue(self) -> requests.ReviewQueue:
        from engines.pipeline.gate.draft import Draft

        state = self.state
        folder = self._workspace.library(state.started.library if state.started else "")
        base = await asyncio.to_thread(folder.at, state.base_version)
        draft = Draft(state, base, self.run.run, None, None)
        return requests.ReviewQueue.of(state, draft.library)

    def _refusal(self) -> errors.ConflictError:
        return errors.ConflictError(
            f"replay of run {self.run.run}",
            "it shows what was, and changes nothing.",
            f"Open the run itself: studio attach {quote(self.run.run)}.",
        )

    def _set_paused(self, paused: bool) -> None:
        self.paused = paused
        if paused:
            self._going.clear()
        else:
            self._going.set()

    # -- playing -------------------------------------------------------------------------

    async def _play(self, entries: Sequence[journal.Entry]) -> None:
        cut_s, previous = 0.0, entries[0].at if entries else 0.0
        self._now = previous
        reason = "the replay is over"
        try:
            for segment in _split_steps(entries):
                moments = await asyncio.to_thread(read_moments, self.run, segment)
                moments, cut_s, previous = cut_waits(moments, cut_s, previous)
                for moment in moments:
                    await self._pass_time(moment.at)
                    self._tell(moment)
        except errors.StudioError as error:  # a damaged record
            reason = str(error)
        self.living = False
        self._enqueue(session.Disconnected(reason, ended=True))

    async def _pass_time(self, until: float) -> None:
        while self._now < until or self.paused:
            await self._going.wait()
            wait_s = min(TICK_S, max(0.0, until - self._now) / self.speed)
            if self._now + wait_s * self.speed <= self._now:  # less than a float tells apart
                break
            await self._sleep(wait_s)
            self._now += wait_s * self.speed
            self._send_texts()
        self._now = max(self._now, until)

    def _tell(self, moment: Moment) -> None:
        event = moment.event
        if moment.text is not None and isinstance(event, ev.RolloutStarted):
            self._questions[event.problem] = moment.text.question
            name = try_id(moment.text.key)
            self._texts[name] = moment.text
            self._sent.pop(name, None)
        elif isinstance(event, ev.RolloutFinished):
            self._send_texts()
            self._texts.pop(rollout_id(event.step, event.position, event.index), None)
        if isinstance(event, ev.DurableEvent):
            is_first = not self.state.events
            fold(self.state, event)
            if is_first:
                self._enqueue(session.SnapshotReceived(self.state.events))
        self._enqueue(session.EventReceived(event))
        if self._one_step and isinstance(event, ev.StepFinished):
            self._one_step = False
            self._set_paused(True)

    def _send_texts(self) -> None:
        pieces = []
        for name in self._subscribed & self._texts.keys():
            text, sent = self._texts[name], self._sent.get(name, -1)
            length = text.length_at(self._now)
            if length > sent:
                begin = max(sent, 0)
                pieces.append(session.TextPiece(name, begin, text.text[begin:length]))
                self._sent[name] = length
        if pieces:
            self._enqueue(session.TextReceived(tuple(pieces)))


def _split_steps(entries: Sequence[journal.Entry]) -> Iterator[Sequence[journal.Entry]]:
    """What came before the first step, and each step with what followed it."""
    starts = [at for at, entry in enumerate(entries) if isinstance(entry.event, ev.StepStarted)]
    for begin, end in zip([0, *starts], [*starts, len(entries)], strict=True):
        if begin < end:
            yield entries[begin:end]


def read_moments(run: RunDir, segment: Sequence[journal.Entry]) -> list[Moment]:
    """Return a part of the journal with what its rollouts said, in order of time. Blocks.

    Of a held-out evaluation only the result is played.
    """
    moments: list[Moment] = []
    finished = defaultdict[tuple[int, int, int], list[float]](list)
    steps: dict[int, tuple[str, ...]] = {}
    for entry in segment:
        event = entry.event
        if isinstance(event, ev.StepStarted):
            steps[event.step] = event.problems
        elif isinstance(event, ev.RolloutFinished):
            finished[event.step, event.position, event.index].append(entry.at)
        if not isinstance(event, ev.LessonProposed):
            moments.append(Moment(entry.at, event))
            continue
        began = moments[-1].at if moments else entry.at
        moments.append(Moment(began, ev.StageEntered(event.step, "consolidation")))
        moments.append(Moment(entry.at, event))
        moments.append(Moment(entry.at, ev.StageEntered(event.step, "review")))
    for step, problems in steps.items():
        for text in read_texts(run, step, finished):
            problem = problems[text.key.position]
            moments.append(Moment(text.spans[0].began, ev.RolloutStarted(text.key, problem), text))
    return sorted(moments, key=attrgetter("at"))


def read_texts(
    run: RunDir, step: int, finished: dict[tuple[int, int, int], list[float]]
) -> list[TryText]:
    """Return what the rollouts of a step said; one that was made again is another one."""
    tries = defaultdict[tuple[object, ...], list[ledger.Record]](list)

    def take(line: lines.StoredLine) -> None:
        record = codec.from_dict(ledger.Record, orjson.loads(line.body))
        key = record.key
        if (key.purpose == "rollout" or record.is_tool_result) and not record.lost:
            ends = finished.get((key.step, key.position, key.index), ())
            tries[key.position, key.index, bisect_left(ends, record.at)].append(record)

    file = run.records / ledger.record_file_name(CallKey("rollout", 0, step))
    lines.read(file, chained=False, visit=take)
    return [_as_text(records) for records in tries.values()]


def _as_text(records: Sequence[ledger.Record]) -> TryText:
    spans, text = list[Span](), ""
    messages: tuple[Message, ...] = ()
    first = next((r for r in records if not r.is_tool_result), records[0])
    for record in records:
        messages = record.extend(messages)
        text = transcript_text(messages)
        tokens = max(1, record.reply.usage.completion_tokens)
        pieces = 1 if record.is_tool_result else tokens  # a result comes whole
        began = record.at - max(0.0, record.elapsed_s)
        if spans:  # what ran beside another is shown behind it
            began = min(max(began, spans[-1].ended), record.at)
        spans.append(Span(began, record.at, len(text), pieces))
    question = next((m.content for m in first.messages if m.role == "user"), "")
    return TryText(replace(first.key, turn=0), question, text, tuple(spans))


def cut_waits(
    moments: Sequence[Moment], cut_s: float, previous: float
) -> tuple[list[Moment], float, float]:
    """The same with no long wait; `cut_s` is what was cut before them, `previous` their begin.

    Returns both for what follows.
    """
    busy = sorted(
        [(m.at, m.at) for m in moments]
        + [(s.began, s.ended) for m in moments if m.text is not None for s in m.text.spans]
    )
    breaks, cuts = list[float](), [cut_s]
    for began, ended in busy:
        if began - previous > MOST_WAIT_S:
            cut_s += began - previous - MOST_WAIT_S
            breaks.append(began)
            cuts.append(cut_s)
        previous = max(previous, ended)

    def moved(at: float) -> float:
        return at - cuts[bisect_right(breaks, at)]

    moved_moments = []
    for moment in moments:
        text = moment.text
        if text is not None:
            spans = (replace(s, began=moved(s.began), ended=moved(s.ended)) for s in text.spans)
            text = replace(text, spans=tuple(spans))
        moved_moments.append(replace(moment, at=moved(moment.at), text=text))
    return moved_moments, cut_s, previous
