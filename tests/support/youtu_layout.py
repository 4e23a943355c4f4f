"""Builds a whole Youtu-Agent checkout as its documentation lays it out.

Folders, files and their fields are those of its practice README and of the configs that it ships;
what the fields say is ours.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from tests.support.youtu_checkout import write

ENV = {
    "UTU_LLM_TYPE": "chat.completions",
    "UTU_LLM_MODEL": "main-model",
    "UTU_LLM_BASE_URL": "http://127.0.0.1:9/v1",
    "UTU_LLM_API_KEY": "sk-of-the-main-model",
    "JUDGE_LLM_TYPE": "chat.completions",
    "JUDGE_LLM_MODEL": "judge-model",
    "JUDGE_LLM_BASE_URL": "http://127.0.0.1:9/judge/v1",
    "JUDGE_LLM_API_KEY": "sk-of-the-judge",
    "SERPER_API_KEY": "",
    "JINA_API_KEY": "",
    "PHOENIX_ENDPOINT": "http://127.0.0.1:6006/v1/traces",
    "PHOENIX_PROJECT_NAME": "youtu_agent",
    "UTU_DB_URL": "sqlite:///test.db",
    "UTU_LOG_LEVEL": "WARNING",
}
"""What `.env.example` names, with our values."""

_MODEL = """\
model_provider:
  type: ${oc.env:UTU_LLM_TYPE}
  model: ${oc.env:UTU_LLM_MODEL}
  # base_url: ${oc.env:UTU_LLM_BASE_URL}     its client reads these two by itself
  # api_key: ${oc.env:UTU_LLM_API_KEY}
"""

_TOOLS = {
    "python_executor": """\
name: python_executor
mode: builtin
activated_tools: null
config:
  workspace_root: ./
""",
    "search": """\
name: search
mode: builtin
activated_tools: null
config:
  search_engine: duckduckgo
  search_params: {}
  search_banned_sites: []
  crawl_engine: jina
  crawl_params: {}
  summary_token_limit: 10_000
config_llm:
  model_provider:
    type: ${oc.env:UTU_LLM_TYPE}
    model: ${oc.env:UTU_LLM_MODEL}
""",
}

_SETTINGS = """
model:
  model_settings:
    temperature: 0.3
    top_p: 0.95
    extra_args:
      timeout: 3000
"""


def _agent(name: str, tool: str, turns: int) -> str:
    return f"""\
# @package _global_
defaults:
  - /model/base@model
  - /tools/{tool}@toolkits.{tool}
  - _self_

agent:
  name: {name}
  instructions: |-
    Work the problem out. End with <answer>\\boxed{{{{the answer}}}}</answer>

max_turns: {turns}
{_SETTINGS}"""


def _practised(name: str, tool: str) -> str:
    return f"""\
# @package _global_
defaults:
  - _self_

type: simple
model:
  model_provider:
    type: chat.completions
    model: practised-model
  model_settings:
    temperature: 0.3
    top_p: 0.95
    include_usage: true
    extra_args:
      timeout: 3000
  model_params: {{}}
agent:
  name: {name}
  instructions: "Work the problem out.\\n\\nRead these experiences first:\\n[G0]. Units:\\
    \\ keep them.\\n[G1]. Signs: check them."
toolkits:
  {tool}:
    mode: builtin
    env_mode: local
    name: {tool}
    config: {{}}
    mcp_transport: stdio
    mcp_client_session_timeout_seconds: 20
"""


def _eval(exp_id: str, agent: str, dataset: str, verify: str, pass_k: int) -> str:
    return f"""\
# @package _global_
defaults:
  - /agents/practice/{agent}@agent
  - _self_

exp_id: "{exp_id}"

data:
  dataset: "{dataset}"
  type: "single"

concurrency: 128
pass_k: {pass_k}

verify_filename: "{verify}"
verify_func_name: "verify_func"
"""


_JUDGE = """
judge_model:
  model_provider:
    type: ${oc.env:JUDGE_LLM_TYPE}
    model: ${oc.env:JUDGE_LLM_MODEL}
    base_url: ${oc.env:JUDGE_LLM_BASE_URL}
    api_key: ${oc.env:JUDGE_LLM_API_KEY}
  model_params:
    temperature: 0.5

