"""Logs as their programs write them, made from the same few scored tries.

Fields and their nesting follow the owners' documents and sources, which the readers name.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Tried = tuple[str, int, float]
"""Problem, number of the try from 1, score."""

Writer = Callable[[Path, Sequence[Tried]], Path]


def write_json(path: Path, value: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1), "utf-8")
    return path


def write_jsonl(path: Path, rows: Sequence[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def csv(folder: Path, tried: Sequence[Tried]) -> Path:
    path = folder / "scores.csv"
    rows = [f'"{p}",{n},{score},120,0.002,gsm8k\n' for p, n, score in tried]
    path.write_text("problem,seed,score,tokens,cost,set\n" + "".join(rows), "utf-8")
    return path


def lm_eval(folder: Path, tried: Sequence[Tried]) -> Path:
    """Two filters a document, as gsm8k has; a try more is another task."""
    by_task: dict[int, list[dict[str, Any]]] = {}
    for problem, number, score in tried:
        for used, value in (("strict-match", score), ("flexible-extract", 1.0)):
            row = {
                "doc_id": sum(map(ord, problem)),
                "doc": {"question": f"What is {problem}?", "answer": "#### 4"},
                "target": "#### 4",
                "arguments": {"gen_args_0": {"arg_0": "Q: …", "arg_1": {"until": ["Q:"]}}},
                "resps": [["#### 4"]],
                "filtered_resps": ["4"],
                "filter": used,
                "metrics": ["exact_match"],
                "doc_hash": f"{problem}-of-64-hex-digits",
                "prompt_hash": "c0ffee",
                "target_hash": "decaf",
                "exact_match": value,
            }
            by_task.setdefault(number, []).append(row)
    for number, rows in by_task.items():
        name = f"samples_gsm8k{number}_2026-09-01T10-00-00.123456.jsonl"
        write_jsonl(folder / "some__model" / name, rows)
    return folder / "some__model"


def inspect_samples(tried: Sequence[Tried]) -> list[dict[str, Any]]:
    grades = {1.0: "C", 0.5: "P", 0.0: "I"}
    return [
        {
            "id": problem,
            "epoch": number,
            "input": f"What is {problem}?",
            "target": "4",
            "scores": {
                "match": {"value": grades.get(score, score), "answer": "4", "explanation": "…"},
                "rubric": {"value": {"style": 1, "facts": 0.5}},
            },
            "model_usage": {
                "openai/m": {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120}
            },
            "total_time": 1.5,
            "completed": True,
        }
        for problem, number, score in tried
    ]


INSPECT_HEAD = {
    "version": 2,
    "status": "success",
    "eval": {"task": "gsm8k", "model": "openai/m", "created": "2026-09-01T10:00:00+00:00"},
    "plan": {"name": "plan", "steps": []},
    "stats": {"model_usage": {}},
}


def inspect_json(folder: Path, tried: Sequence[Tried]) -> Path:
    return write_json(folder / "log.json", INSPECT_HEAD | {"samples": inspect_samples(tried)})


def inspect_eval(folder: Path, tried: Sequence[Tried], archive: Any = zipfile.ZipFile) -> Path:
    path, samples = folder / "2026-09-01_gsm8k.eval", inspect_samples(tried)
    with archive(path, "w") as file:
        file.writestr("_journal/start.json", json.dumps({k: INSPECT_HEAD[k] for k in ("eval",)}))
        for row in samples:
            file.writestr(f"samples/{row['id']}_epoch_{row['epoch']}.json", json.dumps(row))
        file.writestr("summaries.json", json.dumps(samples))
        file.writestr("header.json", json.dumps(INSPECT_HEAD))
    return path


def inspect_zstd(folder: Path, tried: Sequence[Tried]) -> Path:
    from backports.zstd.zipfile import ZIP_ZSTANDARD, ZipFile

    return inspect_eval(folder, tried, lambda path, mode: ZipFile(path, mode, ZIP_ZSTANDARD))


def promptfoo_results(tried: Sequence[Tried], column: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "id": f"r{at}",
            "promptIdx": column,
            "testIdx": at,
            "testCase": {"vars": {"question": problem}, "assert": [{"type": "equals"}]},
            "promptId": "d0",
            "provider": {"id": f"openai:chat:m{column}", "label": ""},
            "prompt": {"raw": "Answer: …", "label": "Answer: {{question}}"},
            "vars": {"question": problem},
            "response": {"output": "4", "tokenUsage": {"total": 120}, "cost": 0.002},
            "failureReason": 0 if score else 1,
            "success": score >= 0.5,
            "score": score,
            "latencyMs": 321,
            "gradingResult": {"pass": score >= 0.5, "score": score, "reason": "…"},
            "namedScores": {"facts": score},
            "cost": 0.002,
            "tokenUsage": {"prompt": 100, "completion": 20, "total": 120},
        }
        for at, (problem, _, score) in enumerate(tried)
    ]


def promptfoo(folder: Path, tried: Sequence[Tried]) -> Path:
    results = {"version": 3, "timestamp": "2026-09-01T10:00:00Z", "prompts": [], "stats": {}}
    results["results"] = promptfoo_results(tried)
    return write_json(folder / "out.json", {"evalId": "eval-x", "results": results, "config": {}})


def promptfoo_lines(folder: Path, tried: Sequence[Tried]) -> Path:
    return write_jsonl(folder / "out.jsonl", promptfoo_results(tried))


def verifiers(folder: Path, tried: Sequence[Tried]) -> Path:
    rows = [
        {
            "version": 1,
            "id": f"{at:032x}",
            "task": {"type": "Gsm8k", "data": {"idx": at, "prompt": "…"}, "key": problem},
            "agent": {"config": {}, "name": "agent", "trainable": True},
            "nodes": [{"message": {"role": "assistant", "content": "4"}, "sampled": True}],
            "calls": [{"node": 0, "usage": {"prompt_tokens": 100, "completion_tokens": 20}}],
            "rewards": {
                "correct": {"score": score, "weight": 1.0},
                "style": {"score": 0.3, "weight": 0.0},
            },
            "metrics": {"turns": 1.0},
            "is_completed": True,
            "ok": True,
            "errors": [],
        }
        for at, (problem, _, score) in enumerate(tried)
    ]
    write_jsonl(folder / "gsm8k--m--default" / "traces.jsonl", rows)
    return folder / "gsm8k--m--default"


def skills(folder: Path, tried: Sequence[Tried]) -> Path:
    """An iteration whose two sides are alike."""
    root = folder / "iteration-1"
    for problem, number, score in tried:
        for side in ("with_skill", "without_skill"):
            run = root / f"eval-{problem}" / side / f"run-{number}"
            checks = [{"text": "It is four", "passed": score == 1, "evidence": "…"}]
            summary = {"passed": score * 4, "failed": 4 - score * 4, "total": 4, "pass_rate": score}
            write_json(run / "grading.json", {"expectations": checks, "summary": summary})
            write_json(run / "timing.json", {"total_tokens": 120, "duration_ms": 2100})
    mean = {"pass_rate": {"mean": 0.5, "stddev": 0.1}}
    write_json(root / "benchmark.json", {"run_summary": {"with_skill": mean}})
    return root


WRITERS: dict[str, Writer] = {
    "csv": csv,
    "lm-eval": lm_eval,
    "inspect JSON": inspect_json,
    "inspect .eval": inspect_eval,
    "inspect .eval, Zstandard": inspect_zstd,
    "promptfoo": promptfoo,
    "promptfoo JSONL": promptfoo_lines,
    "verifiers": verifiers,
    "agentskills": skills,
}
