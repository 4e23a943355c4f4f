"""Every config of a Youtu-Agent checkout runs, or is refused by the name of what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.core.errors import ConfigError
from studio.config.loading import LoadedRun, load_run
from studio.config.source import find_youtu_config, translate_flags
from tests.support.fake_endpoint import Behaviour, Exchange, an_endpoint, says
from tests.support.run_studio import studio
from tests.support.youtu_checkout import write
from tests.support.youtu_layout import ENV, FILES, documented_checkout

CONFIGS = sorted(
    (kind, name.removeprefix(f"configs/{kind}/").removesuffix(".yaml"))
    for name in FILES
    for kind in ("practice", "eval")
    if name.startswith(f"configs/{kind}/")
)
REFUSED = {
    "web_search": "toolkits that do not exist here: search",
    "web/web": "toolkits that do not exist here: search",
    "web/web_practice": "toolkits that do not exist here: search",
    "ww": "of type orchestra: agents of several roles do not exist here",
}
"""Configs that do not run as they stand, with what they lack."""
COMMANDS = {"practice": "headless", "eval": "eval"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return documented_checkout(tmp_path_factory.mktemp("documented") / "youtu")


def loaded(home: Path, folder: Path, kind: str, name: str, *overrides: str) -> LoadedRun:
    asked = find_youtu_config(str(home), name, "practice" if kind == "practice" else "eval")
    return load_run("", overrides, folder / "practice", {}, cwd=folder, youtu=asked)


@pytest.mark.parametrize(("kind", "name"), CONFIGS)
def test_a_config_runs_or_is_refused_by_the_name_of_what_is_missing(
    home: Path, tmp_path: Path, kind: str, name: str
) -> None:
    words = [COMMANDS[kind], "--from-youtu", str(home), "--config_name", name]
    more = ["policy=rehearsal", "judge=rehearsal"]
    done = studio(*words, *more, workspace=tmp_path / "practice")
    if name not in REFUSED:
        assert done.code == 0, done.stderr
    else:
        assert done.code == 2 and REFUSED[name] in done.stderr
        if "toolkits" in REFUSED[name]:  # and runs without them where that is meant
            assert loaded(home, tmp_path, kind, name, *more, "agent.toolkits=null").config


@pytest.mark.parametrize(("kind", "name"), [c for c in CONFIGS if c[1] not in REFUSED])
def test_a_config_asks_the_model_that_the_checkout_s_environment_names(
    home: Path, tmp_path: Path, kind: str, name: str
) -> None:
    run = loaded(home, tmp_path, kind, name).config
    practised = "practice_" in name
    assert run.policy.model == f"openai:{'practised-model' if practised else 'main-model'}"
    assert run.policy.base_url == ENV["UTU_LLM_BASE_URL"]
    assert run.policy.api_key is not None
    assert run.policy.api_key.get_secret_value() == ENV["UTU_LLM_API_KEY"]
    assert run.policy.timeout_s == 3000


def grading(grade: str, asked: list[str]) -> Behaviour:
    """A judge that gives a grade, and remembers what it was asked."""
    say = says(f"EXPLANATION: so it is.\nGRADE: **{grade}**")

    async def behaviour(exchange: Exchange) -> None:
        messages = exchange.request.body["messages"]
        if "Say OK." not in str(messages):
            asked.append(messages[-1]["content"])
            assert exchange.request.headers["authorization"] == f"Bearer {ENV['JUDGE_LLM_API_KEY']}"
        await say(exchange)

    return behaviour


@pytest.mark.parametrize(("grade", "mean"), [("CORRECT", "1.000"), ("INCORRECT", "0.000")])
def test_webwalker_judges_with_the_prompt_and_the_judge_of_its_checkout(
    tmp_path: Path, grade: str, mean: str
) -> None:
    home, asked = documented_checkout(tmp_path / "youtu"), list[str]()
    with an_endpoint(grading(grade, asked)) as endpoint:
        done = studio(
            "eval", "--from-youtu", str(home), "--config-name", "web/web", "agent.toolkits=null",
            "policy=rehearsal", "evaluation.k=1", f"judge.base_url={endpoint.base_url}",
            workspace=tmp_path / "practice",
        )  # fmt: skip
    assert done.code == 0, done.stderr
    assert mean in done.stdout
    assert len(asked) == 2
    assert all(text.startswith("Compare the response with the truth.") for text in asked)
    assert any("Question: What is 17 + 25?\nTruth: 42\nResponse: " in text for text in asked)


def test_its_database_gives_the_data_and_is_not_written_to(home: Path, tmp_path: Path) -> None:
    run = loaded(home, tmp_path, "practice", "math_reasoning")
    assert run.config.data.practice == f"{home}/test.db:DAPO-Math-17k"
    assert run.data_path(run.config.data.practice).split == "DAPO-Math-17k"
    assert [file.name for file in home.glob("test.db*")] == ["test.db"]


def test_a_database_of_another_kind_is_told_without_its_password(tmp_path: Path) -> None:
    home = documented_checkout(tmp_path / "youtu")
    (home / "test.db").unlink()
    with (home / ".env").open("a") as file:
        file.write("UTU_DB_URL=postgresql://me:hunter2@db/samples\n")
    run = loaded(home, tmp_path, "practice", "math_reasoning")
    (note,) = (w for w in run.warnings if "UTU_DB_URL" in w)
    assert "studio data add" in note and "hunter2" not in note


def test_an_agent_of_the_checkout_can_be_put_in_the_place_of_the_config_s(
    home: Path, tmp_path: Path
) -> None:
    run = loaded(home, tmp_path, "practice", "web_search", "agent_config=practice/math_agent")
    assert run.config.agent.name == "math_agent"
    with pytest.raises(ConfigError, match=r"orchestrator/base\.yaml:\d+: .*several roles"):
        loaded(home, tmp_path, "eval", "web/web", "agent_config=agents/orchestrator/base")
    with pytest.raises(
        ConfigError, match=r"agent_config practice/mat_agent: .*practice/math_agent"
    ):
        loaded(home, tmp_path, "eval", "web/web", "agent_config=practice/mat_agent")


FLAGS = {
    "--config_name web": ["--config-name", "web"],
    "--epochs 3 --batch_size=64": ["practice.epochs=3", "practice.batch_size=64"],
    "--grpo_n 5 --rollout_concurrency 9": ["practice.grpo_n=5", "practice.rollout_concurrency=9"],
    "--restart_step null": ["practice.restart_step=null"],
    "--do_eval --task_timeout 9": ["practice.do_eval=true", "practice.task_timeout=9"],
    "--do_eval false --name x": ["practice.do_eval=false", "--name", "x"],
    "--do_eval policy=rehearsal": ["practice.do_eval=true", "policy=rehearsal"],
    "--experiment_name mine": ["exp_id=mine"],
    "--practice_dataset_name D": ["data.practice_dataset_name=D"],
    "--verify_filename a.py --pass_k 2": ["evaluation.verify_filename=a.py", "evaluation.pass_k=2"],
    "--agent_config practice/web_agent": ["agent_config=practice/web_agent"],
    "--learning_objective a,b": ['practice.learning_objective="a,b"'],
    "--nobody_knows 3": ["--nobody_knows", "3"],
    "--resume x": ["--resume", "x"],
}


@pytest.mark.parametrize("flags", FLAGS)
def test_an_option_of_its_programs_is_the_override_of_what_it_sets(flags: str) -> None:
    begin = ["headless", "--from-youtu", "d"]
    assert translate_flags([*begin, *flags.split()]) == [*begin, *FLAGS[flags]]
    assert translate_flags(["headless", "rehearsal", *flags.split()]) == [
        *("headless", "rehearsal"),
        *flags.split(),
    ]


def test_an_option_of_its_evaluation_is_one_of_eval() -> None:
    given = [
        "eval",
        "--from-youtu=d",
        "--exp_id",
        "e",
        "--agent_model",
        "m",
        "--dataset",
        "D",
        "--step",
        "judge",
    ]
    assert translate_flags(given) == [
        *("eval", "--from-youtu=d", "exp_id=e", "agent.model.model_provider.model=m"),
        *("data.dataset=D", "--step", "judge"),
    ]


def test_an_option_without_its_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="--epochs: its value is missing"):
        translate_flags(["headless", "--from-youtu", "d", "--epochs", "--batch_size", "3"])


def test_a_text_of_any_form_passes_through_an_option(home: Path, tmp_path: Path) -> None:
    text = 'in: it\'s, a "text" [of] {many} signs\\'
    (word,) = translate_flags(["headless", "--from-youtu", "d", "--agent_objective", text])[3:]
    run = loaded(home, tmp_path, "practice", "math_reasoning", word)
    assert run.config.practice.agent_objective == text


def test_tries_are_made_in_one_step_and_judged_in_another(home: Path, tmp_path: Path) -> None:
    def step(name: str, *more: str) -> tuple[int, str]:
        words = ("--from-youtu", str(home), "--config_name", "math/math_AIME24", "--step", name)
        done = studio("eval", *words, "policy=rehearsal", *more, workspace=tmp_path / "practice")
        return done.code, done.stdout + done.stderr

    code, text = step("judge")
    assert code == 4 and "not tried yet" in text and "0 calls" in text
    code, text = step("rollout")
    assert code == 0 and "4 tries wait for `--step judge`, 0 failed (4 calls)" in text
    code, text = step("rollout", "--json")
    assert code == 0 and '{"step":"rollout","waiting":4,"failed":0,"calls":0}' in text
    code, text = step("judge")
    assert code == 0 and "none known" not in text and "0 calls" in text
    code, text = step("guess")
    assert code == 2 and "'all', 'rollout', 'judge'" in text


def test_a_verifier_that_lies_in_no_checkout_names_the_prompt_it_lacks(tmp_path: Path) -> None:
    write(tmp_path / "web.py", FILES["utu/practice/verify/webwalker.py"])
    done = studio(
        "eval", "rehearsal", "verifier.file=web.py", "judge=rehearsal", "evaluation.limit=2",
        workspace=tmp_path / "practice", cwd=tmp_path,
    )  # fmt: skip
    assert done.code == 4
    assert "utu/prompts/practice/verify.yaml is asked for" in done.stdout