judge_concurrency: 128
"""


def _practice(exp_id: str, evaluation: str, dataset: str) -> str:
    return f"""\
# @package _global_
defaults:
  - /eval/{evaluation}@evaluation
  - _self_

exp_id: "{exp_id}"

practice:
  epochs: 1
  batch_size: 2
  grpo_n: 3
  rollout_concurrency: 128
  rollout_temperature: 0.7
  task_timeout: 1800
  do_eval: false
  eval_strategy: "epoch"
  restart_step: null
  rollout_data_truncate: 2
  agent_objective: |
    input: A problem
    output: Its solution
  learning_objective: |
    Find rules that hold for more than one problem.
  num_experiences_per_query: 1

data:
  practice_dataset_name: "{dataset}"
"""


_ORCHESTRA = (
    """\
# @package _global_

exp_id: "test"

data:
  dataset: "WebWalkerQA"

agent:
  type: orchestra
  planner_model:
    model_provider:
      type: ${oc.env:UTU_LLM_TYPE}
      model: ${oc.env:UTU_LLM_MODEL}
  workers:
    SearchAgent:
      type: simple
      agent:
        name: Searcher
        instructions: Search.
  workers_info:
    - name: SearchAgent
      desc: searches

concurrency: 50
"""
    + _JUDGE
)

_ORCHESTRATOR = """\
# @package _global_
defaults:
  - /model/base@orchestrator_model
  - /agents/practice/web_agent@orchestrator_workers.SearchAgent
  - _self_

type: orchestrator

orchestrator_config:
  name: Chain
  add_chitchat_subagent: true

orchestrator_workers_info:
  - name: SearchAgent
    description: searches
"""

_MATH = """\
from math_verify.errors import TimeoutException
from math_verify.metric import math_metric
from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig

from utu.db import EvaluationSample


def verify_func(sample: EvaluationSample, timeout_score: float = 0, **kwargs) -> dict:
    compare = math_metric(
        gold_extraction_target=(LatexExtractionConfig(),),
        pred_extraction_target=(ExprExtractionConfig(), LatexExtractionConfig()),
    )
    score = 0.0
    try:
        score, _ = compare(["\\\\boxed{" + str(sample.correct_answer) + "}"], [sample.response])
    except TimeoutException:
        score = timeout_score
    return {"reward": float(score), "reasoning": None}
"""

WEBWALKER = """\
import re

from utu.db import EvaluationSample
from utu.utils import FileUtils, SimplifiedAsyncOpenAI, get_logger

logger = get_logger(__name__, "INFO")


async def verify_func(sample: EvaluationSample, timeout_score: float = 0, **kwargs) -> dict:
    try:
        llm = kwargs.get("llm", SimplifiedAsyncOpenAI())
        prompts = FileUtils.load_prompts("practice/verify.yaml")
        asked = FileUtils.get_jinja_template_str(prompts["WEBWALKER_JUDGE_TEMPLATE"]).render(
            problem=sample.raw_question, answer=sample.correct_answer, response=sample.response
        )
        said = (await llm.query_one(messages=asked)).replace("**", "")
        grade = re.search(r"GRADE:\\s*(\\w+)", said)
        right = grade is not None and grade[1].upper() == "CORRECT"
        return {"reward": float(right), "reasoning": None}
    except Exception as error:
        print(f"could not verify: {error}")
        return {"reward": timeout_score, "reasoning": None}
"""

_VERIFY_PROMPTS = """\
WEBWALKER_JUDGE_TEMPLATE: |-
  Compare the response with the truth.
  Question: {{ problem }}
  Truth: {{ answer }}
  Response: {{ response }}
  Say EXPLANATION: and then GRADE: CORRECT or INCORRECT.
