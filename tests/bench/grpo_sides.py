"""The two sides of the GRPO bench, step by step: this engine, and TRL's trainer."""

from __future__ import annotations

import asyncio
import random
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from engines.core.library import Library
from engines.core.types import (
    Attempt,
    Completion,
    Group,
    Message,
    Problem,
    Rollout,
    Sampling,
    Turn,
    Verdict,
)
from engines.grpo.engine.grpo import GRPOEngine
from engines.grpo.settings import GRPOSettings
from engines.policies.hf_local.model import LocalModel
from engines.policies.hf_local.policy import HFLocal
from engines.policies.hf_local.settings import PROJECTIONS, LocalSettings, LoraSettings
from engines.policies.open import load_local
from tests.bench.grpo_models import Task

RANK, ALPHA = 8, 16
CLIP_LOW, CLIP_HIGH = 0.2, 0.28


@dataclass
class Took:
    """What some steps cost; sums, but for `reward`."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    sampling_cpu_s: float = 0.0
    tokens: int = 0
    reward: float = 0.0  # mean of the last step

    @property
    def training_cpu_s(self) -> float:
        return self.cpu_s - self.sampling_cpu_s


@contextmanager
def timed(took: Took) -> Iterator[None]:
    synchronise()
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    synchronise()
    took.wall_s += time.perf_counter() - wall
    took.cpu_s += time.process_time() - cpu


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Side(Protocol):
    def steps(self, count: int) -> Took: ...

    def adapter(self) -> dict[str, torch.Tensor]: ...

    def settings(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


def a_local(task: Task, seed: int, device: str) -> LocalModel:
    return load_local(
        LocalSettings(
            str(task.model),
            lora=LoraSettings(RANK, ALPHA),
            dtype="float32" if device == "cpu" else "bfloat16",
            device=device,
            threads=torch.get_num_threads(),
            seed=seed,
        ),
        lambda line: None,
    )


class Ours:
    """Decoding, rewards and the engine's update, without pipeline, journal and gate."""

    def __init__(self, task: Task, *, total: int, seed: int, device: str = "cpu") -> None:
        self.task, self._seed, self._step = task, seed, 0
        self.local = a_local(task, seed, device)
        self.policy = HFLocal(self.local, tell=lambda line: None)
        self._settings = GRPOSettings(
            learning_rate=task.learning_rate, clip_low=CLIP_LOW, clip_high=CLIP_HIGH
        )
        self.engine = GRPOEngine(
            self._settings, self.local, total_steps=total, seed=seed, tell=lambda line: None
        )
        self._batches = task.batches()
        self._runner = asyncio.Runner()

    def steps(self, count: int) -> Took:
        took = Took()
        with timed(took):
            for _ in range(count):
                self._runner.run(self._one(took))
        return took

    def adapter(self) -> dict[str, torch.Tensor]:
        return self.local.adapter_state()

    def settings(self) -> dict[str, Any]:
        return {
            "decoder": self.local.facts()["decoder"],
            "rows_decoded_at_once": self.local.max_batch,
            "sequences_per_forward": self._settings.micro_batch or "by length",
            "torch_threads": self._runner.run(asyncio.to_thread(torch.get_num_threads)),
        }

    def close(self) -> None:
        self._runner.run(self.policy.aclose())
        self._runner.close()

    async def _one(self, took: Took) -> None:
        self._step += 1
        problems, size = next(self._batches), self.task.group_size
        cpu = time.process_time()
        replies = await replies_to(
            self.policy, self.task, [q for q, _ in problems], size, (self._seed, self._step)
        )
        took.sampling_cpu_s += time.process_time() - cpu
        batch = [
            self._group(number, question, answer, replies[number * size : (number + 1) * size])
            for number, (question, answer) in enumerate(problems)
        ]
        took.tokens += sum(len(reply.token_ids) for reply in replies)
        rewards = [reward for group in batch for reward in group.rewards]
        took.reward = sum(rewards) / len(rewards)
        update = (await self.engine.consolidate(batch, (), Library("bench"))).update
        if update is not None:
            await self.engine.apply(update)

    def _group(self, position: int, question: str, answer: str, replies: list[Completion]) -> Group:
        rollouts = tuple(
            Rollout(
                attempt=Attempt((), reply.text, turns=(turn_of(reply),)),
                epoch=1,
                step=self._step,
                position=position,
                index=index,
                seed=0,
                policy_version=0,
                library_version=0,
            )
            for index, reply in enumerate(replies)
        )
        verdicts = tuple(Verdict(self.task.reward(reply.text, answer)) for reply in replies)
        problem = Problem(f"p{position}", question, answer)
        return Group(
            problem=problem,
            epoch=1,
            step=self._step,
            position=position,
            rollouts=rollouts,
            verdicts=verdicts,
        )


def turn_of(reply: Completion) -> Turn:
    return Turn(reply.prompt_ids, reply.token_ids, reply.logprobs, reply.finish)


async def replies_to(
    policy: HFLocal, task: Task, questions: list[str], size: int, seed: tuple[int, int]
) -> list[Completion]:
    """So many replies to each question, question by question."""
    chance = random.Random(f"{seed}")

    async def ask(question: str, number: int) -> Completion:
        sampling = Sampling(temperature=1.0, max_tokens=task.max_tokens, seed=number)
        return await policy.complete([Message("user", question)], sampling)

    with ExitStack() as tries:
        calls = []
        for question in questions:
            for _ in range(size):
                tries.enter_context(policy.join_batch())
                # A task takes over which try it belongs to at the moment it is made.
                calls.append(asyncio.create_task(ask(question, chance.getrandbits(60))))
        return list(await asyncio.gather(*calls))


