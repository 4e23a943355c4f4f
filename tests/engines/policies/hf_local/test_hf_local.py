"""The local policy: settings, prompts as ids, batches, replies and what goes wrong."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.core.errors import CallFailed, PolicyError, reported_usage
from engines.core.types import NO_USAGE, Completion, Message, Sampling, ToolCall
from engines.policies.hf_local import building
from engines.policies.hf_local.decoding import DecodedReply, DecodeHooks, DecodeRequest
from engines.policies.hf_local.model import LocalModel, adapter_mismatch_text
from engines.policies.hf_local.policy import HFLocal, encode_prompt, safe_text
from engines.policies.hf_local.settings import LocalSettings, LoraSettings
from engines.policies.open import load_local, open_policy
from tests.engines.grpo.models import TEMPLATE, a_folder, a_local, train


def asking(text: str = "What is 2?") -> tuple[Message, ...]:
    return (Message("user", text),)


def seeded(seed: int = 1, **settings: Any) -> Sampling:
    return replace(Sampling(temperature=1.0, max_tokens=12, seed=seed), **settings)


async def group(policy: HFLocal, size: int = 4, **settings: Any) -> list[Completion]:
    calls = (policy.complete(asking(), seeded(seed, **settings)) for seed in range(size))
    return await asyncio.gather(*calls)


def batch_sizes(policy: HFLocal) -> list[int]:
    """Rows of each batch from now on; decoding goes on as ever."""
    sizes: list[int] = []
    decode = policy.decode

    def counted(
        local: LocalModel, rows: Sequence[DecodeRequest], watch: DecodeHooks | None
    ) -> list[DecodedReply]:
        sizes.append(len(rows))
        return decode(local, rows, watch)

    policy.decode = counted
    return sizes


# Loading


def test_what_is_loaded_is_told_and_stated(tmp_path: Path) -> None:
    told: list[str] = []
    settings = LocalSettings(str(a_folder(tmp_path)), lora=LoraSettings(rank=4), threads=1)
    local = load_local(settings, told.append)
    # Rank 4 on q, o (64 + 64), k, v (64 + 32), gate, up, down (64 + 96), in two layers:
    # 4 · 2 · (2 · 128 + 2 · 96 + 3 · 160) = 7,424.
    assert told == ["trainable 7,424 of 110,528 parameters (6.7 %)"]
    facts = local.facts()
    assert (facts["trainable"], facts["threads"], facts["device"]) == (7424, 1, "cpu")
    assert facts["decoder"] == "fused"
    assert json.loads(json.dumps(facts)) == facts
    assert not local.model.training
    assert local.pad_id == local.tokenizer.eos_token_id == 0
    assert local.tokenizer.padding_side == "left"
    assert local.window == 256


def test_a_model_without_adapter_learns_nothing_and_says_nothing_of_it(tmp_path: Path) -> None:
    told: list[str] = []
    local = load_local(LocalSettings(str(a_folder(tmp_path)), threads=1), told.append)
    assert local.trainable_parameters() == []
    assert not [line for line in told if "trainable" in line]


@pytest.mark.parametrize("missing", ["torch", "transformers", "peft"])
def test_a_missing_package_is_one_line_that_says_what_to_install(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "engines.policies.open.find_spec", lambda name: None if name == missing else found(name)
    )
    with pytest.raises(PolicyError, match=rf"{missing} cannot be imported.*\[grpo\]"):
        load_local(LocalSettings(str(tmp_path), lora=LoraSettings()))


def test_peft_is_not_asked_for_without_an_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "engines.policies.open.find_spec", lambda name: None if name == "peft" else found(name)
    )
    assert a_local(tmp_path).facts()["trainable"] == 0


def without(folder: Path, *names: str) -> Path:
    for path in folder.iterdir():
        if any(path.name.startswith(name) for name in names):
            path.unlink()
    return folder


def test_a_folder_that_is_no_model_is_refused_with_the_reason(tmp_path: Path) -> None:
    whole = a_folder(tmp_path / "whole")
    cases = {
        tmp_path / "nowhere" / "at" / "all": "no folder",
        whole / "config.json": "a file",
        tmp_path: "no config.json",
        without(a_folder(tmp_path / "wordless"), "tokenizer"): "backend tokenizer",
        without(a_folder(tmp_path / "weightless"), "model."): "cannot load it",
    }
    for folder, reason in cases.items():
        with pytest.raises(PolicyError, match=reason) as refused:
            load_local(LocalSettings(str(folder)))
        assert refused.value.move


def test_weights_that_are_missing_are_never_made_up(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = 3
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(PolicyError, match=r"lack the weight model\.layers\.2.* and 12 more"):
        load_local(LocalSettings(str(folder)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["LlamaForSequenceClassification"]}, "no causal language model"),
        ({"model_type": "vit", "architectures": ["ViTModel"]}, "no causal language model"),
        ({"auto_map": {"AutoConfig": "own.Config"}, "model_type": "own"}, "never run"),
    ],
)
def test_another_kind_of_model_is_refused(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    folder = a_folder(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(PolicyError, match=reason):
        load_local(LocalSettings(str(folder)))


def test_a_name_that_the_hub_does_not_give_is_a_clear_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PolicyError, match="no folder 'nobody/nothing' here, and the hub"):
        load_local(LocalSettings("nobody/nothing"))


def test_a_hub_that_cannot_be_reached_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    rests: list[float] = []
    monkeypatch.setattr(time, "sleep", rests.append)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(PolicyError, match="hub gave none of that name"):
        load_local(LocalSettings("nobody/nothing"))
    assert rests == []


def test_what_was_downloaded_before_is_loaded_without_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    cached = tmp_path / "cache" / "models--nobody--tiny"
    (cached / "snapshots").mkdir(parents=True)
    a_folder(tmp_path / "made").rename(cached / "snapshots" / "abc")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    rests: list[float] = []
    monkeypatch.setattr(time, "sleep", rests.append)
    local = load_local(LocalSettings("nobody/tiny", threads=1), lambda _: None)
    assert local.window == 256
    assert rests == []  # nothing was asked of the hub a second time


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"adapter": Path("nowhere")}, "no folder"),
        ({"quantise": "nf4"}, "bitsandbytes|GPU"),
    ],
)
def test_settings_that_cannot_be_met_are_refused(
    settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(PolicyError, match=reason):
        load_local(LocalSettings(str(a_folder(tmp_path)), **settings))


def test_an_adapter_is_saved_loaded_and_refused_where_it_does_not_fit(tmp_path: Path) -> None:
    local = a_local(tmp_path / "model", trained=True)
    local.model.save_pretrained(tmp_path / "adapter")
    for lora in (None, LoraSettings()):
        settings = LocalSettings(
            str(tmp_path / "model"), adapter=tmp_path / "adapter", lora=lora, threads=1
        )
        again = load_local(settings)
        assert bool(again.trainable_parameters()) == (lora is not None)
        assert again.weights_digest() == local.weights_digest()
    a_folder(tmp_path / "wider", hidden_size=32)
    with pytest.raises(PolicyError, match="does not fit the model"):
        load_local(LocalSettings(str(tmp_path / "wider"), adapter=tmp_path / "adapter"))


def test_a_new_adapter_follows_from_its_seed_and_changes_nothing_yet(tmp_path: Path) -> None:
    torch.manual_seed(5)
    made = [a_local(tmp_path, lora=LoraSettings(), settings={"seed": seed}) for seed in (3, 3, 4)]
    digests = [local.weights_digest() for local in made]
    assert digests[0] == digests[1] != digests[2]
    state = made[0].adapter_state()
    assert all(not value.any() for name, value in state.items() if "lora_B" in name)
    assert list(state) == sorted(state)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    a_local(tmp_path, lora=LoraSettings())
    assert torch.rand(1) == expected  # nobody else's chance was used up


def test_adapter_state_is_a_copy_that_is_put_back_whole_or_not_at_all(tmp_path: Path) -> None:
    local = a_local(tmp_path, trained=True)
    before, digest = local.adapter_state(), local.weights_digest()
    train(local, seed=9)
    changed = local.weights_digest()
    assert changed != digest
    name = next(iter(before))
    with pytest.raises(ValueError, match="does not fit"):
        local.load_adapter_state({**before, name: torch.zeros(1, 1)})
    with pytest.raises(ValueError, match="does not fit"):
        local.load_adapter_state({**before, "other": torch.zeros(1)})
    assert local.weights_digest() == changed
    local.load_adapter_state(before)
    assert local.weights_digest() == digest


def test_the_base_digest_is_of_the_weights(tmp_path: Path) -> None:
    one, same = a_local(tmp_path / "a"), a_local(tmp_path / "b")
    other = a_local(tmp_path / "c", seed=1)
    assert one.base_digest == same.base_digest != other.base_digest


def test_more_threads_are_taken_only_on_a_quiet_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu, before = torch.device("cpu"), torch.get_num_threads()
    monkeypatch.setattr(building.os, "sched_getaffinity", lambda _: range(2), raising=False)
    try:
        for load, chosen in ((0.2, 2), (1.0, 1), (9.0, 1)):
            monkeypatch.setattr(building.os, "getloadavg", lambda by=load: (by, 0.0, 0.0))
            assert building.choose_threads(None, cpu) == chosen == torch.get_num_threads()
        assert building.choose_threads(2, cpu) == 2 == torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


# Prompts


def ids_of(local: LocalModel, text: str) -> list[int]:
    return list(local.tokenizer(text, add_special_tokens=False)["input_ids"])


def test_a_prompt_is_the_chat_template_with_an_invitation(tmp_path: Path) -> None:
    local = a_local(tmp_path)
    made = encode_prompt(local, (Message("system", "Add."), *asking("1 + 1")))
    assert made == ids_of(local, "<|system|>Add.<|end|><|user|>1 + 1<|end|><|assistant|>")


def test_without_a_template_lines_are_shown_and_that_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    folder = a_folder(tmp_path, template=None)
    local = load_local(LocalSettings(str(folder), threads=1), told.append)
    assert any("no chat template" in line for line in told)
    assert encode_prompt(local, asking("1 + 1")) == ids_of(local, "1 + 1\n")


def test_a_template_without_system_message_has_it_before_the_question(tmp_path: Path) -> None:
    told: list[str] = []
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    folder = a_folder(tmp_path, template=template + TEMPLATE)
    local = load_local(LocalSettings(str(folder), threads=1), told.append)
    assert any("takes no system message" in line for line in told)
    made = encode_prompt(local, (Message("system", "Add."), *asking("1 + 1")))
    assert made == ids_of(local, "<|user|>Add.\n\n1 + 1<|end|><|assistant|>")


def test_messages_that_a_template_refuses_fail_their_call(tmp_path: Path) -> None:
    template = "{% if messages | length > 1 %}{{ raise_exception('one only') }}{% endif %}"
    local = a_local(tmp_path, template=template + TEMPLATE)
    with pytest.raises(CallFailed, match=r"template refuses the messages .*one only"):
        encode_prompt(local, (*asking(), Message("assistant", "2"), *asking()))


def test_tools_reach_a_template_that_takes_them(tmp_path: Path) -> None:
    template = "{% if tools %}{{ tools[0].function.name }}<|end|>{% endif %}" + TEMPLATE
    local = a_local(tmp_path, template=template)
    made = encode_prompt(local, asking("1"), ({"name": "add", "parameters": {}},))
    assert made == ids_of(local, "add<|end|><|user|>1<|end|><|assistant|>")
    called = Message("assistant", "", tool_calls=(ToolCall("c", "add", '{"a": 1}'),))
    assert encode_prompt(local, (*asking("1"), called))  # its arguments are given as values


def two_turns(said: str, ids: Sequence[int]) -> tuple[Message, ...]:
    reply = Message("assistant", said, token_ids=tuple(ids))
    return (*asking("Why"), reply, Message("user", "And the rest?"))


def test_an_earlier_reply_keeps_its_very_ids_whatever_its_canonical_ones_are(
    tmp_path: Path,
) -> None:
    local = a_local(tmp_path)
    end = local.tokenizer.eos_token_id
    letters = [i for letter in "the" for i in ids_of(local, letter)]
    assert letters != ids_of(local, "the") and len(letters) == 3
    before = encode_prompt(local, asking("Why"))
    after = ids_of(local, "<|user|>And the rest?<|end|><|assistant|>")
    ended = encode_prompt(local, two_turns("the", [*letters, end]))
    assert ended == [*before, *letters, end, *after]
    cut = encode_prompt(local, two_turns("the", letters))  # the template closes the turn
    assert cut == [*before, *letters, end, *after]


def test_a_reply_cut_at_a_stop_string_stands_as_it_was_sampled(tmp_path: Path) -> None:
    local = a_local(tmp_path)
    sampled = ids_of(local, " 4 = STOP")
    made = encode_prompt(local, two_turns(" 4 = ", sampled), stop=["STOP"])
    assert local.tokenizer.decode(made).count("STOP") == 1


@pytest.mark.parametrize("kept", [" 4", "", "5"])
def test_a_reply_that_the_agent_shortened_is_shown_as_the_agent_left_it(
    tmp_path: Path, kept: str
) -> None:
    local = a_local(tmp_path)
    made = encode_prompt(local, two_turns(kept, ids_of(local, " 4 and then 7")), stop=["STOP"])
    assert made == encode_prompt(local, two_turns(kept, []))
    assert "then" not in local.tokenizer.decode(made)


def test_an_adapter_that_is_not_as_asked_for_is_told(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": 8, "lora_alpha": 16}')
    assert adapter_mismatch_text(tmp_path, LoraSettings(8, 16)) == ""
    assert adapter_mismatch_text(tmp_path, LoraSettings(4, 16)) == "rank 8 instead of 4"


def test_a_third_turn_begins_with_all_that_was_shown_and_said(tmp_path: Path) -> None:
    local = a_local(tmp_path)
    messages, shown = list(asking("Why")), []
    for said in ([70, 71, 0], [33, 75], [99, 0]):
        prompt = encode_prompt(local, messages)
        assert prompt[: len(shown)] == shown
        shown = [*prompt, *said]
        text = local.tokenizer.decode(said, skip_special_tokens=True)
        messages += [Message("assistant", text, token_ids=tuple(said)), Message("user", "Go on")]
    assert encode_prompt(local, messages)[: len(shown)] == shown


def test_a_template_that_trims_a_reply_still_leaves_its_ids(tmp_path: Path) -> None:
    local = a_local(tmp_path, template=TEMPLATE.replace("m.content", "m.content | trim"))
    sampled = [*ids_of(local, " is 4 "), 0]
    made = encode_prompt(local, two_turns(" is 4 ", sampled))
    before = encode_prompt(local, asking("Why"))
    assert made[len(before) : len(before) + len(sampled)] == sampled


def test_a_rewritten_past_is_tokenised_afresh(tmp_path: Path) -> None:
    drops_thoughts = TEMPLATE.replace("m.content", "m.content.split('#')[-1]")
    local = a_local(tmp_path, template=drops_thoughts)
    sampled = [*ids_of(local, "hm#th"), *ids_of(local, "e"), 0]
    made = encode_prompt(local, two_turns("hm#the", sampled))
    assert made == ids_of(
        local, "<|user|>Why<|end|><|assistant|>the<|end|><|user|>And the rest?<|end|><|assistant|>"
    )
    edited = encode_prompt(a_local(tmp_path / "b"), two_turns("other", sampled))
    assert local.tokenizer.decode(edited).count("other") == 1  # an agent rewrote the reply


# Replies


async def test_a_completion_carries_what_training_needs(tmp_path: Path) -> None:
    local = a_local(tmp_path, trained=True)
    policy = HFLocal(local, name="hf:tiny")
    (made,) = await group(policy, 1, temperature=0.8)
    assert policy.name == made.model == "hf:tiny"
    assert list(made.prompt_ids) == encode_prompt(local, asking())
    assert len(made.token_ids) == len(made.logprobs) == made.usage.completion_tokens == 12
    assert made.usage.prompt_tokens == len(made.prompt_ids)
    assert (made.usage.calls, made.usage.cost_usd, made.finish) == (1, 0.0, "length")
    ids = torch.tensor([[*made.prompt_ids, *made.token_ids]])
    logits = local.model(input_ids=ids).logits[0, len(made.prompt_ids) - 1 : -1]
    expected = (logits / 0.8).log_softmax(-1).gather(1, torch.tensor([made.token_ids]).T)[:, 0]
    assert list(made.logprobs) == pytest.approx(expected.tolist(), abs=1e-4)
    assert made.as_message().token_ids == made.token_ids
    await policy.aclose()


async def test_scores_of_a_cut_distribution_are_not_given_out(tmp_path: Path) -> None:
    policy = HFLocal(a_local(tmp_path))
    calls = (policy.complete(asking(), seeded(1, top_p=p)) for p in (0.5, 1.0, None))
    cut, whole, unset = await asyncio.gather(*calls)
    assert (cut.token_ids, cut.logprobs, cut.prompt_ids) == ((), (), ())
    assert cut.usage.completion_tokens == 12
    assert cut.text != whole.text == unset.text
    assert whole.logprobs
    await policy.aclose()


def test_what_could_still_become_a_stop_string_is_not_streamed(tmp_path: Path) -> None:
    local = a_local(tmp_path)
    row = DecodeRequest((8,), seed=1, max_tokens=60, stop=("STOP", "END"))
    growing = DecodedReply(ids_of(local, " 4 is STO"))
    assert safe_text(local, row, growing) == " 4 is "
    assert safe_text(local, row, DecodedReply(ids_of(local, " 4 is STOX"))) == " 4 is S"
    assert safe_text(local, row, DecodedReply(growing.token_ids, finish="length")) == " 4 is STO"


async def test_text_that_nobody_watches_comes_once_and_whole(tmp_path: Path) -> None:
    policy = HFLocal(a_local(tmp_path))
    watched = False
    policy.is_watched = lambda: watched
    sampling = seeded(3, max_tokens=60)
    pieces: list[str] = []
    reply = await policy.complete(asking(), sampling, pieces.append)
    assert pieces == [reply.text]
    watched, grown = True, list[str]()
    again = await policy.complete(asking(), sampling, grown.append)
    await policy.aclose()
    assert (len(grown) > 1, "".join(grown)) == (True, again.text)
    assert again.text == reply.text


async def test_a_stop_string_ends_the_text_before_it_and_the_ids_after_it(tmp_path: Path) -> None:
    policy = HFLocal(a_local(tmp_path))
    whole = await group(policy, 8, max_tokens=60)
    texts = [one.text.replace("\ufffd", "") for one in whole]
    index = next(i for i, text in enumerate(texts) if len(text) > 8)
    plain = next(s for s in whole[index].text[5:] if s.isascii() and s.isprintable())
    pieces: list[str] = []
    sampling = seeded(index, max_tokens=60, stop=(plain, "never said"))
    made = await policy.complete(asking(), sampling, pieces.append)
    assert made.finish == "stop"
    assert made.text == whole[index].text[: whole[index].text.index(plain)] == "".join(pieces)
    count = len(made.token_ids)
    assert made.token_ids == whole[index].token_ids[:count]
    decoded = policy.local.tokenizer.decode
    assert plain in decoded(made.token_ids) and plain not in decoded(made.token_ids[:-1])
    await policy.aclose()


async def test_text_streams_in_pieces_that_are_the_reply(tmp_path: Path) -> None:
    policy = HFLocal(a_local(tmp_path))
    pieces: list[str] = []
    made = await policy.complete(asking(), seeded(3, max_tokens=60), pieces.append)
    assert "".join(pieces) == made.text
    assert len(pieces) > 3
    assert all(pieces)
    await policy.aclose()


async def test_a_prompt_beyond_the_window_fails_and_a_long_reply_is_cut_at_it(
    tmp_path: Path,
) -> None:
    policy = HFLocal(a_local(tmp_path))
    with pytest.raises(CallFailed, match=r"too long: the prompt has 5.. tokens.*256 positions"):
        await policy.complete(asking("7" * 500), seeded())
    for limit in (None, 500):
        made = await policy.complete(asking("7" * 240), seeded(4, max_tokens=limit))
        assert len(made.prompt_ids) + len(made.token_ids) <= 256
        assert made.finish == "length" or made.token_ids[-1] == 0
    await policy.aclose()


# Batches


async def test_calls_that_are_made_together_are_decoded_together(tmp_path: Path) -> None:
    policy = HFLocal(a_local(tmp_path))
    sizes = batch_sizes(policy)
    assert len({one.token_ids for one in await group(policy, 7)}) == 7
    assert sizes == [7]
    await policy.aclose()


async def test_a_batch_waits_for_every_try_under_way_and_no_longer(tmp_path: Path) -> None:
    policy = HFLocal(a_local(tmp_path))
    sizes = batch_sizes(policy)
    turns = {0: 1, 1: 2, 2: 2, 3: 0}  # the last try never calls
    begun = asyncio.Barrier(len(turns))

    async def one(index: int) -> None:
        with policy.join_batch():
            await begun.wait()
            for turn in range(turns[index]):
                for _ in range(5 * index):  # they come one after another
                    await asyncio.sleep(0)
                await policy.complete(asking(), seeded(10 * index + turn))

    await asyncio.wait_for(asyncio.gather(*map(one, turns)), 60)
    assert sizes == [3, 2]
    await policy.aclose()


async def test_a_batch_does_not_wait_for_a_try_that_stands_aside(tmp_path: Path) -> None:
    policy = HFLocal(a_local(tmp_path))
    sizes = batch_sizes(policy)
    money, begun = asyncio.Event(), asyncio.Barrier(3)

    async def one(index: int) -> None:
        with policy.join_batch():
            await begun.wait()
            if index == 2:
                with policy.leave_batch():
                    await money.wait()
            await policy.complete(asking(), seeded(index))
            money.set()
            if index < 2:
                await policy.complete(asking(), seeded(10 + index))

    await asyncio.wait_for(asyncio.gather(*map(one, range(3))), 60)
    assert sizes == [2, 3]  # once it is back it is waited for again
    await policy.aclose()


async def test_a_call_that_was_only_queued_says_that_it_cost_nothing(tmp_path: Path) -> None:
    policy = HFLocal(a_local(tmp_path))
    decode, running, goes_on = policy.decode, threading.Event(), threading.Event()

    def slow(
        local: LocalModel, rows: Sequence[DecodeRequest], watch: DecodeHooks | None
    ) -> list[DecodedReply]:
        running.set()
        goes_on.wait(60)
        return decode(local, rows, watch)

    policy.decode = slow
    first = asyncio.create_task(policy.complete(asking(), seeded(1)))
    await asyncio.to_thread(running.wait, 60)
    queued = asyncio.create_task(policy.complete(asking(), seeded(2)))
    await asyncio.sleep(0)
    paid = []
    for task in (first, queued):
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as cut:
            await task
        paid.append(reported_usage(cut.value))
    goes_on.set()
    assert paid == [None, NO_USAGE]
    await policy.aclose()


async def test_a_call_from_outside_the_tries_does_not_wait_for_them(tmp_path: Path) -> None:
    policy = HFLocal(a_local(tmp_path))
    sizes = batch_sizes(policy)
    entered, free = asyncio.Event(), asyncio.Event()

    async def busy() -> Completion:
        with policy.join_batch():
            entered.set()
            await free.wait()
            return await policy.complete(asking(), seeded(1))

    task = asyncio.create_task(busy())
    await entered.wait()
    await asyncio.wait_for(policy.complete(asking(), seeded(2)), 60)
    free.set()
    await asyncio.wait_for(task, 60)
    assert sizes == [1, 1]
    await policy.aclose()


async def test_a_try_inside_a_try_is_waited_for_once(tmp_path: Path) -> None:
    policy = HFLocal(a_local(tmp_path))
    with policy.join_batch(), policy.join_batch():
        made = await asyncio.wait_for(policy.complete(asking(), seeded()), 60)
    assert made.token_ids
    await policy.aclose()


async def test_rows_of_a_batch_are_at_most_as_many_as_allowed_in_an_order_of_their_own(
    tmp_path: Path,
) -> None:
    local = a_local(tmp_path, settings={"max_batch": 3})
    policy = HFLocal(local)
    sizes = batch_sizes(policy)
    one = await group(policy, 8)
    calls = (policy.complete(asking(), seeded(seed)) for seed in reversed(range(8)))
    other = (await asyncio.gather(*calls))[::-1]
    assert sizes == [3, 3, 2] * 2
    # Bitwise: whatever the order of arrival, the same rows share a batch.
    assert [made.logprobs for made in one] == [made.logprobs for made in other]
    await policy.aclose()


async def test_a_cancelled_call_leaves_the_others_alone(tmp_path: Path) -> None:
    policy = HFLocal(a_local(tmp_path))
    whole = await group(policy, 3, max_tokens=100)
    decode, running, cancelled = policy.decode, threading.Event(), threading.Event()
    drawn: list[DecodedReply] = []

    def slow(
        local: LocalModel, rows: Sequence[DecodeRequest], watch: DecodeHooks | None
    ) -> list[DecodedReply]:
        running.set()
        cancelled.wait(60)
        drawn.extend(decode(local, rows, watch))
        return drawn

    policy.decode = slow
    tasks = [
        asyncio.create_task(policy.complete(asking(), seeded(seed, max_tokens=100)))
        for seed in range(3)
    ]
    await asyncio.to_thread(running.wait, 60)
    tasks[1].cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    cancelled.set()
    made = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(made[1], asyncio.CancelledError)
    assert len(drawn[1].token_ids) == 1 < len(whole[1].token_ids)  # its row was given up
    for index in (0, 2):
        one = made[index]
        assert isinstance(one, Completion)
        assert one.token_ids == whole[index].token_ids
    await policy.aclose()


async def test_a_try_that_is_cancelled_holds_nobody_up(tmp_path: Path) -> None:
    policy = HFLocal(a_local(tmp_path))
    never = asyncio.Event()

    async def stuck() -> None:
        with policy.join_batch():
            await never.wait()

    async def calling() -> Completion:
        with policy.join_batch():
            return await policy.complete(asking(), seeded())

    held, call = asyncio.create_task(stuck()), asyncio.create_task(calling())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not call.done()
    held.cancel()
    assert (await asyncio.wait_for(call, 60)).token_ids
    await policy.aclose()


async def test_closing_ends_a_batch_at_its_next_token_and_says_so(tmp_path: Path) -> None:
    policy = HFLocal(a_local(tmp_path))
    decode, running, closed = policy.decode, threading.Event(), threading.Event()

    def slow(
        local: LocalModel, rows: Sequence[DecodeRequest], watch: DecodeHooks | None
    ) -> list[DecodedReply]:
        running.set()
        closed.wait(60)
        return decode(local, rows, watch)

    policy.decode = slow
    call = asyncio.create_task(policy.complete(asking(), seeded(max_tokens=200)))
    await asyncio.to_thread(running.wait, 60)
    closing = asyncio.create_task(policy.aclose())
    await asyncio.sleep(0)
    closed.set()
    await closing
    with pytest.raises(CallFailed, match="was closed"):
        await call
    assert not policy.local.lock.locked()
    assert (await policy.complete(asking(), seeded())).token_ids  # it can be used again
    await policy.aclose()


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("x"), RuntimeError("CUDA out of memory")])
async def test_without_memory_the_batch_is_halved_once_and_that_is_said(
    error: RuntimeError, tmp_path: Path
) -> None:
    told: list[str] = []
    policy = HFLocal(a_local(tmp_path), tell=told.append)
    whole, decode = await group(policy, 6), policy.decode

    def small(
        local: LocalModel, rows: Sequence[DecodeRequest], watch: DecodeHooks | None
    ) -> list[DecodedReply]:
        if len(rows) > 3:
            raise error
        return decode(local, rows, watch)

    policy.decode = small
    sizes = batch_sizes(policy)
    halved = await group(policy, 6)
    assert [one.token_ids for one in halved] == [one.token_ids for one in whole]
    assert sizes == [6, 3, 3]
    assert told == ["Memory ran out with 6 rows; from now on 3 are decoded at a time."]
    await group(policy, 6)
    assert sizes == [6, 3, 3, 3, 3]
    await policy.aclose()


async def test_memory_that_does_not_suffice_for_half_fails_the_calls(tmp_path: Path) -> None:
    def never(
        local: LocalModel, rows: Sequence[DecodeRequest], watch: DecodeHooks | None
    ) -> list[DecodedReply]:
        raise torch.OutOfMemoryError("x")

    policy = HFLocal(a_local(tmp_path), tell=lambda line: None)
    policy.decode = never
    calls = (policy.complete(asking(), seeded(seed)) for seed in range(4))
    for one in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(one, CallFailed)
        assert "memory ran out, also with 2 rows" in str(one)
    await policy.aclose()


async def test_an_error_while_decoding_fails_the_calls_and_not_the_policy(tmp_path: Path) -> None:
    policy = HFLocal(a_local(tmp_path))
    decode = policy.decode

    def broken(
        local: LocalModel, rows: Sequence[DecodeRequest], watch: DecodeHooks | None
    ) -> list[DecodedReply]:
        raise ZeroDivisionError("by 0")

    policy.decode = broken
    with pytest.raises(CallFailed, match="decoding raised ZeroDivisionError: by 0"):
        await policy.complete(asking(), seeded())
    policy.decode = decode
    assert (await policy.complete(asking(), seeded())).token_ids
    await policy.aclose()


async def test_diverged_weights_fail_the_calls_and_say_so(tmp_path: Path) -> None:
    local = a_local(tmp_path, trained=True)
    local.load_adapter_state({n: v * float("nan") for n, v in local.adapter_state().items()})
    policy = HFLocal(local)
    with pytest.raises(CallFailed, match="weights have diverged"):
        await policy.complete(asking(), seeded())
    await policy.aclose()


async def test_an_error_of_a_listener_is_its_callers_own(tmp_path: Path) -> None:
    policy = HFLocal(a_local(tmp_path))

    def broken(piece: str) -> None:
        raise LookupError(piece)

    with pytest.raises(LookupError):
        await policy.complete(asking(), seeded(max_tokens=60), broken)
    await policy.aclose()


async def test_decoding_waits_for_whoever_holds_the_model(tmp_path: Path) -> None:
    policy = HFLocal(a_local(tmp_path))
    with policy.local.lock:
        call = asyncio.create_task(policy.complete(asking(), seeded()))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not call.done()
    assert (await call).token_ids
    await policy.aclose()


# Opening


async def test_a_run_file_opens_it_by_prefix_and_folder(tmp_path: Path) -> None:
    a_folder(tmp_path / "mine")
    opened = open_policy(f"hf:{tmp_path / 'mine'}")
    assert isinstance(opened, HFLocal)
    assert opened.name == f"hf:{tmp_path / 'mine'}"
    assert opened.local.settings.path == str(tmp_path / "mine")
    await opened.ping()
    await opened.aclose()


def test_a_prefix_without_a_model_says_what_it_wants() -> None:
    with pytest.raises(PolicyError, match="it wants hf:MODEL"):
        open_policy("hf:")
    with pytest.raises(PolicyError, match="Did you mean hf:x"):
        open_policy("hff:x")
