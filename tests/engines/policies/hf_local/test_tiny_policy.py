"""The tiny policy that ships, its problems, and that it listens to experiences."""

from __future__ import annotations

import json
import random
import re
import warnings
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import sample_data
from engines.core.library import guidance_text
from engines.policies.rehearsal import prompt, reflect
from engines.policies.rehearsal.solve import recognise, stance
from sample_data import make_skills
from sample_data.tiny_text import (
    LESSONS,
    SKILLS,
    Exercise,
    Share,
    Skill,
    exercises,
    numbers_in,
    share_of,
)
from sample_data.tiny_tips import HELPFUL, system_text

DATA = Path(sample_data.__file__).parent
TINY = DATA / "tiny"
SETS: dict[str, Share] = {"skills.jsonl": "practice", "skills-heldout.jsonl": "heldout"}


def some(skill: Skill, share: Share = "practice", count: int = 300) -> list[Exercise]:
    return list(islice(exercises(skill, random.Random(5), share), count))


def rows(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (DATA / name).read_text("utf-8").splitlines()]


def shown(number: int, reward: float, text: str) -> prompt.ShownAttempt:
    return prompt.ShownAttempt(number, reward, *prompt.parse_attempt(text.splitlines()))


@cache
def loaded() -> tuple[Any, Any]:
    transformers = pytest.importorskip("transformers", reason="needs the extra grpo")
    torch = pytest.importorskip("torch", reason="needs the extra grpo")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenizer = transformers.AutoTokenizer.from_pretrained(TINY)
        model = transformers.AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    torch.set_num_threads(1)  # two on a busy machine take several times as long
    return model.eval(), tokenizer


@pytest.mark.parametrize("skill", SKILLS)
def test_rehearsal_recognises_every_question_and_agrees_on_the_answer(skill: Skill) -> None:
    for exercise in some(skill):
        task = recognise(exercise.question)
        assert task is not None
        assert (task.family, task.answer) == (skill, exercise.answer)


@pytest.mark.parametrize("skill", SKILLS)
def test_the_right_solution_states_the_answer_and_the_lazy_one_another(skill: Skill) -> None:
    for exercise in some(skill):
        assert exercise.right.endswith(f"\n#### {exercise.answer}")
        assert not exercise.lazy.endswith(f"\n#### {exercise.answer}")
        assert exercise.right.splitlines()[0] == exercise.lazy.splitlines()[0]


@pytest.mark.parametrize("skill", SKILLS)
def test_every_calculation_of_a_right_solution_holds(skill: Skill) -> None:
    for exercise in some(skill):
        found = re.findall(r"([\d+*-]+)=(-?\d+)", exercise.right)
        assert found
        for calculation, result in found:
            assert eval(calculation, {"__builtins__": {}}) == int(result)


@pytest.mark.parametrize("skill", SKILLS)
def test_the_lazy_solution_makes_the_slip_that_is_typical_of_its_kind(skill: Skill) -> None:
    for exercise in some(skill):
        task = recognise(exercise.question)
        assert task is not None
        assert exercise.lazy.endswith(f"\n#### {task.wrong_answer}")


@pytest.mark.parametrize("skill", SKILLS)
def test_the_reflector_draws_the_skills_lesson_from_the_attempts_alone(skill: Skill) -> None:
    for exercise in some(skill):
        right, lazy = shown(1, 1.0, exercise.right), shown(2, 0.0, exercise.lazy)
        assert [d.text for d in reflect.find_lessons([right], [lazy], exercise.question)] == [
            LESSONS[skill]
        ]
    assert stance(skill, f"[E1] {LESSONS[skill]}") == "stated"


def test_a_slip_in_the_sum_alone_teaches_nothing() -> None:
    exercise = some("addition")[0]
    wrong_sum = exercise.right.replace("=", "=1")
    attempts = shown(1, 1.0, exercise.right), shown(2, 0.0, wrong_sum)
    assert reflect.find_lessons([attempts[0]], [attempts[1]], exercise.question) == []


@pytest.mark.parametrize("skill", SKILLS)
def test_the_reflector_adds_the_lesson_when_it_is_shown_a_prompt(skill: Skill) -> None:
    exercise = some(skill)[0]
    quoted = {
        n: text.replace("\n", "\n| ") for n, text in enumerate((exercise.right, exercise.lazy))
    }
    text = (
        f"# Task: extract\n## Problem\n| {exercise.question}\n## Attempts\n"
        f"### Attempt 1 · reward 1\n| {quoted[0]}\n### Attempt 2 · reward 0\n| {quoted[1]}\n"
        "## Library now\n"
    )
    (wish,) = reflect.extract(prompt.parse_sections(text))
    assert (wish.operation, wish.experience) == ("add", LESSONS[skill])


def test_the_shipped_sets_are_what_the_program_writes(tmp_path: Path) -> None:
    make_skills.write(tmp_path)
    for name in SETS:
        assert (tmp_path / name).read_bytes() == (DATA / name).read_bytes()