def held_out(side: Side, task: Task, rows: tuple[tuple[str, str], ...], device: str) -> float:
    """Share of right answers under a side's weights, sampled the same way for both."""
    local = a_local(task, 0, device)
    local.load_adapter_state(side.adapter())

    async def rate() -> float:
        policy = HFLocal(local, tell=lambda line: None)
        replies = await replies_to(policy, task, [question for question, _ in rows], 1, (99, 0))
        await policy.aclose()
        right = (
            task.reward(reply.text, answer)
            for reply, (_, answer) in zip(replies, rows, strict=True)
        )
        return sum(right) / len(rows)

    return asyncio.run(rate())


@dataclass
class _Turns:
    """Hands the word to and fro between two threads, of which one runs at a time."""

    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    done: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    closing: bool = False
    error: BaseException | None = None


class Theirs:
    """TRL's own loop in a thread, held at the beginning of each optimiser step.

    Tried in November 2026 on a CPU and no faster: smaller micro-batches and a static cache;
    continuous batching took 30 times as long.

    Args:
        task: see there.
        total: steps of the whole run, which the schedule spans.
        seed: of adapter and sampling.
        device: "cpu" or "cuda".
        rows: sequences to a forward of training.
        more: other settings of its GRPOConfig.
    """

    def __init__(
        self,
        task: Task,
        *,
        total: int,
        seed: int,
        device: str = "cpu",
        rows: int | None = None,
        **more: Any,
    ) -> None:
        import transformers
        from datasets import Dataset, disable_progress_bars  # type: ignore[import-untyped]
        from peft import LoraConfig
        from transformers.trainer_callback import PrinterCallback
        from trl import GRPOConfig

        disable_progress_bars()
        transformers.utils.logging.set_verbosity_error()
        warnings.simplefilter("ignore")
        self.task, self._turns = task, _Turns()
        self._output = tempfile.TemporaryDirectory(prefix="trl-")
        rows = rows or task.rollouts
        self._how: dict[str, Any] = {
            "per_device_train_batch_size": rows,
            "gradient_accumulation_steps": task.rollouts // rows,
            "num_generations": task.group_size,
            "max_completion_length": task.max_tokens,
            "max_steps": total,
            "learning_rate": task.learning_rate,
            "lr_scheduler_type": "cosine",
            "max_grad_norm": 1.0,
            "weight_decay": 0.0,
            "loss_type": "dapo",
            "beta": 0.0,
            "epsilon": CLIP_LOW,
            "epsilon_high": CLIP_HIGH,
            "temperature": 1.0,
            "gradient_checkpointing": False,
            "disable_dropout": True,
            "use_cpu": device == "cpu",
            "bf16": device != "cpu",
            "logging_strategy": "no",
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "dataloader_pin_memory": False,
            "shuffle_dataset": False,
            "seed": seed,
            **more,
        }
        lora = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(PROJECTIONS))
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        batches, steps = task.batches(), range(total)
        rows_of_data = [
            {"prompt": [{"role": "user", "content": question}], "answer": answer}
            for _ in steps
            for question, answer in next(batches)
        ]
        self.trainer = _stepped(self._turns)(
            model=transformers.AutoModelForCausalLM.from_pretrained(task.model, dtype=dtype),
            reward_funcs=self._rewards,
            args=GRPOConfig(output_dir=self._output.name, **self._how),
            train_dataset=Dataset.from_list(rows_of_data),
            processing_class=transformers.AutoTokenizer.from_pretrained(
                task.model, padding_side="left"
            ),
            peft_config=lora,
        )
        self.trainer.remove_callback(PrinterCallback)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._wait()  # until its first step is about to begin

    def steps(self, count: int) -> Took:
        took = self.trainer.add_piece = Took()
        with timed(took):
            for _ in range(count):
                self._turns.go.release()
                self._wait()
        took.reward = self._reward
        return took

    def adapter(self) -> dict[str, torch.Tensor]:
        named = self.trainer.model.named_parameters()
        return {name: p.detach().clone() for name, p in named if p.requires_grad}

    def settings(self) -> dict[str, Any]:
        return {**self._how, "torch_threads": self.trainer.threads}

    def close(self) -> None:
        self._turns.closing = True
        self._turns.go.release()
        self._thread.join()
        self._output.cleanup()

    def _rewards(self, completions: list[Any], answer: list[str], **columns: Any) -> list[float]:
        texts = [completion[0]["content"] for completion in completions]
        rewards = [self.task.reward(*pair) for pair in zip(texts, answer, strict=True)]
        self._reward = sum(rewards) / len(rewards)
        return rewards

    def _run(self) -> None:
        try:
            self.trainer.train()
        except BaseException as error:  # shown by whoever waits, who would wait for ever
            self._turns.error = error
        self._turns.done.release()

    def _wait(self) -> None:
        self._turns.done.acquire()
        if self._turns.error is not None:
            raise self._turns.error


def _stepped(turns: _Turns) -> Any:
    """A GRPOTrainer that waits for its turn and measures its sampling."""
    from transformers import TrainerCallback
    from trl import GRPOTrainer

    class Held(TrainerCallback):  # type: ignore[misc]
        """A step runs from here to here; fetching its rows from memory is left out of it."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            turns.done.release()
            turns.go.acquire()
            if turns.closing:
                control.should_training_stop = True
                raise SystemExit

    class Stepped(GRPOTrainer):  # type: ignore[misc]
        add_piece = Took()
        threads = 0

        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            self.add_callback(Held())

        def _generate(self, prompts: list[Any]) -> Any:
            self.threads = torch.get_num_threads()
            cpu = time.process_time()
            made = super()._generate(prompts)
            self.add_piece.sampling_cpu_s += time.process_time() - cpu
            self.add_piece.tokens += sum(map(len, made[1]))
            return made

    return Stepped
