"""Whether replies are a model's: what people are told of a rehearsal, and of a cassette."""

from engines.core.team import FIXED
from engines.record.cassette import Tape
from engines.verifiers.open import asks_judge
from studio.config.settings import policy, run


def played_note(tape: Tape | None) -> str | None:
    """That nothing is asked, where a cassette is played; None where none is."""
    if tape is None or not tape.plays:
        return None
    return f"cassette: replies are played from {tape.path}, no model or tool is asked; it costs $0"


def is_rehearsal(config: run.RunConfig) -> bool:
    """Whether any reply of the run is scripted, also one that a real endpoint sends."""
    return bool(_scripted_roles(config))


def rehearsal_note(config: run.RunConfig) -> str | None:
    """Which replies are scripted, for people; None where none are."""
    if not (scripted := _scripted_roles(config)):
        return None
    if "policy" in scripted:
        return "rehearsal: replies are scripted, no model is asked"
    model = config.policy.model
    asked = "comes from a log" if model.startswith("replay:") else "is asked"
    if config.verifier.name == "recorded" and "reflector" in scripted:
        asked += "; it draws no lesson from your tries: name a model, as reflector=openai:MODEL"
    return f"rehearsal: what {', '.join(scripted)} said is scripted; the policy {model} {asked}"


def _scripted_roles(config: run.RunConfig) -> list[str]:
    """Also the members of a team that do not play the policy."""
    roles: list[policy.Role] = ["policy"]
    if config.practice.reflects:
        roles.append("reflector")  # a weight update is computed, no model draws a lesson
    if asks_judge(config.verifier.spec):
        roles.append("judge")
    asked: dict[str, policy.PolicyConfig | None] = {role: config.role(role) for role in roles}
    if config.agent.team is not None:
        asked |= {name: getattr(config.agent.team, name) for name in FIXED}
    return [n for n, one in asked.items() if one and "rehearsal" in one.model.split(":")[:2]]