def test_practice_and_held_out_problems_share_no_numbers_with_each_other_or_the_warm_up() -> None:
    tuples: dict[str, set[tuple[int, ...]]] = {
        name: {tuple(sorted(numbers_in(row["question"]))) for row in rows(name)} for name in SETS
    }
    assert not tuples["skills.jsonl"] & tuples["skills-heldout.jsonl"]
    for name, share in SETS.items():
        assert {share_of(numbers) for numbers in tuples[name]} == {share}
    seen = {
        tuple(sorted(numbers_in(exercise.question)))
        for skill in SKILLS
        for exercise in some(skill, "warm-up", 2000)
    }
    assert not seen & (tuples["skills.jsonl"] | tuples["skills-heldout.jsonl"])


def test_the_sets_hold_as_many_problems_of_each_skill_and_none_twice() -> None:
    for name, count in {"skills.jsonl": 192, "skills-heldout.jsonl": 128}.items():
        sources = [row["source"] for row in rows(name)]
        assert {source: sources.count(source) for source in sources} == {
            "addition with carry": count,
            "subtraction with borrow": count,
            "two-step story": count,
            "precedence": count,
        }
        assert len({row["question"] for row in rows(name)}) == 4 * count
        assert (DATA / name).stat().st_size < 100_000


def test_the_warm_up_text_follows_from_the_seed() -> None:
    one, other = random.Random(3), random.Random(3)
    texts = [[system_text(skill, c) for skill in SKILLS * 30] for c in (one, other)]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 60


def test_a_third_of_the_warm_up_has_no_experience_and_lessons_stand_in_the_studios_form() -> None:
    chance = random.Random(2)
    drawn = [system_text(skill, chance) for skill in SKILLS * 500]
    assert sum(text == "" for text, _ in drawn) / len(drawn) == pytest.approx(0.33, abs=0.03)
    start = guidance_text([("E1", "x")]).partition("[")[0]
    assert all(text.startswith(f"{start}[E") for text, _ in drawn if text)
    assert not any(told for text, told in drawn if not text)


def test_what_counts_as_help_states_a_condition_and_a_rule_of_its_skill() -> None:
    chance = random.Random(4)
    for skill in SKILLS * 200:
        text, told = system_text(skill, chance)
        if text and not told:
            # Noise may stand between, so this looks for the whole unbroken sentences.
            words = HELPFUL[skill]
            sentences = [f"{c}, {r}." for c in words.conditions for r in words.rules]
            assert not any(sentence in text for sentence in sentences)


def test_the_folder_is_small_and_whole() -> None:
    sizes = {path.name: path.stat().st_size for path in TINY.iterdir()}
    assert sum(sizes.values()) <= 2_000_000
    assert set(sizes) >= {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "README.md",
    }
    assert "{{" not in (TINY / "README.md").read_text("utf-8")


def test_the_model_loads_without_a_warning_and_is_as_small_as_its_card_says() -> None:
    model, tokenizer = loaded()
    assert f"{model.num_parameters():,} parameters" in (TINY / "README.md").read_text("utf-8")
    assert model.config.model_type == "llama"
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == model.config.eos_token_id
    assert tokenizer.padding_side == "left"


@pytest.mark.parametrize("text", ["What is 57 + 18?", " a  b\n\n#### 7", "Größe → 3 × 4 = 12 🙂"])
def test_any_text_comes_back_from_the_tokenizer(text: str) -> None:
    _, tokenizer = loaded()
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_digit_is_a_token_of_its_own() -> None:
    _, tokenizer = loaded()
    ids = tokenizer.encode("1234567890")
    assert [tokenizer.decode([i]) for i in ids] == list("1234567890")


def test_the_chat_template_closes_every_turn_and_opens_the_reply() -> None:
    _, tokenizer = loaded()
    turns = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "A"},
        {"role": "user", "content": "R"},
    ]
    shown = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    assert shown == (
        "<|system|>S<|end|><|user|>Q<|end|><|assistant|>A<|end|><|user|>R<|end|><|assistant|>"
    )
    one = tokenizer.apply_chat_template(turns[1:2], tokenize=False)
    assert one == "<|user|>Q<|end|>"


@pytest.mark.nightly
def test_lessons_raise_the_share_of_right_answers_and_neutral_lines_do_not() -> None:
    from sample_data.measure_tiny import load_held_out, measure_condition

    model, tokenizer = loaded()
    rows = load_held_out()[:48]
    none, lessons, neutral = (
        measure_condition(model, tokenizer, rows, condition, seed=1).rate
        for condition in ("no experience", "all four lessons", "four neutral experiences")
    )
    # Of 512 problems about 0.28, 0.85 and 0.30; ±0.14 is what 48 problems leave open.
    assert lessons > none + 0.30
    assert lessons > neutral + 0.25
    assert 0.10 < none < 0.45