"""

FILES = {
    "configs/model/base.yaml": _MODEL,
    **{f"configs/tools/{name}.yaml": text for name, text in _TOOLS.items()},
    "configs/agents/practice/math_agent.yaml": _agent("math_agent", "python_executor", 50),
    "configs/agents/practice/math_practice_agent.yaml": _practised("math_agent", "python_executor"),
    "configs/agents/practice/web_agent.yaml": _agent("utu-base", "search", 20),
    "configs/agents/practice/web_practice_agent.yaml": _practised("utu-base", "search"),
    "configs/agents/orchestrator/base.yaml": _ORCHESTRATOR,
    **{
        f"configs/eval/math/math_{practice}{name}.yaml": _eval(
            f"math_{practice}{name}_eval", f"math_{practice}agent", name, "math.py", 2
        )
        for practice in ("", "practice_")
        for name in ("AIME24", "AIME25")
    },
    "configs/eval/web/web.yaml": _eval("web_eval", "web_agent", "WebWalkerQA", "webwalker.py", 3)
    + _JUDGE,
    "configs/eval/web/web_practice.yaml": _eval(
        "web_practice_eval", "web_practice_agent", "WebWalkerQA", "webwalker.py", 1
    )
    + _JUDGE,
    "configs/eval/ww.yaml": _ORCHESTRA,
    "configs/practice/math_reasoning.yaml": _practice(
        "math_practice", "math/math_AIME24", "DAPO-Math-17k"
    ),
    "configs/practice/web_search.yaml": _practice("web_practice", "web/web", "AFM_web_RL"),
    "utu/practice/verify/math.py": _MATH,
    "utu/practice/verify/webwalker.py": WEBWALKER,
    "utu/prompts/practice/verify.yaml": _VERIFY_PROMPTS,
    ".env": "".join(f"{name}={value}\n" for name, value in ENV.items()),
}

PROBLEMS = (("What is 17 + 25?", "42"), ("What is 6 * 7 + 1?", "43"))
SETS = ("AIME24", "AIME25", "DAPO-Math-17k", "AFM_web_RL", "WebWalkerQA")


def documented_checkout(folder: Path) -> Path:
    """Write the checkout, with its database of samples, and return its folder."""
    for path, text in FILES.items():
        write(folder / path, text)
    write_samples(folder / "test.db", SETS)
    return folder


def write_samples(path: Path, sets: tuple[str, ...] = ("AIME24",), times: int = 1) -> Path:
    """A database with the tables that its program makes; `times` is how often it was filled."""
    database = sqlite3.connect(path)
    database.execute(
        'CREATE TABLE data (id INTEGER PRIMARY KEY, dataset VARCHAR NOT NULL, "index" INTEGER, '
        "source VARCHAR NOT NULL, source_index INTEGER, question VARCHAR NOT NULL, "
        "answer VARCHAR, topic VARCHAR, level INTEGER, file_name VARCHAR, meta JSON)"
    )
    database.execute(
        "CREATE TABLE evaluation_data (id INTEGER PRIMARY KEY, created_at DATETIME, "
        "dataset VARCHAR, dataset_index INTEGER, source VARCHAR, raw_question VARCHAR, "
        "correct_answer VARCHAR, response VARCHAR, reward FLOAT, exp_id VARCHAR, stage VARCHAR)"
    )
    rows = [
        (name, at, "training_free_grpo", *problem, "", 0, "", json.dumps({"set": name}))
        for _ in range(times)
        for name in sets
        for at, problem in enumerate(PROBLEMS)
    ]
    database.executemany(
        'INSERT INTO data (dataset, "index", source, question, answer, topic, level, file_name, '
        "meta) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        rows,
    )
    tries = [("AIME24", 0, *PROBLEMS[0], said, reward) for said, reward in (("42", 1), ("32", 0))]
    database.executemany(
        "INSERT INTO evaluation_data (dataset, dataset_index, raw_question, correct_answer, "
        "response, reward, exp_id, stage) VALUES (?, ?, ?, ?, ?, ?, 'tried', 'judged')",
        tries,
    )
    database.commit()
    database.close()
    return path
