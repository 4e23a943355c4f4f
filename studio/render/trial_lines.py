"""One try as lines: what `studio try` prints before a reply streams, and after it."""

from studio.facts.trial import TrialFacts
from studio.render import words
from studio.secrets.sanitize import sanitize


def before_text(facts: TrialFacts) -> str:
    """What is asked: the problem, the source of the experiences, every message."""
    adapter = f" with adapter {facts.adapter}" if facts.adapter else ""
    held = words.count_text(len(facts.experiences), "experience")
    lines = [
        *facts.notes,
        f"problem  {facts.problem.id}  {sanitize(facts.problem.source)}".rstrip(),
        sanitize(f"model    {facts.model}{adapter}"),
        f"library  {sanitize(facts.library)} ({held})",
    ]
    for message in facts.messages:
        lines.append(f"\n[{message['role']}]\n{sanitize(message['content'])}")
    return "\n".join([*lines, "", "[reply]"])


def after_text(facts: TrialFacts, streamed: str) -> str:
    """The result; the reply again only where it differs from what was streamed."""
    lines = [""]
    if facts.reply is not None and not streamed.endswith(facts.reply):
        lines += ["[whole reply]", sanitize(facts.reply), ""]
    if facts.status != "ok":
        lines.append(f"status   {facts.status}: {sanitize(facts.error or 'cut at max_tokens')}")
    if acted := words.try_acts_text(facts.turns, facts.tool_calls, facts.failed_calls):
        lines.append(f"acted    {acted}")
    lines += [
        f"truth    {sanitize(' or '.join(facts.problem.accepted_answers)) or '(none)'}",
        f"verdict  {verdict_text(facts)}",
        f"spent    {words.usage_text(facts.usage)} in {facts.elapsed_s:.2f} s",
    ]
    return "\n".join(lines)


def verdict_text(facts: TrialFacts) -> str:
    if facts.reward is not None:
        critique = f"  ({sanitize(facts.critique)})" if facts.critique else ""
        return f"reward {facts.reward:g}{words.metrics_text(facts.metrics)}{critique}"
    if facts.unjudged or facts.status == "failed":
        return f"could not be judged: {sanitize(facts.unjudged or 'no reason given')}"
    if facts.problem.answer is None:
        return "not judged: the problem has no answer to compare with"
    return "not judged: the verifier has no opinion"


def short_text(name: str, facts: TrialFacts) -> str:
    """`with E3 reward 1`: of several tries that are compared."""
    return f"{name} {verdict_text(facts).partition(' [')[0]}"
